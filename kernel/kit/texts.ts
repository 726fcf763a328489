import { isUtf8 } from 'node:buffer'
import { setImmediate as turn } from 'node:timers/promises'
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

/** About as many steps take a few milliseconds. Then others have their turn. */
const stepsAtOnce = 200_000
/** A look for the start of a form is as long as so many steps, and as one for so many bytes. */
const stepsOfLook = 50
const bytesOfStep = 8
/** Bytes that are searched without a turn in between, for all forms. */
const pieceBytes = 8 * 1024

/**
 * Replaces secret values in a host's answers by stars, one per byte, so that announced lengths stay correct. This protects against hosts that
 * repeat what they were sent; a host that intends to leak a value can always encode it differently. Answers are searched for each form of each
 * value, so their senders have `mostSecretsOfHost` values at most.
 */
export class Mask {
  readonly #forms: readonly Form[]

  constructor(values: readonly string[]) {
    const forms = values.filter((value) => value.length >= shortestSecret).flatMap(formsOf)
    this.#forms = [...new Map(forms.map((form) => [form.toString('latin1'), new Form(form)])).values()]
  }

  get empty(): boolean {
    return this.#forms.length === 0
  }
  text(text: string): string {
    if (this.empty) return text
    const masked = new Masked(this.#forms)
    return masked.add(Buffer.from(text, 'latin1')).toString('latin1') + masked.held.toString('latin1')
  }
  /** Holds back only bytes that may be the beginning of a value. Others have their turns meanwhile. */
  async *stream(body: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    if (this.empty) return yield* body
    const masked = new Masked(this.#forms)
    for await (const chunk of body) {
      for (let at = 0; at < chunk.length; at += pieceBytes) {
        const known = masked.add(chunk.subarray(at, at + pieceBytes))
        if (known.length > 0) yield known
        if (masked.steps < stepsAtOnce) continue
        masked.steps = 0
        await turn()
      }
    }
    if (masked.held.length > 0) yield masked.held
  }
}

/** Bytes that come in pieces, with stars for what must not be shown. */
class Masked {
  readonly #searches: readonly Search[]
  #held: Buffer = Buffer.alloc(0)
  /** About how many steps were taken. */
  steps = 0
  constructor(forms: readonly Form[]) {
    this.#searches = forms.map((form) => new Search(form))
  }

  /** The bytes that may be the beginning of a value. */
  get held(): Buffer {
    return this.#held
  }
  /** Takes a piece. Returns all bytes that are known by now. */
  add(piece: Buffer): Buffer {
    const before = this.#held.length
    const bytes = Buffer.concat([this.#held, piece])
    this.steps += Math.ceil(before / bytesOfStep)
    let open = 0
    for (const search of this.#searches) {
      let hidden = 0
      this.steps += search.add(piece, (from, to) => {
        // Occurrences may overlap: no byte is written for each of them.
        bytes.fill(star, Math.max(hidden, before + from), before + to)
        hidden = before + to
      })
      open = Math.max(open, search.open)
    }
    this.#held = bytes.subarray(bytes.length - open)
    return bytes.subarray(0, bytes.length - open)
  }
}

/** One form of a value. */
class Form {
  readonly bytes: Buffer
  /** The form is only where these few bytes are, which are found fast. */
  readonly start: Buffer
  #borders: Int32Array | undefined
  constructor(bytes: Buffer) {
    this.bytes = bytes
    this.start = bytes.subarray(0, shortestSecret)
  }

  /** Of each beginning of the form, how many of its last bytes are its first bytes as well. Most forms never need it. */
  get borders(): Int32Array {
    return (this.#borders ??= bordersOf(this.bytes))
  }
}

function bordersOf(bytes: Buffer): Int32Array {
  const borders = new Int32Array(bytes.length)
  let open = 0
  for (let at = 1; at < bytes.length; at++) {
    while (open > 0 && bytes[open] !== bytes[at]) open = borders[open - 1]!
    if (bytes[open] === bytes[at]) open++
    borders[at] = open
  }
  return borders
}

/**
 * Finds a form by the algorithm of Knuth, Morris and Pratt, in a step or two for each byte. Tenants choose both values and answers, and `indexOf` of
 * a long value compares half of it at each byte of an answer that was made for that.
 */
class Search {
  readonly #form: Form
  /** How many bytes of the form the last bytes were. */
  open = 0
  constructor(form: Form) {
    this.#form = form
  }

  /** Calls `found` for each occurrence; one that began in a piece before begins below zero. Returns about how many steps it took. */
  add(piece: Buffer, found: (from: number, to: number) => void): number {
    const { bytes, start } = this.#form
    let steps = Math.ceil(piece.length / bytesOfStep)
    let { open } = this
    let borders: Int32Array | undefined
    for (let at = 0; at < piece.length; at++, steps++) {
      if (open === 0) {
        const from = piece.indexOf(start, at)
        // A part of the start may be at the end.
        at = from >= 0 ? from : Math.max(at, piece.length - start.length + 1)
        steps += stepsOfLook
      }
      const byte = piece[at]
      if (open > 0 && bytes[open] !== byte) {
        borders ??= this.#form.borders
        do open = borders[open - 1]!
        while (open > 0 && bytes[open] !== byte)
      }
      if (bytes[open] === byte) open++
      if (open < bytes.length) continue
      found(at + 1 - open, at + 1)
      borders ??= this.#form.borders
      open = borders[open - 1]!
      steps += stepsOfLook
    }
    this.open = open
    return steps
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
