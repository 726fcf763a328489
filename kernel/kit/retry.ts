import { setTimeout as sleep } from 'node:timers/promises'
import pRetry from 'p-retry'

export interface Retries {
  /** Milliseconds before the second attempt; each later wait is `factor` times as long, up to `longestMs`. */
  readonly firstMs: number
  readonly longestMs: number
  /** 2 by default. */
  readonly factor?: number
  /** The most attempts after the first. Absent: no limit. */
  readonly most?: number
  /** Milliseconds after the first attempt during which another attempt may begin. */
  readonly withinMs?: number
  /** Draws waits from their upper half, so that callers that failed together do not retry together. */
  readonly spread?: boolean
  /** Ends the retrying: rejects with the signal's reason, even if an attempt succeeds later. */
  readonly signal?: AbortSignal | undefined
  /** Instead of `signal`, when a success still counts: ends the waiting, and the attempt that follows at once is the last one. */
  readonly stopping?: AbortSignal
  /** Whether another attempt may succeed. A number: not before that many milliseconds. */
  readonly mayPass?: (error: unknown, attempt: number) => boolean | number
}

/** Retries what may succeed later. Rejects with the last failure. */
export async function retry<T>(attempt: () => Promise<T>, options: Retries): Promise<T> {
  const began = performance.now()
  options.signal?.throwIfAborted()
  try {
    // Most work succeeds at once, and then avoids p-retry, which costs more than a small statement.
    const result = await attempt()
    options.signal?.throwIfAborted()
    return result
  } catch (error) {
    return again(attempt, { error, began }, options)
  }
}

/** The first attempt has already failed. It fails again inside p-retry, so that p-retry counts it and waits after it. */
async function again<T>(
  attempt: () => Promise<T>,
  first: { readonly error: unknown; readonly began: number },
  options: Retries,
): Promise<T> {
  const { firstMs, longestMs, factor = 2, most = Infinity, withinMs = Infinity, spread = false } = options
  const { signal, stopping, mayPass = () => true } = options
  const end = first.began + withinMs
  const hurry = new AbortController()
  const stop = (): void => hurry.abort()
  const waiting = stopping ? hurry.signal : signal
  try {
    return await pRetry(
      async (number) => {
        stopping?.removeEventListener('abort', stop)
        if (number === 1) throw new Failed(first.error)
        try {
          return await attempt()
        } catch (error) {
          throw new Failed(error)
        }
      },
      {
        retries: most,
        minTimeout: spread ? firstMs / 2 : firstMs,
        maxTimeout: longestMs,
        factor,
        randomize: spread,
        maxRetryTime: Math.max(0, end - performance.now()),
        ...(waiting ? { signal: waiting } : {}),
        async shouldRetry({ error, attemptNumber, retryDelay }) {
          const when = mayPass(error.cause, attemptNumber)
          if (when === false || stopping?.aborted) return false
          stopping?.addEventListener('abort', stop)
          const longer = when === true ? 0 : when - retryDelay
          if (longer <= 0) return true
          if (performance.now() + longer > end) return false
          await sleep(longer, undefined, { signal: waiting })
          return true
        },
      },
    )
  } catch (error) {
    if (error instanceof Failed) throw error.cause
    if (hurry.signal.aborted) return attempt()
    throw error
  } finally {
    stopping?.removeEventListener('abort', stop)
  }
}

/** Wraps the error of an attempt, because p-retry itself judges errors by their class, and a `TypeError` ends the retrying. */
class Failed extends Error {
  constructor(cause: unknown) {
    super('an attempt failed', { cause })
  }
}
