import type { Dispatcher } from 'undici'

/** How long an answer whose reader has left may take to end. */
const endMs = 1_000

export interface Body {
  controller: Dispatcher.DispatchController | undefined
  /** Answers how many bytes are unread. */
  push(chunk: Buffer): number
  end(error?: Error): void
  expectEnd(): void
  read(): AsyncGenerator<Buffer>
}

/** The bytes of one answer between its socket and its one reader. */
export function createBody(): Body {
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
