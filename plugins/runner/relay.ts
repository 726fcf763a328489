import { linesOf, maxLineBytes } from '#kernel'
import { type EndingCode, type EndingKind, endings } from '#contracts/endings'
import {
  calledStage,
  createEventEncoder,
  type EventEncoder,
  hasStamp,
  isTerminalType,
  parseLine,
  peekType,
  readUnstamped,
  type RuntimeEvent,
  unsaidCallsStage,
} from '#contracts/run-event'
import { type FailingStop } from '#contracts/runner'
import type { MeasuredCalls } from '#contracts/workers'
import { measureJson } from '#kit'

/** Why the runner ended a run, as the code of the run's `error` event. */
export type EndCode =
  | FailingStop
  | (EndingCode & ('cancelled' | 'runner_stopping' | 'session_shutdown' | 'sidecar_lost' | 'bad_event'))

/** The line that ended a run, and its code when it is an `error`. */
export interface Terminal {
  readonly by: 'sidecar' | 'runner'
  readonly code: string | undefined
}

/**
 * Watches one run's stream line by line without parsing its deltas. Lines with our stamps (`seq`, `runId`) pass as the bytes in which they arrived.
 * If the sidecar does not stamp, which its first line shows, or is distrusted, all its lines are parsed and stamped here. The sidecar does not know
 * of lines that tools insert, so after the first inserted line each of its lines gets another `seq`. Where the runner measures a worker's model
 * calls, the worker's own usage lines are dropped.
 */
export class Relay {
  readonly #runId: string
  readonly #sessionId: string
  readonly #distrusted: boolean
  readonly #head: Buffer
  #encoder: EventEncoder
  #next: number
  #stamped: boolean | undefined
  #terminal: Terminal | undefined
  #handle: string | undefined
  /** The sidecar's `seq` before which each inserted line stands, ascending. */
  readonly #inserted: number[] = []
  /** The sidecar's `seq` of each dropped line, ascending. */
  readonly #dropped: number[] = []
  /** How many tool calls were executed here, and how many the lines report. */
  #called = 0
  #told = 0
  /** The measurement of the run's model calls, if the runner measures them. */
  #calls: MeasuredCalls | undefined
  /** The text so far, kept only for an unstamped run. */
  #answer: string[] = []
  #answerLength = 0

  /** `distrusted`: the lines come from a worker in a sandbox, where the agent's own code could write them. */
  constructor(runId: string, sessionId: string, firstSeq: number, distrusted: boolean) {
    this.#runId = runId
    this.#sessionId = sessionId
    this.#distrusted = distrusted
    this.#head = Buffer.from(`","runId":${JSON.stringify(runId)},"sessionId":${JSON.stringify(sessionId)},"seq":`)
    this.#encoder = createEventEncoder(runId, sessionId, firstSeq)
    this.#next = firstSeq
  }

  /** Seq of the next line. */
  get next(): number {
    return this.#next
  }
  /** The line that ended the run. Nothing may follow it. */
  get terminal(): Terminal | undefined {
    return this.#terminal
  }
  /** The vendor's conversation handle, when the sidecar has reported one. */
  get handle(): string | undefined {
    return this.#handle
  }

  /** From now on drops the sidecar's usage and inserts the measured usage instead, the last of it before the end. */
  measuredBy(calls: MeasuredCalls): void {
    this.#calls = calls
  }
  /** A line that the runner writes before the sidecar has begun. */
  own(event: RuntimeEvent): Buffer {
    if (this.#encoder.next !== this.#next) {
      this.#encoder = createEventEncoder(this.#runId, this.#sessionId, this.#next)
    }
    const line = Buffer.from(this.#encoder.line(event))
    this.#next++
    return line
  }
  /** A line that the runner inserts between those of the sidecar. */
  insert(event: RuntimeEvent): Buffer {
    if (event.type === 'progress' && event.stage === calledStage) {
      this.#called++
      return nothing
    }
    // Lines of a sidecar that does not stamp are numbered as they arrive, so inserting shifts nothing.
    if (this.#stamped !== false || this.#distrusted) this.#inserted.push(this.#due)
    return this.own(event)
  }
  /** The part of a chunk that passes on. After a line that is no event this is the `error` that ends the run. */
  pass(chunk: Buffer): Buffer {
    if (oversized(chunk)) return this.end('bad_event')
    this.#stamped ??= !this.#distrusted && hasStamp(firstLine(chunk), this.#runId, this.#due)
    if (!this.#stamped) return this.#restamp(chunk)
    return this.#passStamped(chunk)
  }
  /** The terminal line of a run that did not end itself. */
  end(reason: EndCode): Buffer {
    return this.fail(reason, endings[reason].message, 'lost' in endings[reason])
  }
  fail(code: string, message: string, retryable: boolean): Buffer {
    const usage = this.#lastUsage()
    this.#finish('runner', code)
    return Buffer.concat([usage, this.own({ type: 'error', code, message, ...(retryable ? { retryable } : {}) })])
  }

  /** The stamp that the sidecar's next line must have. */
  get #due(): number {
    return this.#next - this.#inserted.length + this.#dropped.length
  }
  /** Ends the model calls of a run that ends. Returns the lines with their usage, and with tool calls that the worker did not report. */
  #lastUsage(): Buffer {
    const unsaid = this.#distrusted ? this.#called - this.#told : 0
    this.#called = this.#told
    const last: RuntimeEvent[] = [...(this.#calls?.end() ?? [])]
    if (unsaid > 0) last.push({ type: 'progress', stage: unsaidCallsStage, count: unsaid })
    return Buffer.concat(last.map((event) => this.insert(event)))
  }
  #finish(by: Terminal['by'], code: unknown): void {
    this.#terminal = { by, code: code === undefined ? undefined : String(code) }
    this.#answer = []
  }
  #saw(event: Readonly<Record<string, unknown>>): void {
    const { type, runtimeSessionId: handle } = event
    if (type === 'session_init' && typeof handle === 'string' && sendable.test(handle)) this.#handle = handle
    if (type === 'result') this.#finish('sidecar', undefined)
    if (type === 'error') this.#finish('sidecar', event['code'] ?? '')
  }
  /** Checks each line in place: a delta, nine lines in ten, only at both its ends. Parsing every line at every hop would cost three times as much. */
  #passStamped(chunk: Buffer): Buffer {
    const view = new DataView(chunk.buffer, chunk.byteOffset, chunk.length)
    const shifted: Buffer[] | undefined = this.#inserted.length > 0 ? [] : undefined
    for (let start = 0, next = 0; start < chunk.length; start = next) {
      const newlineAt = chunk.indexOf(0x0a, start)
      const end = newlineAt < 0 ? chunk.length : newlineAt
      next = end + 1
      const sound = isDelta(view, start, end)
        ? chunk[end - 1] === closingBrace
        : this.#sound(chunk.subarray(start, end))
      const line = sound && shifted ? this.#shifted(chunk.subarray(start, end)) : undefined
      if (!sound || (shifted && !line)) {
        return Buffer.concat([...(shifted ?? [chunk.subarray(0, start)]), this.end('bad_event')])
      }
      this.#next++
      if (line) shifted!.push(line, newline)
      if (this.#terminal) return shifted ? Buffer.concat(shifted) : chunk.subarray(0, next)
    }
    return shifted ? Buffer.concat(shifted) : chunk
  }
  /** Reads a line that is no delta for what the runner must know. False: the line is no valid event. */
  #sound(line: Buffer): boolean {
    const event = peekType(line) && parseLine(line)
    if (!event || !hasStamp(line, this.#runId, this.#due)) return false
    this.#saw(event)
    return true
  }
  /** The line with the `seq` that readers see. Undefined when it does not have the expected `seq`. */
  #shifted(line: Buffer): Buffer | undefined {
    const seq = this.#due
    const start = line.indexOf(this.#head)
    if (start < 0 || start > latestStart) return undefined
    const from = start + this.#head.length
    const digits = String(seq)
    if (line.toString('latin1', from, from + digits.length + 1) !== `${digits},`) return undefined
    // `supersedes` names another line by its `seq`, so it is mapped too. This is rare, so it may be slow.
    if (line.includes('"supersedes":')) {
      const event = parseLine(line)
      if (event?.['type'] === 'progress' && typeof event['supersedes'] === 'number') {
        const supersedes = this.#mapped(event['supersedes'])
        return Buffer.from(JSON.stringify({ ...event, seq: this.#mapped(seq), supersedes }))
      }
    }
    const stamp = Buffer.from(String(this.#mapped(seq)))
    return Buffer.concat([line.subarray(0, from), stamp, line.subarray(from + digits.length)])
  }
  /** The `seq` that readers see for the sidecar's line `seq`. */
  #mapped(seq: number): number {
    return seq + upTo(this.#inserted, seq) - upTo(this.#dropped, seq - 1)
  }
  #restamp(chunk: Buffer): Buffer {
    const out: Buffer[] = []
    for (const text of chunk.toString('utf8').split('\n')) {
      if (text.trim() === '') continue
      if (!this.#restamped(text, out)) out.push(this.end('bad_event'))
      if (this.#terminal) break
    }
    return Buffer.concat(out)
  }
  /** Parses a line and adds its stamped event to `out`. False: the line is no valid event. */
  #restamped(text: string, out: Buffer[]): boolean {
    const line = Buffer.from(text)
    // What has fewer bytes has fewer values.
    if (this.#distrusted && line.length > mostParts && measureJson(line).parts > mostParts) return false
    const said = parseLine(line)
    const event = said && readUnstamped(said, () => this.#answer.join(''))
    if (!event) return false
    if (this.#distrusted && event.type === 'progress' && event.supersedes !== undefined) {
      event.supersedes = this.#mapped(event.supersedes)
    }
    if (event.type === 'assistant') this.#remember(event.text)
    if (event.type === 'usage' && this.#calls) {
      this.#dropped.push(this.#due)
      return true
    }
    if (event.type === 'tool_call') this.#told++
    if (isTerminalType(event.type)) out.push(this.#lastUsage())
    try {
      out.push(this.own(event))
      this.#saw(event)
      return true
    } catch {
      // JSON can be nested so deeply that it parses and still overflows the stack when written.
      return false
    }
  }
  #remember(text: string): void {
    const kept = text.slice(0, maxAnswer - this.#answerLength)
    this.#answerLength += kept.length
    if (kept !== '') this.#answer.push(kept)
  }
}

/** How many of the ascending `seqs` are at most `most`. A binary search, because a worker's tool calls determine their number. */
function upTo(seqs: readonly number[], most: number): number {
  let low = 0
  for (let high = seqs.length; low < high;) {
    const middle = (low + high) >>> 1
    if (seqs[middle]! <= most) low = middle + 1
    else high = middle
  }
  return low
}

/** The longest answer that is assembled here, in UTF-16 units. A line can hold it even if each unit takes six bytes of JSON. */
const maxAnswer = Math.floor((maxLineBytes - 4_096) / 6)
/** The most values and names of a line of a worker. It is parsed, checked and written again in one step, in which no other run goes on. */
const mostParts = 50_000
/** Only such handles are kept, because a handle travels in a header of the state routes. */
const sendable = /^[\x21-\x7e]{1,1024}$/
/** The stamp follows the type, so it begins within this many bytes. */
const latestStart = 40
const closingBrace = 0x7d
const newline = Buffer.from('\n')
const nothing = Buffer.alloc(0)
const deltaHead = Buffer.from('{"type":"assistant","runId":"')
const [head0, head8, head16] = [0, 8, 16].map((at) => deltaHead.readDoubleLE(at))
const head21 = deltaHead.readDoubleLE(21)
/**
 * Compares eight bytes at a time as a float, which works because ASCII is no NaN. Byte by byte, or with `compare`, this would cost more than
 * everything else that is done with a line.
 */
const isDelta = (chunk: DataView, start: number, end: number): boolean =>
  end - start > deltaHead.length &&
  chunk.getFloat64(start, true) === head0 &&
  chunk.getFloat64(start + 8, true) === head8 &&
  chunk.getFloat64(start + 16, true) === head16 &&
  chunk.getFloat64(start + 21, true) === head21

const firstLine = (chunk: Buffer): Buffer => {
  const end = chunk.indexOf(0x0a)
  return end < 0 ? chunk : chunk.subarray(0, end)
}

/** A link that cuts lines limits them itself. An in-process link may not. */
const oversized = (chunk: Buffer): boolean =>
  chunk.length > maxLineBytes && linesOf(chunk).some((line) => line.length > maxLineBytes)

/** Specification 3.1: only a run that fails leaves its session errored. */
export function statusAfter({ code }: Terminal): 'idle' | 'errored' {
  const kinds: Readonly<Record<string, EndingKind>> = endings
  return code === undefined || (kinds[code]?.status ?? 'error') !== 'error' ? 'idle' : 'errored'
}
