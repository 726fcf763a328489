import type { Dispatcher } from 'undici'
import { ConnectionLost } from './errors.ts'

export interface Reply {
  readonly status: number
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  /** One reader. Leaving it early closes the connection. */
  readonly body: AsyncIterable<Buffer>
  /** Only the end of the answer is still to come: whoever leaves now keeps the connection for the next request. */
  expectEnd(): void
}

/** Unread bytes of one answer beyond which its socket is paused. */
const highWater = 256 * 1024
/** How long an answer whose reader has left may take to end. */
const endMs = 1_000

/**
 * One HTTP exchange over undici's `dispatch`: no web streams, and back-pressure down to the socket. Rejects with
 * `ConnectionLost` when there is no answer, and with the signal's reason when aborted.
 */
export function exchange(
  dispatcher: Dispatcher,
  options: Dispatcher.DispatchOptions,
  signal: AbortSignal,
): Promise<Reply> {
  return new Promise((resolve, reject) => {
    const body = createBody()
    const abort = (): void => {
      const error = signal.reason instanceof Error ? signal.reason : new Error('aborted', { cause: signal.reason })
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
    dispatcher.dispatch(options, {
      onRequestStart(controller) {
        body.controller = controller
        // Aborted while the connection was being made: there was nothing to abort yet.
        if (signal.aborted) controller.abort(new Error('aborted'))
      },
      onResponseStart(_controller, status, headers) {
        if (status >= 200) resolve({ status, headers, body: body.read(), expectEnd: body.expectEnd })
      },
      onResponseData: (controller, chunk) => {
        if (body.push(chunk) > highWater) controller.pause()
      },
      onResponseEnd: () => settle(),
      onResponseError: (_controller, cause) => settle(new ConnectionLost(cause)),
    })
  })
}

interface Body {
  controller: Dispatcher.DispatchController | undefined
  /** Resolves to how many bytes are unread. */
  push(chunk: Buffer): number
  end(error?: Error): void
  expectEnd(): void
  read(): AsyncGenerator<Buffer>
}

function createBody(): Body {
  let unread: Buffer[] = []
  let size = 0
  let state: 'open' | 'left' | 'ended' = 'open'
  let endExpected = false
  let failure: Error | undefined
  let wake: (() => void) | undefined
  let late: NodeJS.Timeout | undefined
  const leave = (): void => {
    unread = []
    if (state !== 'open') return
    state = 'left'
    const abort = (): void => body.controller?.abort(new Error('the reader left'))
    if (!endExpected) return abort()
    if (body.controller?.paused) body.controller.resume()
    late = setTimeout(abort, endMs).unref()
  }
  const body: Body = {
    controller: undefined,
    push(chunk) {
      if (state !== 'open') return 0
      unread.push(chunk)
      size += chunk.length
      wake?.()
      return size
    },
    end(error) {
      clearTimeout(late)
      if (state === 'ended') return
      state = 'ended'
      failure = error
      wake?.()
    },
    expectEnd() {
      endExpected = true
    },
    async *read() {
      try {
        for (;;) {
          if (unread.length > 0) {
            const chunk = unread.length === 1 ? unread[0]! : Buffer.concat(unread)
            unread = []
            size = 0
            if (body.controller?.paused) body.controller.resume()
            yield chunk
          } else if (state === 'ended') {
            break
          } else {
            await new Promise<void>((resolve) => {
              wake = resolve
            })
            wake = undefined
          }
        }
        if (failure) throw failure
      } finally {
        leave()
      }
    },
  }
  return body
}

/** The whole body as a JSON object; undefined when it is none, or longer than `limit` bytes. */
export async function readJson(reply: Reply, limit: number): Promise<Record<string, unknown> | undefined> {
  const parts: Buffer[] = []
  let size = 0
  for await (const part of reply.body) {
    size += part.length
    if (size > limit) return undefined
    parts.push(part)
  }
  try {
    const value: unknown = JSON.parse(Buffer.concat(parts).toString('utf8'))
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}
