import { isUtf8 } from 'node:buffer'
import { mostShownBytes, wholeCharacters } from '#kit'

const usualLines = 2_000
/** A file with a NUL byte within its first 8 KiB is treated as binary. */
const beginningBytes = 8 * 1024
/** The most bytes that are read to find lines near the end of a file. */
const mostRead = 64 * 1024 * 1024

/** Lines of a stream, with a note on how to read on; undefined for a binary file. Reads no more than it needs. */
export async function readText(
  body: AsyncIterable<Uint8Array>,
  skip: number,
  limit = usualLines,
): Promise<string | undefined> {
  const parts: Uint8Array[] = []
  let [size, line, position] = [0, 0, 0]
  let end: 'file' | 'lines' | 'bytes' | 'far' = 'file'
  reading: for await (const chunk of body) {
    if (position < beginningBytes && chunk.subarray(0, beginningBytes - position).includes(0)) return undefined
    position += chunk.length
    for (let at = 0; at < chunk.length;) {
      if (line >= skip + limit) {
        end = 'lines'
        break reading
      }
      const newline = chunk.indexOf(0x0a, at)
      const next = newline < 0 ? chunk.length : newline + 1
      if (line >= skip) {
        const part = chunk.subarray(at, Math.min(next, at + mostShownBytes - size))
        parts.push(part)
        size += part.length
        if (part.length < next - at) {
          end = 'bytes'
          break reading
        }
      }
      if (newline >= 0) line++
      at = next
    }
    if (position >= mostRead) {
      end = 'far'
      break
    }
  }
  const bytes = end === 'file' ? Buffer.concat(parts) : wholeCharacters(Buffer.concat(parts))
  return isUtf8(bytes) ? withNote(bytes.toString('utf8'), skip, end) : undefined
}

function withNote(text: string, skipped: number, end: 'file' | 'lines' | 'bytes' | 'far'): string {
  if (end === 'far' && text === '')
    return `[The first ${mostRead / 1024 / 1024} MiB have no more than ${skipped} lines: read on by bytes, as base64.]`
  if (text === '') return skipped === 0 ? '[The file is empty.]' : `[The file has no more than ${skipped} lines.]`
  if (end === 'file') return text
  const whole = text.endsWith('\n')
  const lines = text.split('\n').length - 1
  const note =
    end === 'lines' || whole
      ? `The file goes on: offset ${skipped + lines} shows more.`
      : lines > 0
        ? `Cut in line ${skipped + lines + 1}: offset ${skipped + lines} begins with it.`
        : `Cut in line ${skipped + 1}, which is longer than can be shown: read it by bytes, as base64.`
  return `${text}${whole ? '' : '\n'}[${note}]`
}
