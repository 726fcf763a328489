import type { AttachRun, ExecuteRun } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'

/** Bytes. With more unread bytes of a run its sidecar has to wait. */
const highWater = 256 * 1024
/** Read bytes are merged into pieces of about this size: a delta as a separate piece would take more memory than its text. */
const pieceBytes = 8 * 1024
const pieceParts = 32

/** Lines that were read, in their order. */
interface Piece {
  readonly firstSeq: number
  parts: Buffer[]
  bytes: number
}

interface Unread {
  readonly lines: Buffer
  /** The seq of the line after this piece. */
  readonly next: number
}

/** The writer of an output, which is told about its reader. */
export interface OutputOwner {
  /** `reason` is that of the reader's signal, or `client_gone` when the reader stopped reading. */
  readerGone(reason: unknown): void
  readerCame(): void
}

/**
 * The output of a run. One reader at a time consumes it. The newest read bytes are kept, so that another reader can continue after any event among
 * them. Unread bytes are never dropped.
 */
export class RunOutput<Owner extends OutputOwner = OutputOwner> {
  readonly runId: string
  readonly keepMs: number
  /** Undefined once the owner no longer needs to be informed. */
  owner: Owner | undefined
  readonly #keepBytes: () => number
  #epoch: number
  #kept: Piece[] = []
  #keptBytes = 0
  #unread: Unread[] = []
  #unreadBytes = 0
  /** The seq of the first unread line, and that of the next line. */
  #readTo: number
  #next: number
  #reader: Reader | undefined
  #state: 'withheld' | 'open' | 'closed' = 'withheld'
  #failure: unknown
  #room: PromiseWithResolvers<void> | undefined

  /** `keepBytes` returns how many read bytes may be kept; a run that is not to be kept keeps none. Readers wait until the output is shown. */
  constructor(run: ExecuteRun, keepBytes: () => number, owner: Owner) {
    this.runId = run.runId
    this.keepMs = run.keepMs ?? 0
    this.#epoch = run.epoch ?? 0
    this.#readTo = this.#next = run.firstSeq
    this.#keepBytes = keepBytes
    this.owner = owner
  }

  /** The epoch of the claim under which the output is read. */
  get epoch(): number {
    return this.#epoch
  }

  get withheld(): boolean {
    return this.#state === 'withheld'
  }
  get failed(): boolean {
    return this.#failure !== undefined
  }
  get bytes(): number {
    return this.#keptBytes + this.#unreadBytes
  }
  get isRead(): boolean {
    return this.#unread.length === 0
  }
  /** Resolves when the sidecar may continue. Undefined: it may continue at once. */
  get room(): Promise<void> | undefined {
    if (this.#state === 'closed' || this.#unreadBytes < highWater) return undefined
    return (this.#room ??= Promise.withResolvers<void>()).promise
  }

  /** Adds whole lines. `next` is the seq of the line after them. */
  write(lines: Buffer, next: number): void {
    if (lines.length === 0) return
    this.#unread.push({ lines, next })
    this.#unreadBytes += lines.length
    this.#next = next
    this.#reader?.serve()
  }
  show(): void {
    if (this.#state === 'withheld') this.#state = 'open'
    this.#reader?.serve()
  }
  /** Ends the output. With a failure its readers get that, as if nothing had been written. */
  close(failure?: unknown): void {
    this.#state = 'closed'
    this.#failure = failure
    this.#room?.resolve()
    this.#settle()
    this.#reader?.serve()
  }

  /** A new reader, which starts after an event. The previous reader is cut off. */
  attach({ afterSeq, epoch }: Pick<AttachRun, 'afterSeq' | 'epoch'>, signal: AbortSignal): AsyncIterator<Buffer> {
    if (epoch < this.#epoch) throw runnerErrors.attemptSuperseded()
    const first = this.#kept[0]?.firstSeq ?? this.#readTo
    if (afterSeq < first - 1 || afterSeq >= this.#next) throw runnerErrors.runGap()
    this.#epoch = epoch
    this.cut()
    this.owner?.readerCame()
    return (this.#reader = new Reader(this, this.#keptBehind(afterSeq), signal))
  }
  /** Ends the iteration of the current reader. */
  cut(): void {
    this.#reader?.cut()
  }
  /** A reader has ended: what is kept for the next one does not keep it. */
  left(reader: Reader): void {
    if (this.#reader === reader) this.#reader = undefined
  }

  /** The unread bytes, for the reader. Undefined: there are none yet. Null: there will be none. */
  take(): Buffer | undefined | null {
    if (this.#state === 'withheld') return undefined
    if (this.#failure !== undefined) throw this.#failure
    if (this.#unread.length === 0) return this.#state === 'closed' ? null : undefined
    const { lines, next } = this.#unreadAtOnce()
    this.#keep(lines)
    this.#unreadBytes -= lines.length
    this.#readTo = next
    if (this.#unreadBytes < highWater) {
      this.#room?.resolve()
      this.#room = undefined
    }
    this.#settle()
    return lines
  }
  /** Small chunks are joined. A large chunk is returned alone, because joining would copy it. */
  #unreadAtOnce(): Unread {
    const large = this.#unread.findIndex(({ lines }) => lines.length >= pieceBytes)
    const taken = this.#unread.splice(0, large < 0 ? this.#unread.length : Math.max(1, large))
    return { lines: join(taken.map(({ lines }) => lines)), next: taken.at(-1)!.next }
  }
  #keep(chunk: Buffer): void {
    if (this.keepMs === 0) return
    const limit = this.#keepBytes()
    let piece = this.#kept.at(-1)
    if (!piece || Math.max(piece.bytes, chunk.length) >= pieceBytes) {
      if (piece) piece.parts = [join(piece.parts)]
      this.#kept.push((piece = { firstSeq: this.#readTo, parts: [], bytes: 0 }))
    }
    piece.parts.push(chunk)
    piece.bytes += chunk.length
    if (piece.parts.length === pieceParts || piece.bytes >= pieceBytes) piece.parts = [join(piece.parts)]
    this.#keptBytes += chunk.length
    // The last piece stays whole, unless a single line exceeds the kept maximum.
    while (this.#keptBytes > (this.#kept.length > 1 ? limit : highWater)) this.#keptBytes -= this.#kept.shift()!.bytes
  }
  /** Everything is read: moves the kept bytes into memory of their own. As slices, they would keep alive the whole blocks that they were cut from. */
  #settle(): void {
    if (this.#state !== 'closed' || !this.isRead || this.#kept.length === 0) return
    const parts = this.#kept.flatMap((piece) => piece.parts)
    const own = Buffer.allocUnsafeSlow(this.#keptBytes)
    parts.reduce((at, part) => at + part.copy(own, at), 0)
    this.#kept = [{ firstSeq: this.#kept[0]!.firstSeq, parts: [own], bytes: own.length }]
  }
  #keptBehind(afterSeq: number): Buffer | undefined {
    const from = this.#kept.findLastIndex(({ firstSeq }) => firstSeq <= afterSeq + 1)
    if (from < 0) return undefined
    const bytes = join(this.#kept.slice(from).flatMap(({ parts }) => parts))
    let start = 0
    for (let skip = afterSeq + 1 - this.#kept[from]!.firstSeq; skip > 0 && start < bytes.length; skip--) {
      const end = bytes.indexOf(0x0a, start)
      start = end < 0 ? bytes.length : end + 1
    }
    return start < bytes.length ? bytes.subarray(start) : undefined
  }
}

const join = (parts: Buffer[]): Buffer => (parts.length === 1 ? parts[0]! : Buffer.concat(parts))

/** Written by hand, because a generator costs each chunk three turns of the microtask queue. */
class Reader implements AsyncIterator<Buffer> {
  readonly #output: RunOutput
  readonly #signal: AbortSignal
  readonly #onAbort = (): void => this.#output.owner?.readerGone(this.#signal.reason)
  /** The kept bytes that this reader must read first. */
  #missed: Buffer | undefined
  #waiting: Pick<PromiseWithResolvers<IteratorResult<Buffer>>, 'resolve' | 'reject'> | undefined
  #gone = false

  constructor(output: RunOutput, missed: Buffer | undefined, signal: AbortSignal) {
    this.#output = output
    this.#missed = missed
    this.#signal = signal
    signal.addEventListener('abort', this.#onAbort)
  }

  next(): Promise<IteratorResult<Buffer>> {
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject }
      this.serve()
    })
  }
  async return(): Promise<IteratorResult<Buffer>> {
    const early = !this.#gone
    this.cut()
    if (early) this.#output.owner?.readerGone('client_gone')
    return { done: true, value: undefined }
  }
  /** Called when there may be something to read. Resolves a waiting read. */
  serve(): void {
    const waiting = this.#waiting
    if (!waiting) return
    try {
      const value = this.#gone ? null : (this.#missed ?? this.#output.take())
      if (value === undefined) return
      this.#missed = undefined
      this.#waiting = undefined
      if (value === null) this.#leave()
      waiting.resolve(value === null ? { done: true, value: undefined } : { done: false, value })
    } catch (error) {
      this.#waiting = undefined
      this.#leave()
      waiting.reject(error)
    }
  }
  cut(): void {
    this.#leave()
    this.serve()
  }
  #leave(): void {
    this.#gone = true
    this.#missed = undefined
    this.#signal.removeEventListener('abort', this.#onAbort)
    this.#output.left(this)
  }
}
