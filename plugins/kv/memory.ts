import { HitWindows, mostKeys, tooManyKeys } from '#kit'
import { type Store, storeForgot } from './store.ts'

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
