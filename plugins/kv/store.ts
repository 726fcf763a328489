import { type AppError, unavailable } from '#kernel'
import type { Hit, Kv } from '#contracts/kv'
import { HitWindows, mostKeys, tooManyKeys } from '#kit'

/** What each store can do by itself; see `Kv` for the promises. */
export interface Store {
  readonly claim: Kv['claim']
  hit(key: string, limit: number, windowSeconds: number): Promise<Hit>
}

export type Subscriber = (message: string) => void

/** Who listens to which channel in this process. */
export interface Channels {
  /** Returns the function that unsubscribes; it returns true when no listener is left. */
  add(channel: string, listener: Subscriber): () => boolean
  has(channel: string): boolean
  names(): string[]
  readonly size: number
  deliver(channel: string, message: string): void
}

const again = (message: string, cause?: unknown): AppError => unavailable({ message, retryable: true, cause })
export const storeAway = (cause: unknown) =>
  again('The shared state of this service does not answer; try again shortly.', cause)
export const storeForgot = () => again('This was made before the memory of this service began; make it anew.')

const sweepEveryMs = 10_000
const leastSweepGapMs = 1_000

export interface MemoryOptions {
  /** Milliseconds on a clock that never goes back; tests give their own. */
  readonly now?: () => number
  readonly limit?: number
}

/** A store in the memory of one process. It keeps the same promises as the others, but no other process sees it. */
export function createMemoryStore({ now = () => performance.now(), limit = mostKeys }: MemoryOptions = {}) {
  const claims = new Map<string, number>()
  // The dates in signed requests are whole seconds.
  const begun = Math.floor(Date.now() / 1_000) * 1_000
  let sweptAt = -Infinity

  const sweep = (): void => {
    sweptAt = now()
    for (const [key, goneAt] of claims) if (goneAt <= sweptAt) claims.delete(key)
  }
  // One timer for all keys. When full, sweeping at every call would cost more than it frees.
  const timer = setInterval(sweep, sweepEveryMs).unref()

  const store: Store = {
    async claim(key, ttlMs, madeAt = begun) {
      if (madeAt < begun) throw storeForgot()
      const goneAt = claims.get(key)
      if (goneAt !== undefined && goneAt > now()) return false
      if (goneAt === undefined && claims.size >= limit && now() - sweptAt >= leastSweepGapMs) sweep()
      if (!claims.has(key) && claims.size >= limit) throw tooManyKeys()
      claims.set(key, now() + ttlMs)
      return true
    },
    hit: new HitWindows(now, limit).hit,
  }
  return { ...store, close: () => clearInterval(timer) }
}
