import { setTimeout as sleep } from 'node:timers/promises'
import { isAppError } from '#kernel'

const firstMs = 100
/** A runner that comes back is found within this time; a thousand workers of one that is away ask it 400 times a second. */
const mostMs = 5_000

/** Longer and longer pauses between attempts, each drawn from the upper half so that many workers do not knock at once. */
export interface Backoff {
  pause(signal: AbortSignal): Promise<void>
  reset(): void
}

export function createBackoff(): Backoff {
  let ms = firstMs
  return {
    async pause(signal) {
      const drawn = ms * (0.5 + Math.random() / 2)
      ms = Math.min(ms * 2, mostMs)
      await sleep(drawn, undefined, { signal }).catch(() => {})
    },
    reset() {
      ms = firstMs
    },
  }
}

const mayRetry = (error: unknown): boolean => isAppError(error) && error.retryable

/** When a worker gives up what it is doing. */
export interface Lifetime {
  /** Aborts when the worker is to stop: what fails from then on is not tried again. */
  readonly stopping: AbortSignal
  /** Aborts when the worker's time is over: everything still under way ends. */
  readonly over: AbortSignal
}

/** Repeats what may be repeated until it succeeds, for ever unless told for how long. */
export async function persist<T>(attempt: () => Promise<T>, { stopping }: Lifetime, forMs = Infinity): Promise<T> {
  const backoff = createBackoff()
  const until = performance.now() + forMs
  for (;;) {
    try {
      return await attempt()
    } catch (error) {
      if (stopping.aborted || !mayRetry(error) || performance.now() >= until) throw error
    }
    await backoff.pause(stopping)
  }
}
