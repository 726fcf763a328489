import { isUtf8 } from 'node:buffer'
import { shortestSecret } from '#contracts/egress'

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

/** Text without characters that PostgreSQL refuses. */
export const storable = (text: string): string => text.toWellFormed().replaceAll('\0', '\uFFFD')

/** JSON without the escapes that PostgreSQL refuses to read: NUL, and halves of surrogate pairs, which `JSON.stringify` writes as escapes. */
export const storableJson = (value: unknown): string =>
  (JSON.stringify(value) ?? 'null').replaceAll(/(?<!\\)((?:\\\\)*)\\u(?:0000|d[89a-f][0-9a-f]{2})/g, '$1\\ufffd')

const star = 0x2a

/**
 * Replaces secret values in a host's answers by stars, one per byte, so that announced lengths stay correct. This protects against hosts that
 * repeat what they were sent; a host that intends to leak a value can always encode it differently.
 */
export class Mask {
  readonly #needles: readonly Buffer[]
  readonly #firstBytes: ReadonlySet<number>
  readonly #longest: number

  constructor(values: readonly string[]) {
    const forms = values.filter((value) => value.length >= shortestSecret).flatMap(formsOf)
    const distinct = [...new Map(forms.map((form) => [form.toString('latin1'), form])).values()]
    // Longer forms first, because a longer form may contain a shorter one.
    this.#needles = distinct.toSorted((a, b) => b.length - a.length)
    this.#firstBytes = new Set(this.#needles.map((needle) => needle[0]!))
    this.#longest = this.#needles[0]?.length ?? 0
  }

  get empty(): boolean {
    return this.#needles.length === 0
  }
  text(text: string): string {
    return this.empty ? text : this.bytes(Buffer.from(text, 'latin1')).toString('latin1')
  }
  bytes(bytes: Buffer): Buffer {
    let hidden = bytes
    for (const needle of this.#needles) {
      for (let at = hidden.indexOf(needle); at >= 0; at = hidden.indexOf(needle, at + needle.length)) {
        if (hidden === bytes) hidden = Buffer.from(bytes)
        hidden.fill(star, at, at + needle.length)
      }
    }
    return hidden
  }
  /** Holds back only bytes that may be the beginning of a value. */
  async *stream(body: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    if (this.empty) return yield* body
    let held: Buffer = Buffer.alloc(0)
    for await (const chunk of body) {
      const bytes = this.bytes(held.length === 0 ? chunk : Buffer.concat([held, chunk]))
      const known = bytes.length - this.#open(bytes)
      held = bytes.subarray(known)
      if (known > 0) yield bytes.subarray(0, known)
    }
    if (held.length > 0) yield held
  }

  /** How many bytes at the end may be the beginning of a value. */
  #open(bytes: Buffer): number {
    for (let at = Math.max(0, bytes.length - this.#longest + 1); at < bytes.length; at++) {
      if (!this.#firstBytes.has(bytes[at]!)) continue
      const rest = bytes.subarray(at)
      if (this.#needles.some((one) => one.length > rest.length && one.subarray(0, rest.length).equals(rest)))
        return rest.length
    }
    return 0
  }
}

/** The value as it was sent, in UTF-8, in JSON, for a URL, and in base64 at every alignment. */
function formsOf(value: string): readonly Buffer[] {
  const bytes = Buffer.from(value, 'latin1')
  const base64 = [0, 1, 2].map((shift) => {
    const text = Buffer.concat([Buffer.alloc(shift), bytes]).toString('base64')
    // Leave out the characters that depend on neighbouring bytes.
    return text.slice(Math.ceil((shift * 8) / 6), Math.floor(((shift + bytes.length) * 8) / 6))
  })
  const url = base64.map((text) => text.replaceAll('+', '-').replaceAll('/', '_'))
  const written = [value, JSON.stringify(value).slice(1, -1), encodeURIComponent(value), bytes.toString('hex')]
  return [bytes, ...[...written, ...base64, ...url].map((text) => Buffer.from(text))]
}
