import { isAppError } from '#kernel'
import { retry } from '#kit'

/** A runner that comes back is found within 5 s. A thousand workers of an unreachable runner send it 200 requests per second. */
export const waits = { firstMs: 100, longestMs: 5_000, spread: true }

/** The signals by which a worker gives up its work. */
export interface Lifetime {
  /** Aborts when the worker begins to stop. Failures are not retried from then on. */
  readonly stopping: AbortSignal
  /** Aborts when the worker's time is over. All running work ends. */
  readonly over: AbortSignal
}

/** Retries an attempt while its failure may pass, for `withinMs` at most. */
export const persist = <T>(attempt: () => Promise<T>, { stopping }: Lifetime, withinMs = Infinity): Promise<T> =>
  retry(attempt, { ...waits, withinMs, stopping, mayPass: (error) => isAppError(error) && error.retryable })
