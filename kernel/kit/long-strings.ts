import { isAscii } from 'node:buffer'
import { randomUUID } from 'node:crypto'

type Reviver = (key: string, value: unknown) => unknown

/** From where to where, without its quotes. */
export type LongString = readonly [from: number, to: number]
/** Strings of more bytes are not parsed where they need not be: base64 of a file is bytes that stand for themselves. */
export const longBytes = 64 * 1024
const mostRest = 256 * 1024

/** Parses a body whose longest strings are cut out, and puts them back: reading megabytes letter by letter holds everybody up. */
export function parseAround(
  body: Buffer,
  long: readonly LongString[],
  guardOf: (text: Buffer) => Reviver | undefined,
): unknown {
  // No client can guess it.
  const mark = `${randomUUID()}:`
  const parts: Buffer[] = []
  const texts: string[] = []
  let at = 0
  for (const [from, to] of long) {
    const text = body.subarray(from, to)
    if (isKey(body, to) || text.includes(0x5c) || !isAscii(text) || hasControls(text)) continue
    parts.push(body.subarray(at, from), Buffer.from(mark + String(texts.length)))
    texts.push(text.toString('latin1'))
    at = to
  }
  const rest = Buffer.concat([...parts, body.subarray(at)])
  // Looking at each of very many values would cost more than it saves.
  if (rest.length > mostRest) return JSON.parse(body.toString('utf8'), guardOf(body))
  const guard = guardOf(rest)
  return JSON.parse(rest.toString('utf8'), (key, value: unknown) => {
    const known = guard ? guard(key, value) : value
    return typeof known === 'string' && known.startsWith(mark) ? texts[Number(known.slice(mark.length))] : known
  })
}

/** Whether a string that ends there is followed by a colon. */
function isKey(body: Buffer, quote: number): boolean {
  let at = quote + 1
  while (body[at]! <= 0x20) at++
  return body[at] === 0x3a
}

/** JSON has no control characters in its strings. Of ASCII alone: four bytes at a time, less a space each, borrow only for those. */
function hasControls(text: Buffer): boolean {
  const head = (4 - (text.byteOffset % 4)) % 4
  const words = new Uint32Array(text.buffer, text.byteOffset + head, (text.length - head) >> 2)
  for (let i = 0; i < words.length; i++) if ((words[i]! - 0x20202020) & 0x80808080) return true
  const isControl = (byte: number): boolean => byte < 0x20
  return text.subarray(0, head).some(isControl) || text.subarray(head + 4 * words.length).some(isControl)
}
