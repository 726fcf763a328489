import type { FastifyBaseLogger } from 'fastify'
import type { Claim, FinishRun, RunStore } from '#contracts/run-store'
import { join, lastSeqOf, type LogChunk } from '#contracts/run-event'
import { type Retries, retry } from '#kit'
import type { RunLimits } from './limits.ts'
import type { RunLog } from './log.ts'

/** What a killed conductor may lose of what its watchers have seen; never an ending. A model's stream costs ten writes a second. */
const flushAfterMs = 100
/** A write takes this much at least, unless it has waited long enough: a fast stream costs as few of them as it can. */
const flushBytes = 256 * 1024
/** Beyond this the run stops pulling from its runner: the store is slower than the model. */
const unstoredBytes = 2 * flushBytes
/** Between attempts to write. */
const waits = { firstMs: 50, factor: 3, longestMs: 2_000 }

/** Writes that fall due within it go together. */
const tickMs = 25

/**
 * When the recorders of a process write. What falls due at about the same time is written in one turn of the event loop, so that
 * the store can write it together.
 */
export class FlushClock {
  /** When each is due; in this order, since all wait equally long. */
  readonly #due = new Map<() => void, number>()
  #timer: NodeJS.Timeout | undefined

  /** Calls `flush` once, in a tenth of a second or a tick later. */
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

/** A delta is a small part of what a link read at once: kept as it came, it would hold all of that in memory. */
const owned = (lines: Buffer): Buffer => (lines.length * 4 < lines.buffer.byteLength ? Buffer.from(lines) : lines)

export interface RecorderDeps {
  readonly store: RunStore
  readonly flushes: FlushClock
  readonly log: FastifyBaseLogger
  readonly limits: Pick<RunLimits, 'logged' | 'stored' | 'ofRunner'>
  /** Wakes watchers in other processes. */
  readonly announce: (claim: Claim) => void
  /** Aborts when this process ends and must not keep trying. */
  readonly givingUp: AbortSignal
}

/** Stores a run's events in the background; watchers see its end only once it is stored. */
export class Recorder {
  readonly #deps: RecorderDeps
  readonly #claim: Claim
  readonly #log: RunLog
  readonly #onLost: () => void
  readonly #patience: Retries
  #pending: LogChunk[] = []
  #bytes = 0
  /** Of the write under way. */
  #inFlight = 0
  #flushing: Promise<void> | undefined
  #lost = false
  #hurry = false
  /** The attempt that begins with what is pending. */
  #attempt: number | undefined

  /** `onLost` is called once it is known that the claim is another's. */
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
   * Shows events to watchers at once and stores them soon, or as soon as may be. Resolves when there is room for more; mostly
   * returns undefined.
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
  /** Stores everything so far; with an attempt, that it begins. False: the claim was lost, or the store is given up. */
  async flush(attempt?: number): Promise<boolean> {
    this.#attempt = attempt
    while (this.#flushing || (this.#pending.length > 0 && !this.#lost)) await this.#startFlush()
    return !this.#lost
  }
  /** Takes the run back with everything that was stored of it. False: it could not be, and ends like any other. */
  async discard(): Promise<boolean> {
    const { store, log } = this.#deps
    await this.#rest()
    if (this.#lost) return false
    return store.discard(this.#claim).catch((err: unknown) => {
      log.warn({ err, runId: this.#claim.runId }, 'a refused run could not be taken back')
      return false
    })
  }
  /** Stores what is left with the terminal event, in one transaction. False: the claim was lost and nothing was written. */
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
    // The answer is stored once more, with the run or among the messages of its chat.
    limits.stored(claim.tenantId, end.result?.length ?? 0)
    return true
  }

  get #isFull(): boolean {
    return this.#bytes + this.#inFlight >= unstoredBytes
  }
  async #room(): Promise<void> {
    while (!this.#lost && this.#isFull) await this.#startFlush()
  }
  /** Begins no write, and waits for the one under way. */
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
  /** A failing store either comes back, or the lease of this process expires with it: then it answers false. */
  #persistently(write: () => Promise<boolean>): Promise<boolean> {
    return retry(write, this.#patience).catch(refused)
  }
}

const nothing = Promise.resolve()
const refused = (): boolean => false
