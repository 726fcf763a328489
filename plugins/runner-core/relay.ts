import {
  createEventEncoder,
  type EventEncoder,
  hasStamp,
  isTerminalType,
  parseLine,
  peekType,
  type RuntimeEvent,
} from '#contracts/run-event'
import { readUnstamped } from '#contracts/unstamped-event'
import { linesOf, maxLineBytes } from '#kernel'
import { type EndReason, sentences } from './errors.ts'
import { createRestamping } from './restamp.ts'

export interface RelayHooks {
  /** The vendor's conversation handle, when the sidecar reports one. */
  readonly onHandle: (runtimeSessionId: string) => void
  /** Called before the terminal line is handed on: whoever sees it may start the session's next run at once. */
  readonly onEnd: (terminal: 'result' | 'error') => void
  /** It is a worker in a sandbox, which an agent may speak for: each of its lines is read and written anew. */
  readonly distrusted?: boolean
}

/**
 * Watches one run's stream line by line without parsing its deltas. Lines that carry our stamps go on as the bytes they
 * came in; a sidecar that does not stamp (seen at its first line) has every line parsed and stamped here.
 */
export interface Relay {
  /** Who wrote the terminal line; once set, nothing may follow. */
  readonly endedBy: 'sidecar' | 'runner' | undefined
  /** Seq of the next line. */
  readonly next: number
  /** A line of the runner's own, before the sidecar has begun. */
  own(event: RuntimeEvent): Buffer
  /** A line between those of the sidecar. */
  insert(event: RuntimeEvent): Buffer
  /** What of a chunk goes on. After a line that is no event this holds the `error` that ends the run. */
  pass(chunk: Buffer): Buffer
  /** The line that ends a run which did not end itself. */
  end(reason: EndReason): Buffer
  fail(code: string, message: string, retryable: boolean): Buffer
}

export function createRelay(runId: string, sessionId: string, firstSeq: number, hooks: RelayHooks): Relay {
  let encoder: EventEncoder = createEventEncoder(runId, sessionId, firstSeq)
  let next = firstSeq
  let stamped: boolean | undefined
  const restamping = createRestamping(runId, sessionId)
  let endedBy: Relay['endedBy']
  /** What an unstamped run said so far. */
  const answer: string[] = []
  let answerLength = 0
  const write = (event: RuntimeEvent): Buffer => {
    if (encoder.next !== next) encoder = createEventEncoder(runId, sessionId, next)
    const line = Buffer.from(encoder.line(event))
    next++
    return line
  }
  const finish = (by: 'sidecar' | 'runner', terminal: 'result' | 'error'): void => {
    endedBy = by
    hooks.onEnd(terminal)
  }
  const fail = (code: string, message: string, retryable: boolean): Buffer => {
    finish('runner', 'error')
    return write({ type: 'error', code, message, ...(retryable ? { retryable } : {}) })
  }
  const end = (reason: EndReason): Buffer => fail(reason, sentences[reason], mayRetry.has(reason))
  /** True when the line may go on as it is. */
  const sound = (line: Buffer): boolean => {
    // A delta is only looked at from both ends: it is nine lines in ten, and parsing it at every hop costs threefold.
    if (isDelta(line)) return line[line.length - 1] === closingBrace
    const type = peekType(line)
    const event = type && parseLine(line)
    if (!event || !hasStamp(line, runId, next - restamping.shift)) return false
    if (type === 'session_init') takeHandle(event['runtimeSessionId'])
    if (isTerminalType(type)) finish('sidecar', type)
    return true
  }
  const takeHandle = (handle: unknown): void => {
    if (typeof handle === 'string' && sendable.test(handle)) hooks.onHandle(handle)
  }
  const passStamped = (chunk: Buffer): Buffer => {
    if (restamping.shift > 0) return passShifted(chunk)
    let start = 0
    while (start < chunk.length) {
      const lineEnd = chunk.indexOf(0x0a, start)
      const stop = lineEnd < 0 ? chunk.length : lineEnd
      if (!sound(chunk.subarray(start, stop))) return Buffer.concat([chunk.subarray(0, start), end('bad_event')])
      next++
      start = stop + 1
      if (endedBy) return chunk.subarray(0, start)
    }
    return chunk
  }
  const passShifted = (chunk: Buffer): Buffer => {
    const out: Buffer[] = []
    for (const line of linesOf(chunk)) {
      const other = sound(line) ? restamping.line(line, next - restamping.shift) : undefined
      if (!other) return Buffer.concat([...out, end('bad_event')])
      next++
      out.push(other, newline)
      if (endedBy) break
    }
    return Buffer.concat(out)
  }
  /** JSON can nest so deep that it parses and still overflows the stack when written. */
  const writable = (event: RuntimeEvent): Buffer | undefined => {
    try {
      return write(event)
    } catch {
      return undefined
    }
  }
  const keep = (text: string): void => {
    const kept = text.slice(0, maxAnswer - answerLength)
    answerLength += kept.length
    if (kept !== '') answer.push(kept)
  }
  const restamp = (chunk: Buffer): Buffer => {
    const out: Buffer[] = []
    for (const line of chunk.toString('utf8').split('\n')) {
      if (line.trim() === '') continue
      const said = parseLine(Buffer.from(line))
      const event = said && readUnstamped(said, () => answer.join(''))
      if (!event) return Buffer.concat([...out, end('bad_event')])
      if (hooks.distrusted && event.type === 'progress' && event.supersedes !== undefined) {
        event.supersedes = restamping.mapped(event.supersedes)
      }
      if (event.type === 'session_init') takeHandle(event.runtimeSessionId)
      if (event.type === 'assistant') keep(event.text)
      const written = writable(event)
      if (!written) return Buffer.concat([...out, end('bad_event')])
      if (isTerminalType(event.type)) finish('sidecar', event.type)
      out.push(written)
      if (endedBy) break
    }
    return Buffer.concat(out)
  }
  return {
    get endedBy() {
      return endedBy
    },
    get next() {
      return next
    },
    own: write,
    insert(event) {
      // A sidecar that does not stamp has its lines counted as they come.
      if (stamped !== false || hooks.distrusted) restamping.insert(next - restamping.shift)
      return write(event)
    },
    pass(chunk) {
      if (oversized(chunk)) return end('bad_event')
      stamped ??= !hooks.distrusted && hasStamp(firstLine(chunk), runId, next - restamping.shift)
      return stamped ? passStamped(chunk) : restamp(chunk)
    },
    end,
    fail,
  }
}

/** Longest answer put together here: a line holds it even if each UTF-16 unit takes six bytes of JSON. */
const maxAnswer = Math.floor((maxLineBytes - 4_096) / 6)
/** A handle travels in a header of the state routes. */
const sendable = /^[\x21-\x7e]{1,1024}$/
const closingBrace = 0x7d
const newline = Buffer.from('\n')
const deltaHead = Buffer.from('{"type":"assistant","runId":"')
const isDelta = (line: Buffer): boolean =>
  line.length > deltaHead.length && line.compare(deltaHead, 0, deltaHead.length, 0, deltaHead.length) === 0

const firstLine = (chunk: Buffer): Buffer => {
  const end = chunk.indexOf(0x0a)
  return end < 0 ? chunk : chunk.subarray(0, end)
}

/** A link that cuts lines bounds them itself; an in-process one may not. */
function oversized(chunk: Buffer): boolean {
  if (chunk.length <= maxLineBytes) return false
  for (let start = 0; start < chunk.length;) {
    const end = chunk.indexOf(0x0a, start)
    if ((end < 0 ? chunk.length : end) - start > maxLineBytes) return true
    if (end < 0) return false
    start = end + 1
  }
  return false
}

/** Nothing is wrong with the run itself: another attempt may succeed. */
const mayRetry: ReadonlySet<EndReason> = new Set(['sidecar_lost', 'runner_stopping'])
