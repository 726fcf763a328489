/** Largest tool result that goes into a model's context and the event log. */
export const maxOutputBytes = 256 * 1024
const note = '\n[The output was cut here: it is longer than 256 KiB.]'

/** The text, or as much of it as fits with a note that says so; never half a character. */
export function bounded(text: string): string {
  // A UTF-16 unit is at most 3 bytes of UTF-8, so short text needs no count.
  if (text.length * 3 <= maxOutputBytes || Buffer.byteLength(text) <= maxOutputBytes) return text
  const bytes = Buffer.from(text.slice(0, maxOutputBytes))
  let end = maxOutputBytes - note.length
  while ((bytes[end]! & 0xc0) === 0x80) end--
  return bytes.toString('utf8', 0, end) + note
}
