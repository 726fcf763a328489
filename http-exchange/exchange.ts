import type { Dispatcher } from 'undici'
import { createBody } from './body.ts'

export interface Reply {
  readonly status: number
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  /** One reader. Reading it to its end keeps the connection for the next request; leaving it early closes it. */
  readonly body: AsyncIterable<Buffer>
  /** Only the end of the answer is still to come: whoever leaves now keeps the connection for the next request. */
  expectEnd(): void
}

export interface ExchangeOptions {
  readonly signal: AbortSignal
  /** The caller's own error for a connection that failed; `answered` when it did so after the head of the answer. */
  readonly lost: (cause: Error, answered: boolean) => Error
}

/** Unread bytes of one answer beyond which its socket is paused. */
const highWater = 256 * 1024

/**
 * One HTTP exchange over undici's `dispatch`: several times cheaper than fetch, and back-pressure down to the socket.
 * Rejects with `lost(...)` when there is no answer, and with the signal's reason when aborted; so does the body.
 */
export function exchange(
  dispatcher: Dispatcher,
  request: Dispatcher.DispatchOptions,
  { signal, lost }: ExchangeOptions,
): Promise<Reply> {
  return new Promise((resolve, reject) => {
    const body = createBody()
    let answered = false
    const abort = (): void => {
      const error = signal.reason instanceof Error ? signal.reason : new Error('aborted', { cause: signal.reason })
      // Before the connection stands there is no controller: the caller is told now, the request dies when it starts.
      reject(error)
      body.end(error)
      body.controller?.abort(error)
    }
    if (signal.aborted) return abort()
    signal.addEventListener('abort', abort)
    const settle = (error?: Error): void => {
      signal.removeEventListener('abort', abort)
      if (error) reject(error)
      body.end(error)
    }
    dispatcher.dispatch(request, {
      onRequestStart(controller) {
        body.controller = controller
        if (signal.aborted) controller.abort(new Error('aborted'))
      },
      onResponseStart(_controller, status, headers) {
        // An informational answer comes before the real one.
        if (status < 200) return
        answered = true
        resolve({ status, headers, body: body.read(), expectEnd: body.expectEnd })
      },
      onResponseData(controller, chunk) {
        if (body.push(chunk) > highWater) controller.pause()
      },
      onResponseEnd: () => settle(),
      onResponseError: (_controller, cause) => settle(lost(cause, answered)),
    })
  })
}
