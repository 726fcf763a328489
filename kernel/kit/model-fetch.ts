import { STATUS_CODES } from 'node:http'
import { Agent, type Dispatcher } from 'undici'
import type { ModelAnswer, ModelFetch, ModelPost, ModelRequest } from '#contracts/model'

export interface ModelConnections {
  readonly fetch: ModelFetch
  readonly post: ModelPost
  close(): Promise<void>
}

/** A model may think for minutes before its first byte; the run's own deadline ends it sooner. */
const firstByteMs = 300_000

/**
 * Keep-alive connections to model servers, as many as there are open streams: a pool with a limit would queue a stream
 * silently behind others. Built on undici's `dispatch`, which costs half of `fetch` for a short streamed answer.
 */
export function createModelConnections(): ModelConnections {
  const agent = new Agent({
    pipelining: 1,
    // With HTTP/2 an abort would end a stream, not the socket: the model server might go on generating.
    allowH2: false,
    connect: { timeout: 10_000 },
    headersTimeout: firstByteMs,
    bodyTimeout: firstByteMs,
    keepAliveTimeout: 30_000,
  })
  return {
    post: (url, request) => exchange(agent, url, 'POST', request),
    async fetch(input, { method = 'GET', headers, body, signal } = {}) {
      const url = new URL(input instanceof Request ? input.url : input)
      const request = { headers: headers as Record<string, string>, body: (body ?? null) as string, signal: signal! }
      return responseOf(await exchange(agent, url, method, request))
    },
    close: () => agent.destroy(),
  }
}

/** Makes a `post` out of a fetch that does not go straight to the model server. */
export const postBy =
  (fetch: ModelFetch): ModelPost =>
  async (url, { headers, body, signal = null }) => {
    const response = await fetch(url, { method: 'POST', headers, body, signal })
    const reader = response.body?.getReader()
    return {
      status: response.status,
      headers: Object.fromEntries(response.headers),
      async read() {
        const { value } = (await reader?.read()) ?? {}
        return value && [value]
      },
      close: () => void reader?.cancel().catch(() => {}),
    }
  }

function exchange(agent: Agent, url: URL, method: string, request: ModelRequest): Promise<ModelAnswer> {
  return new Promise((resolve, reject) => {
    const { headers, body, signal } = request
    if (signal?.aborted) return reject(abortError(signal))
    const answer = new Answer(signal, resolve, reject)
    const { origin, pathname, search } = url
    agent.dispatch({ origin, path: pathname + search, method: method as Dispatcher.HttpMethod, headers, body }, answer)
  })
}

/** Reads of a socket (up to 64 KiB) held for a slow reader before the socket is paused. */
const readsAhead = 4

class Answer implements ModelAnswer, Dispatcher.DispatchHandler {
  status = 0
  headers: Record<string, string> = {}
  readonly #signal: AbortSignal | undefined
  readonly #begun: (answer: ModelAnswer) => void
  readonly #refused: (error: Error) => void
  #exchange: Dispatcher.DispatchController | undefined
  #arrived: Buffer[] = []
  #over = false
  #failure: Error | undefined
  #reader: PromiseWithResolvers<readonly Buffer[] | undefined> | undefined

  constructor(signal: AbortSignal | undefined, begun: (answer: ModelAnswer) => void, refused: (error: Error) => void) {
    this.#signal = signal
    this.#begun = begun
    this.#refused = refused
    signal?.addEventListener('abort', this.#onAbort, { once: true })
  }

  async read(): Promise<readonly Buffer[] | undefined> {
    if (this.#arrived.length > 0) return this.#take()
    if (this.#failure) throw this.#failure
    if (this.#over) return undefined
    this.#reader = Promise.withResolvers()
    return this.#reader.promise
  }

  close(): void {
    if (!this.#over) this.#exchange?.abort(new DOMException('The reader left.', 'AbortError'))
  }

  onRequestStart(exchange: Dispatcher.DispatchController): void {
    this.#exchange = exchange
    if (this.#signal?.aborted) exchange.abort(abortError(this.#signal))
  }

  onResponseStart(_: Dispatcher.DispatchController, status: number, headers: Record<string, unknown>): void {
    // An informational answer comes before the real one.
    if (status < 200) return
    this.status = status
    this.headers = headers as Record<string, string>
    this.#begun(this)
  }

  onResponseData(_: Dispatcher.DispatchController, chunk: Buffer): void {
    // After a pause inside a chunk of the transfer coding undici flushes its parser with nothing.
    if (chunk.length === 0) return
    this.#arrived.push(chunk)
    if (this.#arrived.length >= readsAhead) this.#exchange!.pause()
    // Handed over after everything else of the same read of the socket: an answer in one packet is taken at once.
    if (this.#reader && this.#arrived.length === 1) queueMicrotask(this.#hand)
  }

  onResponseEnd(): void {
    this.#end()
  }

  onResponseError(_: Dispatcher.DispatchController, error: Error): void {
    this.#failure = error
    this.#refused(error)
    this.#end()
  }

  #end(): void {
    this.#over = true
    this.#signal?.removeEventListener('abort', this.#onAbort)
    this.#hand()
  }

  #onAbort = (): void => {
    const error = abortError(this.#signal!)
    // A request that still waits for its connection has no controller; it is aborted when it starts.
    this.#refused(error)
    this.#exchange?.abort(error)
  }

  #hand = (): void => {
    const reader = this.#reader
    if (!reader) return
    this.#reader = undefined
    if (this.#arrived.length > 0) reader.resolve(this.#take())
    else if (this.#failure) reader.reject(this.#failure)
    else reader.resolve(undefined)
  }

  #take(): readonly Buffer[] {
    const arrived = this.#arrived
    this.#arrived = []
    if (arrived.length >= readsAhead && !this.#over) this.#exchange!.resume()
    return arrived
  }
}

function responseOf(answer: ModelAnswer): Response {
  const source = {
    async pull(controller: ReadableStreamDefaultController<Uint8Array>) {
      const arrived = await answer.read()
      if (arrived) for (const bytes of arrived) controller.enqueue(bytes)
      else controller.close()
    },
    cancel: () => answer.close(),
  }
  const { status, headers } = answer
  const body = bodiless.has(status) ? null : new ReadableStream(source, { highWaterMark: 0 })
  return new Response(body, { status, statusText: STATUS_CODES[status] ?? '', headers: headers as never })
}

/** `new Response` refuses a body with these. */
const bodiless: ReadonlySet<number> = new Set([204, 205, 304])

const abortError = (signal: AbortSignal): Error =>
  signal.reason instanceof Error && signal.reason.name === 'AbortError'
    ? signal.reason
    : new DOMException('The request was aborted.', 'AbortError')
