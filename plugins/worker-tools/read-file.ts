import { constants, type FileHandle, open } from 'node:fs/promises'
import type { ToolResult } from '#contracts/tools'
import { explained, refused } from './errors.ts'
import type { Workspace } from './workspace.ts'

/** Most of a file that one call shows. */
export const maxReadBytes = 128 * 1024
const defaultLines = 2_000
/** A file with a NUL in its beginning is no text. */
const looked = 8 * 1024
const blockBytes = 64 * 1024

export interface ReadInput {
  readonly path: string
  /** Lines to skip. */
  readonly offset?: number
  /** Lines to show. */
  readonly limit?: number
}

export async function readFile(
  workspace: Workspace,
  { path, offset = 0, limit = defaultLines }: ReadInput,
): Promise<ToolResult> {
  const real = await workspace.existing(path)
  // Not blocking: opening a pipe would wait for who writes to it.
  const handle = await open(real, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK).catch(
    (error: unknown) => {
      throw explained(path, error)
    },
  )
  try {
    const info = await handle.stat()
    if (info.isDirectory()) throw refused(`'${path}' is a folder: use list_files.`)
    if (!info.isFile()) throw refused(`'${path}' is no regular file.`)
    if (await isBinary(handle)) return { ok: false, content: `'${path}' is a binary file of ${info.size} bytes.` }
    return shown(await slice(handle, offset, limit), offset)
  } finally {
    await handle.close()
  }
}

async function isBinary(handle: FileHandle): Promise<boolean> {
  const { buffer, bytesRead } = await handle.read(Buffer.alloc(looked), 0, looked, 0)
  return buffer.subarray(0, bytesRead).includes(0)
}

interface Slice {
  readonly bytes: Buffer
  readonly end: 'file' | 'lines' | 'bytes'
}

/** The lines behind the first `skip`, as many as were asked for and fit. */
async function slice(handle: FileHandle, skip: number, limit: number): Promise<Slice> {
  const parts: Buffer[] = []
  let size = 0
  let line = 0
  const done = (end: Slice['end']): Slice => ({ bytes: Buffer.concat(parts), end })
  for (let position = 0; ;) {
    const { buffer, bytesRead } = await handle.read(Buffer.allocUnsafe(blockBytes), 0, blockBytes, position)
    if (bytesRead === 0) return done('file')
    position += bytesRead
    const block = buffer.subarray(0, bytesRead)
    for (let at = 0; at < bytesRead;) {
      if (line >= skip + limit) return done('lines')
      const newline = block.indexOf(0x0a, at)
      const end = newline < 0 ? bytesRead : newline + 1
      if (line >= skip) {
        const part = block.subarray(at, Math.min(end, at + maxReadBytes - size))
        parts.push(part)
        size += part.length
        if (part.length < end - at) return done('bytes')
      }
      if (newline >= 0) line++
      at = end
    }
  }
}

function shown({ bytes, end }: Slice, skipped: number): ToolResult {
  const text = bytes.toString('utf8')
  if (text === '')
    return {
      ok: true,
      content: skipped === 0 ? '[The file is empty.]' : `[The file has no more than ${skipped} lines.]`,
    }
  if (end === 'file') return { ok: true, content: text }
  const lines = text.split('\n').length - 1
  const whole = text.endsWith('\n')
  const note =
    end === 'bytes' && !whole
      ? `Cut after ${maxReadBytes / 1024} KiB, in line ${skipped + lines + 1}: ${lines === 0 ? 'shell commands show the rest of it' : `offset ${skipped + lines} begins with that line`}.`
      : `The file goes on: offset ${skipped + lines} shows more.`
  return { ok: true, content: `${text}${whole ? '' : '\n'}[${note}]` }
}
