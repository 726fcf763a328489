import { after, endsLog, lastSeqOf } from '#contracts/run-event'
import type { LogChunk } from '#contracts/runs'

/** What a run under way keeps in memory of what is stored already: for whoever comes next, and as long as a reader is behind. */
const keptBytes = 32 * 1024
const mostBytes = 1024 * 1024
/** The objects around a chunk: a delta alone is smaller than they are. */
const chunkOverhead = 400
const weightOf = ({ lines }: LogChunk): number => lines.length + chunkOverhead

/** One who follows: where, and how to be woken. */
export interface Cursor {
  seq: number
  wake(): void
}

/** What a log has for a cursor: events, nothing yet, nothing ever again, or events that only the store has. */
export type Found = LogChunk | 'later' | 'over' | 'stored'

/**
 * The live log of one run: the newest events as they came. What is stored and behind every reader leaves memory; a slow
 * reader goes on from the store.
 */
export class RunLog {
  readonly #most: number
  readonly #cursors = new Set<Cursor>()
  #held: LogChunk[] = []
  #bytes = 0
  #storedSeq = 0
  #lastSeq = 0
  #state: 'open' | 'ended' | 'detached' = 'open'

  constructor(most = mostBytes) {
    this.#most = most
  }
  get lastSeq(): number {
    return this.#lastSeq
  }
  /** Everything up to here is durable. */
  get storedSeq(): number {
    return this.#storedSeq
  }
  /** The run was taken from this process: what follows is in the store, and not from here. */
  get detached(): boolean {
    return this.#state === 'detached'
  }
  append(chunk: LogChunk): void {
    this.#held.push(chunk)
    this.#bytes += weightOf(chunk)
    this.#lastSeq = lastSeqOf(chunk)
    // The terminal event is appended once it is stored, and by whoever has stored it.
    if (endsLog(chunk)) this.#state = 'ended'
    this.#trim()
    this.#wake()
  }
  stored(seq: number): void {
    this.#storedSeq = Math.max(this.#storedSeq, seq)
    this.#trim()
  }
  /** The log begins behind `seq`: what is before is in the store. Before anything is appended. */
  begin(seq: number): void {
    this.#lastSeq = this.#storedSeq = seq
    this.#wake()
  }
  detach(): void {
    if (this.#state === 'open') this.#state = 'detached'
    this.#wake()
  }
  add(cursor: Cursor): void {
    this.#cursors.add(cursor)
  }
  remove(cursor: Cursor): void {
    this.#cursors.delete(cursor)
  }
  /** What there is behind `seq`. */
  read(seq: number): Found {
    const oldest = this.#held[0]?.firstSeq ?? this.#lastSeq + 1
    if (seq + 1 < oldest || this.#state === 'detached') return 'stored'
    const chunk = this.#find(seq)
    const part = chunk && after(chunk, seq)
    return part ?? (this.#state === 'ended' ? 'over' : 'later')
  }
  /** The event `seq`, while it is held. */
  at(seq: number): Buffer | undefined {
    const chunk = this.#find(seq - 1)
    const part = chunk && chunk.firstSeq <= seq ? after(chunk, seq - 1) : undefined
    return part?.lines.subarray(0, part.lines.indexOf(0x0a) + 1)
  }
  /** The first held chunk that reaches behind `seq`. */
  #find(seq: number): LogChunk | undefined {
    let low = 0
    let high = this.#held.length
    // Nearly everybody wants the newest.
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
