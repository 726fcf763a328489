import type { FastifyBaseLogger } from 'fastify'
import type { Claim, FinishRun, RunStore } from '#contracts/run-store'
import { writtenStage } from '#contracts/object-writes'
import {
  type EventType,
  hasStamp,
  isTerminalType,
  join,
  lastSeqOf,
  type LogChunk,
  parseLine,
  peekType,
} from '#contracts/run-event'
import { type Retries, retry } from '#kit'
import { waitingStages } from './delegations.ts'
import { type Ending, endingOf } from './ending.ts'
import type { RunLimits } from './limits.ts'
import type { RunLog } from './log.ts'
import type { RunnerStream } from './runner-stream.ts'
import type { RunUsage } from './usage.ts'

/**
 * Milliseconds. A killed conductor may lose this much of what its watchers have seen, but never an ending. A model's stream causes ten writes a
 * second.
 */
const flushAfterMs = 100
/** A write carries at least this many bytes, unless its events have waited long enough, so that a fast stream causes few writes. */
const flushBytes = 256 * 1024
/** Back-pressure: with more unstored bytes the run stops pulling from its runner, because the store is slower than the model. */
const unstoredBytes = 2 * flushBytes
/** Pauses between attempts to write. */
const waits = { firstMs: 50, factor: 3, longestMs: 2_000 }

/** Writes that fall due within this many milliseconds are made together. */
const tickMs = 25

/**
 * Decides when the recorders of a process write. Writes that fall due at about the same time are made in one turn of the event loop, so that the
 * store can combine them.
 */
export class FlushClock {
  /** When each write is due. Insertion order is due order, because all writes wait equally long. */
  readonly #due = new Map<() => void, number>()
  #timer: NodeJS.Timeout | undefined

  /** Calls `flush` once, after `flushAfterMs` or at most one tick later. */
  add(flush: () => void): void {
    if (this.#due.has(flush)) return
    this.#due.set(flush, performance.now() + flushAfterMs)
    if (this.#timer === undefined) this.#timer = setTimeout(this.#tick, flushAfterMs)
  }
  delete(flush: () => void): void {
    this.#due.delete(flush)
  }
  readonly #tick = (): void => {
    this.#timer = undefined
    const now = performance.now()
    const due: (() => void)[] = []
    for (const [flush, at] of this.#due) {
      if (at > now) break
      due.push(flush)
    }
    for (const flush of due) {
      this.#due.delete(flush)
      flush()
    }
    if (this.#due.size > 0 && this.#timer === undefined) this.#timer = setTimeout(this.#tick, tickMs)
  }
}

/** Copies small chunks: a delta is a small part of what a link read at once, and would keep all of that in memory. */
const owned = (lines: Buffer): Buffer => (lines.length * 4 < lines.buffer.byteLength ? Buffer.from(lines) : lines)

export interface RecorderDeps {
  readonly store: RunStore
  readonly flushes: FlushClock
  readonly log: FastifyBaseLogger
  readonly limits: Pick<RunLimits, 'logged' | 'stored' | 'ofRunner'>
  /** Wakes watchers in other processes. */
  readonly announce: (claim: Claim) => void
  /** Aborts when this process ends and must stop retrying. */
  readonly givingUp: AbortSignal
}

/** Stores a run's events in the background. Watchers see the run's end only once it is stored. */
export class Recorder {
  readonly #deps: RecorderDeps
  readonly #claim: Claim
  readonly #log: RunLog
  readonly #onLost: () => void
  readonly #patience: Retries
  #pending: LogChunk[] = []
  #bytes = 0
  /** Bytes of the write under way. */
  #inFlight = 0
  #flushing: Promise<void> | undefined
  #lost = false
  #hurry = false
  /** The attempt that begins with the pending events. */
  #attempt: number | undefined

  /** `onLost` is called once another process is known to hold the claim. */
  constructor(deps: RecorderDeps, claim: Claim, log: RunLog, onLost: () => void) {
    this.#deps = deps
    this.#claim = claim
    this.#log = log
    this.#onLost = onLost
    const mayPass = (err: unknown, attempt: number): boolean => {
      if (attempt === 1) deps.log.warn({ err, runId: claim.runId }, 'events could not be stored; trying again')
      return true
    }
    this.#patience = { ...waits, stopping: deps.givingUp, mayPass }
  }

  /**
   * Shows events to watchers at once and stores them soon, or with `atOnce` as soon as possible. Resolves when there is room for more; mostly
   * returns undefined, which means that there is.
   */
  add(arrived: LogChunk, atOnce = false): Promise<void> | undefined {
    const chunk = { ...arrived, lines: owned(arrived.lines) }
    this.#pending.push(chunk)
    this.#bytes += chunk.lines.length
    this.#log.append(chunk)
    this.#hurry ||= atOnce
    this.#schedule()
    return this.#isFull ? this.#room() : undefined
  }
  /** Records what the runner of a stopped run has written since, until `isOver` says that no more will come. */
  async lastWords(stream: RunnerStream, usage: RunUsage, isOver: () => boolean): Promise<void> {
    const { lastSeq } = this.#log
    const { runId } = this.#claim
    const events = new RunnerEvents(runId, lastSeq + 1, usage)
    try {
      for await (const bytes of stream.lastWords(lastSeq)) {
        if (isOver()) return
        const { passed, ending } = events.read(bytes)
        if (passed) void this.add(passed)
        if (ending) return
      }
    } catch (err) {
      this.#deps.log.warn({ err, runId }, 'what a stopped run has used last is not known')
    }
  }
  /** Stores everything so far and, if given, the begin of an attempt. False: the claim was lost, or the store was given up. */
  async flush(attempt?: number): Promise<boolean> {
    this.#attempt = attempt
    while (this.#flushing || (this.#pending.length > 0 && !this.#lost)) await this.#startFlush()
    return !this.#lost
  }
  /** Discards the run with everything that was stored of it. False: that was not possible, and the run ends like any other. */
  async discard(): Promise<boolean> {
    const { store, log } = this.#deps
    await this.#rest()
    if (this.#lost) return false
    return store.discard(this.#claim).catch((err: unknown) => {
      log.warn({ err, runId: this.#claim.runId }, 'a refused run could not be taken back')
      return false
    })
  }
  /** Stores the remaining events with the terminal event, in one transaction. False: the claim was lost and nothing was written. */
  async finish(end: Omit<FinishRun, 'claim' | 'tail'>, terminal: LogChunk): Promise<boolean> {
    const { store, announce, limits } = this.#deps
    const claim = this.#claim
    if (this.#flushing) await this.#rest()
    this.#pending.push(terminal)
    const tail = this.#take()
    if (this.#lost) return false
    const written = await this.#persistently(() => store.finish({ ...end, claim, tail }))
    if (!written) return false
    announce(claim)
    limits.logged(claim.tenantId, tail!.lines.length)
    // The answer is stored a second time, with the run or among the messages of its chat.
    limits.stored(claim.tenantId, end.result?.length ?? 0)
    return true
  }

  get #isFull(): boolean {
    return this.#bytes + this.#inFlight >= unstoredBytes
  }
  async #room(): Promise<void> {
    while (!this.#lost && this.#isFull) await this.#startFlush()
  }
  /** Stops new writes and waits for the one under way. */
  async #rest(): Promise<void> {
    this.#deps.flushes.delete(this.#due)
    while (this.#flushing) await this.#flushing
  }
  #schedule(): void {
    if (this.#flushing || this.#lost || this.#pending.length === 0) return
    if (this.#hurry || this.#bytes >= flushBytes) void this.#startFlush()
    else this.#deps.flushes.add(this.#due)
  }
  readonly #due = (): void => void this.#startFlush()
  #startFlush(): Promise<void> {
    if (this.#flushing) return this.#flushing
    const chunk = this.#take()
    return chunk && !this.#lost ? (this.#flushing = this.#flush(chunk)) : nothing
  }
  async #flush(chunk: LogChunk): Promise<void> {
    const { store, announce, limits } = this.#deps
    const claim = this.#claim
    this.#inFlight = chunk.lines.length
    const attempt = this.#attempt
    this.#attempt = undefined
    try {
      const owned = await this.#persistently(() =>
        attempt === undefined ? store.append(claim, chunk) : store.retry(claim, attempt, chunk),
      )
      this.#inFlight = 0
      if (owned) {
        this.#log.stored(lastSeqOf(chunk))
        announce(claim)
        limits.logged(claim.tenantId, chunk.lines.length)
      } else {
        this.#lost = true
        this.#onLost()
      }
    } finally {
      this.#flushing = undefined
      this.#schedule()
    }
  }
  #take(): LogChunk | undefined {
    const chunk = join(this.#pending)
    this.#pending = []
    this.#bytes = 0
    this.#hurry = false
    this.#deps.flushes.delete(this.#due)
    return chunk
  }
  /** Retries until the store is back. Otherwise the lease of this process expires, and the write answers false. */
  #persistently(write: () => Promise<boolean>): Promise<boolean> {
    return retry(write, this.#patience).catch(refused)
  }
}

const nothing = Promise.resolve()
const refused = (): boolean => false

/** What a chunk contains. Nothing after an ending is read. */
interface Read {
  readonly passed: LogChunk | undefined
  readonly ending: Ending | undefined
  /** The chunk has a tool call or a result, neither of which may happen twice. */
  readonly tools: boolean
  /** A tool call waits for a delegated run, for a conductor to call an app or a conductor tool, or for a person. The runner knows which. */
  readonly delegates: boolean
  /** The agent wrote to the object store. The runner knows what. */
  readonly writes: boolean
}

const maxCode = 128
const maxMessage = 4_000
const newline = 0x0a
const bells = waitingStages.map((stage) => Buffer.from(`"stage":"${stage}"`))
const written = Buffer.from(`"stage":"${writtenStage}"`)

/** Takes in what a runner streams in one attempt. Lines pass unchanged, and only lines that the run must remember are parsed. */
export class RunnerEvents {
  readonly #runId: string
  readonly #firstSeq: number
  readonly #usage: RunUsage
  #seq: number

  constructor(runId: string, firstSeq: number, usage: RunUsage) {
    this.#runId = runId
    this.#firstSeq = this.#seq = firstSeq
    this.#usage = usage
  }

  /** `bytes` are whole lines. */
  read(bytes: Buffer): Read {
    const firstSeq = this.#seq
    let start = 0
    let tools = false
    let delegates = false
    let writes = false
    let ending: Ending | undefined
    while (start < bytes.length) {
      // There are about twenty deltas per other line, and nothing of a delta must be remembered.
      if (this.#seq > this.#firstSeq && this.#usage.isPastSandbox(this.#seq)) start = this.#skipDeltas(bytes, start)
      if (start === bytes.length) break
      const end = bytes.indexOf(newline, start)
      const line = bytes.subarray(start, end < 0 ? bytes.length : end)
      const type = end < 0 ? undefined : peekType(line)
      ending = type ? this.#understand(type, line) : endingOf('runner_protocol')
      if (ending) break
      tools ||= type === 'tool_call' || type === 'tool_result'
      delegates ||= type === 'progress' && bells.some((stage) => line.includes(stage))
      writes ||= type === 'progress' && line.includes(written)
      this.#seq++
      start = end + 1
    }
    const count = this.#seq - firstSeq
    const passed = count === 0 ? undefined : { firstSeq, count, lines: bytes.subarray(0, start) }
    return { passed, ending, tools, delegates, writes }
  }

  /** Counts the deltas from `from` on, and returns where the first other line begins. */
  #skipDeltas(bytes: Buffer, from: number): number {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
    let start = from
    const first = this.#seq
    while (isDelta(view, start)) {
      const end = bytes.indexOf(newline, start)
      if (end < 0) break
      this.#seq++
      start = end + 1
    }
    if (start > from) this.#usage.said(this.#seq - first, start - from)
    return start
  }
  #understand(type: EventType, line: Buffer): Ending | undefined {
    // The first stamp proves that runner and conductor count alike. Later lines are only counted.
    if (this.#seq === this.#firstSeq && !hasStamp(line, this.#runId, this.#seq)) return endingOf('runner_protocol')
    if (!this.#usage.read(type, line, this.#seq)) return endingOf('runner_protocol')
    if (!isTerminalType(type)) return undefined
    const event = parseLine(line)
    if (!event) return endingOf('runner_protocol')
    const { text, code, message } = event
    const withEnd = Buffer.from(line.buffer, line.byteOffset, line.length + 1)
    if (type === 'result') return { status: 'ok', result: textOf(text), line: withEnd }
    // Cut the message: the log has the whole text, and the summary appears in lists.
    const told = { code: textOf(code, 'runtime').slice(0, maxCode), message: textOf(message).slice(0, maxMessage) }
    return { status: 'error', ...told, line: withEnd }
  }
}

const deltaHead = '{"type":"assistant",'
const deltaWords = Array.from({ length: deltaHead.length / 4 }, (_, i) => Buffer.from(deltaHead).readUInt32BE(4 * i))
/** Compares by hand, a word at a time: one call of `compare` costs more than the rest of the scan. */
function isDelta(view: DataView, start: number): boolean {
  if (start + deltaHead.length > view.byteLength) return false
  for (let i = 0; i < deltaWords.length; i++) if (view.getUint32(start + 4 * i) !== deltaWords[i]) return false
  return true
}
const textOf = (value: unknown, fallback = ''): string => (typeof value === 'string' ? value : fallback)
