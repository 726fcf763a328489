import { isAppError } from '#kernel'
import { retry } from '#kit'

/** A runner that comes back is found within 5 s; a thousand workers of one that cannot be reached ask it 200 times a second. */
export const waits = { firstMs: 100, longestMs: 5_000, spread: true }

/** When a worker gives up what it is doing. */
export interface Lifetime {
  /** Aborts when the worker is to stop: what fails from then on is not tried again. */
  readonly stopping: AbortSignal
  /** Aborts when the worker's time is over: everything still under way ends. */
  readonly over: AbortSignal
}

/** Repeats what may be repeated until it succeeds, for ever unless told for how long. */
export const persist = <T>(attempt: () => Promise<T>, { stopping }: Lifetime, withinMs = Infinity): Promise<T> =>
  retry(attempt, { ...waits, withinMs, stopping, mayPass: (error) => isAppError(error) && error.retryable })
