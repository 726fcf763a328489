import type { Kv } from '#contracts/kv'
import { runErrors } from '#contracts/run-errors'
import { after, endsLog, lastSeqOf, type LogChunk } from '#contracts/run-event'
import type { RunStore } from '#contracts/run-store'
import { isTerminal } from '#contracts/runs'

/**
 * How many already stored bytes a live run keeps in memory, beyond what connected readers still lack. They serve a reader that connects now; a
 * later one reads the store. With thousands of open streams this is most of the memory of each.
 */
const keptBytes = 4 * 1024
const mostBytes = 1024 * 1024
/** Bytes of the objects around a chunk, which exceed the size of a delta. */
const chunkOverhead = 400
const weightOf = ({ lines }: LogChunk): number => lines.length + chunkOverhead

/** A reader's place in the log, and how to wake it. */
export interface Cursor {
  seq: number
  wake(): void
}

/** What a log has for a cursor: events, nothing yet, or events that only the store has. */
export type Found = LogChunk | 'later' | 'stored'

/**
 * The live log of one run: its newest events as they arrived. Events that are stored and that every reader has seen leave memory. A slow reader
 * continues from the store.
 */
export class RunLog {
  readonly #most: number
  readonly #cursors = new Set<Cursor>()
  #held: LogChunk[] = []
  #bytes = 0
  #storedSeq = 0
  #lastSeq = 0
  /** The terminal event alone, for readers that are past it or want nothing else. */
  #ending: LogChunk | undefined
  #detached = false

  constructor(most = mostBytes) {
    this.#most = most
  }
  get lastSeq(): number {
    return this.#lastSeq
  }
  /** The `seq` up to which all events are durable. */
  get storedSeq(): number {
    return this.#storedSeq
  }
  /** True when the run was taken from this process, so that later events are only in the store. */
  get detached(): boolean {
    return this.#detached
  }
  append(chunk: LogChunk): void {
    this.#held.push(chunk)
    this.#bytes += weightOf(chunk)
    this.#lastSeq = lastSeqOf(chunk)
    // Whoever stores the terminal event appends it here, after it is stored.
    if (endsLog(chunk)) this.#ending = after(chunk, this.#lastSeq - 1)
    this.#trim()
    this.#wake()
  }
  stored(seq: number): void {
    this.#storedSeq = Math.max(this.#storedSeq, seq)
    this.#trim()
  }
  /** Makes the log begin after `seq`, because earlier events are in the store. Call it before anything is appended. */
  begin(seq: number): void {
    this.#lastSeq = this.#storedSeq = seq
    this.#wake()
  }
  detach(): void {
    this.#detached = !this.#ending
    this.#wake()
  }
  add(cursor: Cursor): void {
    this.#cursors.add(cursor)
  }
  remove(cursor: Cursor): void {
    this.#cursors.delete(cursor)
  }
  /** What the log holds after `seq`. A reader that is past the end of an ended log gets the terminal event. */
  read(seq: number): Found {
    const oldest = this.#held[0]?.firstSeq ?? this.#lastSeq + 1
    if (seq + 1 < oldest || this.#detached) return 'stored'
    const chunk = this.#find(seq)
    const part = chunk && after(chunk, seq)
    return part ?? this.#ending ?? 'later'
  }
  /** The event `seq`, if memory still holds it. */
  at(seq: number): Buffer | undefined {
    const chunk = this.#find(seq - 1)
    const part = chunk && chunk.firstSeq <= seq ? after(chunk, seq - 1) : undefined
    return part?.lines.subarray(0, part.lines.indexOf(0x0a) + 1)
  }
  /** The first chunk in memory that reaches past `seq`. */
  #find(seq: number): LogChunk | undefined {
    let low = 0
    let high = this.#held.length
    // Shortcut: nearly every reader is at the newest chunk.
    if (high > 1 && lastSeqOf(this.#held[high - 2]!) <= seq) low = high - 1
    while (low < high) {
      const middle = (low + high) >> 1
      if (lastSeqOf(this.#held[middle]!) > seq) high = middle
      else low = middle + 1
    }
    return this.#held[low]
  }
  #trim(): void {
    const kept = Math.min(keptBytes, this.#most)
    if (this.#bytes <= kept) return
    let seen = Infinity
    for (const { seq } of this.#cursors) seen = Math.min(seen, seq)
    let gone = 0
    for (; gone < this.#held.length; gone++) {
      const chunk = this.#held[gone]!
      const last = lastSeqOf(chunk)
      if (this.#bytes <= (last <= seen ? kept : this.#most) || last > this.#storedSeq) break
      this.#bytes -= weightOf(chunk)
    }
    if (gone > 0) this.#held = this.#held.slice(gone)
  }
  #wake(): void {
    for (const cursor of this.#cursors) cursor.wake()
  }
}

export const unknownRun = () => runErrors.notFound({ message: 'No such run.' })

/** How often the log of another process's run is looked at, and how often when that process wakes its readers. */
const pollMs = 250
const wokenPollMs = 2_000

export const runChannel = (runId: string): string => `run:${runId}`

export interface Logs {
  readonly store: Pick<RunStore, 'readLog' | 'readEnding'>
  readonly kv: Kv
  /** The log of the run if it executes in this process at this moment. */
  live(tenantId: string, runId: string): RunLog | undefined
}

/**
 * The single way to read a run: from memory where it executes here, otherwise from the store, with wake-ups in between. It replays after `afterSeq`
 * and follows to the terminal event, which every reader gets: a killed conductor may have shown events that it had not stored, so the ending can
 * have a `seq` that the reader has already passed. A live run is held from the call on, so that its memory serves a reader that pulls later.
 */
export function follow(
  logs: Logs,
  tenantId: string,
  runId: string,
  afterSeq: number,
  signal: AbortSignal,
): AsyncGenerator<LogChunk> {
  return new Follower(logs, tenantId, runId, afterSeq).read(logs.live(tenantId, runId), signal)
}

/** One reader: its position in the log, and its sleep while there are no new events. A wake-up that arrives while it reads is not lost. */
class Follower implements Cursor {
  readonly #logs: Logs
  readonly #tenantId: string
  readonly #runId: string
  seq: number
  /** The log in memory. Undefined: the reader reads the store. */
  #live: RunLog | undefined
  #woken = false
  #rise: (() => void) | undefined

  constructor(logs: Logs, tenantId: string, runId: string, afterSeq: number) {
    this.#logs = logs
    this.#tenantId = tenantId
    this.#runId = runId
    this.seq = afterSeq
  }

  readonly wake = (): void => {
    this.#woken = true
    this.#rise?.()
  }
  readonly #lieDown = (rise: () => void): void => void (this.#rise = rise)

  async *read(held: RunLog | undefined, signal: AbortSignal): AsyncGenerator<LogChunk> {
    const { kv, store } = this.#logs
    let unsubscribe: (() => void) | undefined
    signal.addEventListener('abort', this.wake)
    try {
      this.#turnTo(held)
      while (!signal.aborted) {
        // The run may start to execute here after it was queued or handed over by another process.
        if (!this.#live) this.#turnTo(this.#logs.live(this.#tenantId, this.#runId))
        if (this.#live?.detached) {
          this.seq = await this.#whereItGoesOn(this.#live)
          this.#turnTo(undefined)
        }
        const found = this.#live?.read(this.seq) ?? 'stored'
        if (found === 'later') {
          if (!this.#woken) await new Promise<void>(this.#lieDown)
          this.#woken = false
          continue
        }
        if (typeof found === 'object') {
          this.seq = lastSeqOf(found)
          yield found
          if (endsLog(found)) return
          continue
        }
        if (!this.#live && kv.backend !== 'memory') unsubscribe ??= kv.subscribe(runChannel(this.#runId), this.wake)
        this.#woken = false
        const page = await store.readLog(this.#tenantId, this.#runId, this.seq)
        if (!page) throw unknownRun()
        const before = this.seq
        for (const chunk of page.chunks) {
          const part = after(chunk, this.seq)
          if (!part) continue
          this.seq = lastSeqOf(part)
          yield part
          if (endsLog(part)) return
        }
        if (this.seq !== before) continue
        if (isTerminal(page.status)) {
          const ending = await store.readEnding(this.#tenantId, this.#runId)
          if (ending) yield ending
          return
        }
        await this.#sleep(this.#live || unsubscribe ? wokenPollMs : pollMs)
      }
    } finally {
      this.#turnTo(undefined)
      unsubscribe?.()
      signal.removeEventListener('abort', this.wake)
    }
  }

  #turnTo(log: RunLog | undefined): void {
    this.#live?.remove(this)
    this.#live = log
    log?.add(this)
  }
  /**
   * Where a reader continues when its run was taken from this process. The next owner continues after the stored events, but the reader may have
   * seen more. The reader keeps its position if the next owner repeats the same events, and goes back to the stored ones if they differ.
   */
  async #whereItGoesOn(log: RunLog): Promise<number> {
    const { storedSeq } = log
    if (this.seq <= storedSeq) return this.seq
    const page = await this.#logs.store.readLog(this.#tenantId, this.#runId, storedSeq)
    const [chunk] = page?.chunks ?? []
    const next = chunk && after(chunk, storedSeq)
    if (!next) return this.seq
    const shown = log.at(storedSeq + 1)
    return shown && next.lines.subarray(0, shown.length).equals(shown) ? this.seq : storedSeq
  }
  async #sleep(ms: number): Promise<void> {
    if (!this.#woken) {
      const timer = setTimeout(this.wake, ms)
      await new Promise<void>(this.#lieDown)
      clearTimeout(timer)
    }
    this.#woken = false
  }
}
