import type { Dispatcher } from 'undici'
import { Answer, type ExchangeOptions, type Reply } from './answer.ts'

/** Unread bytes of one answer beyond which its socket is paused. */
const highWater = 256 * 1024

/** True when no connection was made, or the peer began nothing. A request that is lost on an open connection may have arrived. */
export const neverConnected = (cause: unknown): boolean => unasked.has(String((cause as { code?: unknown }).code))

const unasked = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT',
  'LINK_REFUSED',
])

/**
 * One HTTP exchange over undici's `dispatch`: several times cheaper than fetch, and back-pressure down to the socket.
 * Rejects with `lost(...)` when there is no answer, and with the signal's reason when aborted; so does the body.
 */
export function exchange(
  dispatcher: Dispatcher,
  request: Dispatcher.DispatchOptions,
  options: ExchangeOptions,
): Promise<Reply> {
  let controller: Dispatcher.DispatchController | undefined
  const answer = new Answer(
    {
      resume() {
        if (controller?.paused) controller.resume()
      },
      // Before the connection stands there is no controller: the caller is told now, the request dies when it starts.
      abort: (error) => controller?.abort(error),
    },
    options,
  )
  if (answer.over) return answer.head
  dispatcher.dispatch(request, {
    onRequestStart(started) {
      controller = started
      if (answer.over) started.abort(new Error('aborted'))
    },
    onResponseStart(_controller, status, headers) {
      // An informational answer comes before the real one.
      if (status >= 200) answer.begin(status, headers)
    },
    onResponseData(responding, chunk) {
      if (answer.push(chunk) > highWater) responding.pause()
    },
    onResponseEnd: () => answer.end(),
    onResponseError: (_controller, cause) => answer.fail(cause),
  })
  return answer.head
}
