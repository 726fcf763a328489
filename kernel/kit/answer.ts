import { Gathered } from './gathered.ts'
import { maxLineBytes, OversizedLineError } from './lines.ts'

export type ReplyHeaders = Readonly<Record<string, string | string[] | undefined>>

/** A peer's answer to one request, over any kind of connection. */
export interface Reply {
  readonly status: number
  readonly headers: ReplyHeaders
  /** The body, for one reader. Reading it to its end keeps the connection for the next request; leaving early ends the exchange. */
  readonly body: AsyncIterableIterator<Buffer>
  /** Declares that only the end of the answer is still missing, so that a reader may stop without cutting the exchange. */
  expectEnd(): void
  /** True once the peer has ended the answer properly. */
  readonly complete: boolean
  /** From now on `body` yields whole lines. A last line without its newline is dropped, and a line over 4 MiB fails the reader. */
  splitLines(): void
}

export interface ExchangeOptions {
  readonly signal?: AbortSignal | undefined
  /** Makes the caller's error for a failed connection. `answered`: the head of the answer had already arrived. */
  readonly lost: (cause: Error, answered: boolean) => Error
  /** Milliseconds until the head of the answer, or with `whole` until its end. After that the answer is lost. */
  readonly timeoutMs?: number | undefined
  readonly whole?: boolean
}

/** The connection's side of an answer. */
export interface Source {
  /** The reader took bytes that were held back, so this many more bytes may arrive. */
  resume(bytes: number): void
  /** The rest will not be read. `reason` is that of the caller's signal, if the signal ended the reading. */
  abort(error: Error, reason?: unknown): void
}

/** Milliseconds that an answer whose reader has left may take to end. */
const endMs = 1_000
/** A chunk of at least this many bytes is not copied to join it with earlier bytes. */
const largeChunk = 8 * 1024
/** How many parts of a line are held before they are joined, because a peer may send one byte at a time. */
const maxParts = 1_024

/** The answer did not arrive in time. */
class AnswerTimeout extends Error {
  readonly code = 'LATE'
  constructor(ms: number) {
    super(`there was no answer within ${ms} ms`)
  }
}

/** One answer between its connection and its single reader. No promise and no generator stands between two chunks. */
export class Answer implements Reply, AsyncIterableIterator<Buffer> {
  status = 0
  headers: ReplyHeaders = {}
  readonly head: Promise<Reply>
  readonly #source: Source
  readonly #options: ExchangeOptions
  #began!: (reply: Reply) => void
  #refuse!: (error: Error) => void
  #state: 'waiting' | 'open' | 'left' | 'ended' = 'waiting'
  #unread: Buffer[] = []
  /** Bytes that arrived since the source was last resumed. */
  #held = 0
  #size = 0
  #byLine = false
  #hasLine = false
  #endExpected = false
  complete = false
  #failure: Error | undefined
  #reader: { resolve(result: IteratorResult<Buffer>): void; reject(error: Error): void } | undefined
  #late: NodeJS.Timeout | undefined
  readonly #onAbort = (): void => {
    const reason: unknown = this.#options.signal?.reason
    this.abort(reason instanceof Error ? reason : new Error('aborted', { cause: reason }), reason)
  }

  constructor(source: Source, options: ExchangeOptions) {
    this.#source = source
    this.#options = options
    this.head = new Promise((resolve, reject) => {
      this.#began = resolve
      this.#refuse = reject
    })
    const { signal, timeoutMs } = options
    if (signal?.aborted) this.#onAbort()
    else signal?.addEventListener('abort', this.#onAbort)
    if (timeoutMs !== undefined && this.#state === 'waiting') {
      this.#late = setTimeout(() => {
        const cause = new AnswerTimeout(timeoutMs)
        this.fail(cause)
        source.abort(cause)
      }, timeoutMs)
    }
  }

  get body(): this {
    return this
  }
  /** True when nothing more is needed, so that later bytes may be dropped. */
  get over(): boolean {
    return this.#state === 'ended' || this.#state === 'left'
  }
  /** True when a reader waits, so that the next bytes are taken at once. */
  get awaited(): boolean {
    return this.#reader !== undefined
  }

  begin(status: number, headers: ReplyHeaders): void {
    if (this.#state !== 'waiting') return
    this.#state = 'open'
    if (!this.#options.whole) clearTimeout(this.#late)
    this.status = status
    this.headers = headers
    this.#began(this)
  }

  /** Adds a chunk. Returns how many bytes the reader has not taken yet. */
  push(chunk: Buffer): number {
    if (this.#state !== 'open') return 0
    this.#unread.push(chunk)
    this.#size += chunk.length
    this.#held += chunk.length
    if (this.#byLine && !this.#hasLine) this.#hasLine = chunk.includes(0x0a)
    if (this.#reader) {
      const next = this.#take()
      if (next) this.#give({ done: false, value: next })
      else this.#goOn()
    }
    return this.#held
  }

  end(): void {
    this.complete = true
    this.#finish(undefined)
  }

  /** Called when the connection failed. */
  fail(cause: Error): void {
    if (this.#state === 'ended') return
    this.#finish(this.#state === 'left' ? undefined : this.#options.lost(cause, this.#state === 'open'))
  }

  /** Called when the caller no longer needs the answer. */
  abort(error: Error, reason?: unknown): void {
    if (this.#state === 'ended') return
    this.#finish(error)
    this.#source.abort(error, reason)
  }

  expectEnd(): void {
    this.#endExpected = true
  }

  splitLines(): void {
    this.#byLine = true
    this.#hasLine = this.#unread.some((chunk) => chunk.includes(0x0a))
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  next(): Promise<IteratorResult<Buffer>> {
    const chunk = this.#take()
    if (chunk) return Promise.resolve({ done: false, value: chunk })
    if (this.#state === 'ended' || this.#state === 'left') {
      const failure = this.#failure
      this.#failure = undefined
      return failure ? Promise.reject(failure) : Promise.resolve({ done: true, value: undefined })
    }
    this.#goOn()
    return new Promise((resolve, reject) => {
      this.#reader = { resolve, reject }
    })
  }

  return(): Promise<IteratorResult<Buffer>> {
    this.#leave()
    return Promise.resolve({ done: true, value: undefined })
  }

  /** Returns all bytes that may be given to the reader now. */
  #take(): Buffer | undefined {
    if (this.#size === 0) return undefined
    if (this.#byLine && !this.#hasLine) {
      if (this.#size > maxLineBytes) this.abort(new OversizedLineError())
      else if (this.#unread.length >= maxParts) this.#unread = [Buffer.concat(this.#unread)]
      return undefined
    }
    const last = this.#unread.at(-1)!
    const head = this.#byLine && this.#unread.length > 1 && last.length >= largeChunk ? last.indexOf(0x0a) + 1 : 0
    if (head > 0) return this.#takeLine(last, head)
    const all = this.#unread.length === 1 ? last : Buffer.concat(this.#unread, this.#size)
    const end = this.#byLine ? all.lastIndexOf(0x0a) + 1 : all.length
    const rest = all.length - end
    this.#unread = rest > 0 ? [all.subarray(end)] : []
    this.#size = rest
    this.#hasLine = false
    this.#goOn()
    return rest > 0 ? all.subarray(0, end) : all
  }

  /** Returns the bytes before a large chunk together with the end of their last line, so that the large chunk need not be copied. */
  #takeLine(last: Buffer, head: number): Buffer {
    const line = Buffer.concat([...this.#unread.slice(0, -1), last.subarray(0, head)])
    const rest = last.subarray(head)
    this.#unread = rest.length > 0 ? [rest] : []
    this.#size = rest.length
    this.#hasLine = rest.includes(0x0a)
    this.#goOn()
    return line
  }

  #goOn(): void {
    const taken = this.#held
    this.#held = 0
    if (taken > 0 && this.#state === 'open') this.#source.resume(taken)
  }

  #give(result: IteratorResult<Buffer>): void {
    const reader = this.#reader
    this.#reader = undefined
    reader?.resolve(result)
  }

  #leave(): void {
    this.#unread = []
    this.#size = 0
    if (this.#state !== 'open') return
    this.#state = 'left'
    this.#options.signal?.removeEventListener('abort', this.#onAbort)
    clearTimeout(this.#late)
    this.#give({ done: true, value: undefined })
    const abort = (): void => this.#source.abort(new Error('the reader left'))
    if (!this.#endExpected) return abort()
    this.#source.resume(this.#held)
    this.#late = setTimeout(abort, endMs).unref()
  }

  #finish(failure: Error | undefined): void {
    if (this.#state === 'ended') return
    clearTimeout(this.#late)
    this.#options.signal?.removeEventListener('abort', this.#onAbort)
    const headless = this.#state === 'waiting'
    this.#state = 'ended'
    if (headless) return this.#refuse(failure ?? this.#options.lost(new Error('there was no answer'), false))
    this.#failure = failure
    if (!this.#reader) return
    const reader = this.#reader
    this.#reader = undefined
    this.#failure = undefined
    if (failure) reader.reject(failure)
    else reader.resolve({ done: true, value: undefined })
  }
}

/** The chunks of a stream that is opened by the first read. */
export function openOnRead(open: () => Promise<AsyncIterator<Buffer>>): AsyncIterableIterator<Buffer> {
  let chunks: AsyncIterator<Buffer> | undefined
  let left = false
  // Set to undefined once the stream is open, because `open` holds the request and the stream may last long.
  let opening: typeof open | undefined = open
  const all: AsyncIterableIterator<Buffer> = {
    [Symbol.asyncIterator]: () => all,
    next() {
      if (chunks) return chunks.next()
      const opened = opening?.()
      opening = undefined
      if (!opened) return Promise.resolve({ done: true, value: undefined })
      return opened.then((stream) => {
        chunks = stream
        return left ? stream.return!() : stream.next()
      })
    },
    async return() {
      left = true
      return (await chunks?.return?.()) ?? { done: true, value: undefined }
    },
  }
  return all
}

/** Waits for the first chunk, so that a refusal in its place can still be answered with a status. The returned iterable yields that chunk again. */
export async function awaitFirstChunk(source: AsyncIterable<Buffer>): Promise<AsyncIterable<Buffer>> {
  const chunks = source[Symbol.asyncIterator]()
  let first: Promise<IteratorResult<Buffer>> | undefined = Promise.resolve(await chunks.next())
  const rest: AsyncIterableIterator<Buffer> = {
    [Symbol.asyncIterator]: () => rest,
    next() {
      const next = first ?? chunks.next()
      first = undefined
      return next
    },
    return: async () => (await chunks.return?.()) ?? { done: true, value: undefined },
  }
  return rest
}

/** The whole body. Undefined when it is longer than `limit` bytes. */
export async function readBody(body: AsyncIterable<Uint8Array>, limit: number): Promise<Buffer | undefined> {
  const whole = new Gathered()
  for await (const part of body) {
    if (whole.size + part.length > limit) return undefined
    whole.add(part)
  }
  return whole.bytes
}

/** The whole body as a JSON object. Undefined when it is no object, or longer than `limit` bytes. */
export async function readJson(
  { body }: { readonly body: AsyncIterable<Buffer> },
  limit: number,
): Promise<Record<string, unknown> | undefined> {
  const bytes = await readBody(body, limit)
  try {
    const value: unknown = JSON.parse(bytes?.toString('utf8') ?? '')
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}
