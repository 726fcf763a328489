import { STATUS_CODES } from 'node:http'
import { Agent, type Dispatcher } from 'undici'

/** `fetch` as a provider package of the AI SDK wants it: one POST with a text body, answered by a stream. */
export type ModelFetch = (input: string | URL | Request, init?: RequestInit) => Promise<Response>

export interface ModelConnections {
  readonly fetch: ModelFetch
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
  return { fetch: (input, init) => post(agent, input, init), close: () => agent.destroy() }
}

function post(agent: Agent, input: string | URL | Request, init: RequestInit = {}): Promise<Response> {
  const url = new URL(input instanceof Request ? input.url : input)
  const signal = init.signal ?? undefined
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(abortError(signal))
    let controller: Dispatcher.DispatchController | undefined
    let body: ReadableStreamDefaultController<Uint8Array> | undefined
    const onAbort = (): void => {
      const error = abortError(signal!)
      // A request that still waits for its connection has no controller; it is aborted when it starts.
      reject(error)
      controller?.abort(error)
    }
    signal?.addEventListener('abort', onAbort, { once: true })
    const over = (): void => signal?.removeEventListener('abort', onAbort)
    agent.dispatch(
      {
        origin: url.origin,
        path: url.pathname + url.search,
        method: (init.method ?? 'GET') as Dispatcher.HttpMethod,
        headers: init.headers as Record<string, string>,
        body: (init.body ?? null) as string | null,
      },
      {
        onRequestStart(started) {
          controller = started
          if (signal?.aborted) started.abort(abortError(signal))
        },
        onResponseStart(_, status, headers) {
          // An informational answer comes before the real one.
          if (status < 200) return
          const source = {
            start: (c: ReadableStreamDefaultController<Uint8Array>) => void (body = c),
            pull: () => controller!.resume(),
            cancel: () => controller!.abort(new DOMException('The reader left.', 'AbortError')),
          }
          const stream = new ReadableStream<Uint8Array>(source, { highWaterMark: readsAhead })
          const content = bodiless.has(status) ? null : stream
          resolve(new Response(content, { status, statusText: STATUS_CODES[status] ?? '', headers: headers as never }))
        },
        onResponseData(_, chunk) {
          // After a pause inside a chunk of the transfer coding undici flushes its parser with nothing: enqueued, that would
          // fill the queue and pause again, for ever.
          if (chunk.length === 0) return
          body!.enqueue(chunk)
          if (body!.desiredSize! <= 0) controller!.pause()
        },
        onResponseEnd() {
          over()
          body!.close()
        },
        onResponseError(_, error) {
          over()
          reject(error)
          body?.error(error)
        },
      },
    )
  })
}

/** Reads of a socket (up to 64 KiB) held for a slow reader before the socket is paused. */
const readsAhead = 4

/** `new Response` refuses a body with these. */
const bodiless: ReadonlySet<number> = new Set([204, 205, 304])

const abortError = (signal: AbortSignal): Error =>
  signal.reason instanceof Error && signal.reason.name === 'AbortError'
    ? signal.reason
    : new DOMException('The request was aborted.', 'AbortError')
