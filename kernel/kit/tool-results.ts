import { isUtf8 } from 'node:buffer'

/** The most bytes of a tool result that goes into a model's context and the log of a run. */
export const mostResultBytes = 256 * 1024
/** The most bytes of a file that a tool shows: a little less, to leave room for the text around it. */
export const mostShownBytes = 240 * 1024

const note = '\n[The output was cut here: it is longer than 256 KiB.]'

/** The text, or as much of it as fits, with a note that it was cut. It never cuts a character in half. */
export function boundedResult(text: string): string {
  // A UTF-16 unit is at most 3 bytes of UTF-8, so short text need not be measured.
  if (text.length * 3 <= mostResultBytes || Buffer.byteLength(text) <= mostResultBytes) return text
  const bytes = Buffer.from(text.slice(0, mostResultBytes))
  let end = mostResultBytes - note.length
  while ((bytes[end]! & 0xc0) === 0x80) end--
  return bytes.toString('utf8', 0, end) + note
}

/** The part of a file without an incomplete character at its end. The next part contains that character as a whole. */
export function wholeCharacters(part: Buffer): Buffer {
  for (let cut = 0; cut <= 3; cut++) {
    const whole = part.subarray(0, part.length - cut)
    if (isUtf8(whole)) return whole
  }
  return part
}
