import type { Hit } from '#contracts/kv'
import { type Store, storeForgot, storeFull } from './store.ts'

// About 40 MB of nonces; beyond that a caller is refused, because forgetting one would let it be replayed.
const mostKeys = 200_000
const sweepEveryMs = 10_000
const leastSweepGapMs = 1_000

export interface MemoryOptions {
  /** Milliseconds on a clock that never goes back; tests give their own. */
  readonly now?: () => number
  readonly limit?: number
}

interface Window {
  /** Hits by second, oldest first. */
  readonly buckets: Map<number, number>
  goneAt: number
}

/** A store in the memory of one process. It keeps the same promises as the others, but no other process sees it. */
export function createMemoryStore({ now = () => performance.now(), limit = mostKeys }: MemoryOptions = {}) {
  const claims = new Map<string, number>()
  const windows = new Map<string, Window>()
  // The dates in signed requests are whole seconds.
  const begun = Math.floor(Date.now() / 1_000) * 1_000
  let sweptAt = -Infinity

  const sweep = (): void => {
    sweptAt = now()
    for (const [key, goneAt] of claims) if (goneAt <= sweptAt) claims.delete(key)
    for (const [key, { goneAt }] of windows) if (goneAt <= sweptAt) windows.delete(key)
  }
  // One timer for all keys. When full, sweeping at every call would cost more than it frees.
  const timer = setInterval(sweep, sweepEveryMs).unref()
  const makeRoom = (size: () => number): void => {
    if (size() >= limit && now() - sweptAt >= leastSweepGapMs) sweep()
    if (size() >= limit) throw storeFull()
  }

  const store: Store = {
    async claim(key, ttlMs, madeAt = begun) {
      if (madeAt < begun) throw storeForgot()
      const goneAt = claims.get(key)
      if (goneAt !== undefined && goneAt > now()) return false
      if (goneAt === undefined) makeRoom(() => claims.size)
      claims.set(key, now() + ttlMs)
      return true
    },
    async hit(key, most, windowSeconds) {
      let window = windows.get(key)
      if (!window) {
        makeRoom(() => windows.size)
        windows.set(key, (window = { buckets: new Map(), goneAt: 0 }))
      }
      window.goneAt = now() + (windowSeconds + 1) * 1_000
      return countHit(window.buckets, now(), most, windowSeconds)
    },
  }
  return { ...store, close: () => clearInterval(timer) }
}

/**
 * A bucket counts until its last instant is a whole window ago, hence one bucket more than the window has seconds:
 * with just as many, the limit could be met at the end of one second and again at the start of the last.
 */
function countHit(buckets: Map<number, number>, now: number, most: number, windowSeconds: number): Hit {
  const second = Math.floor(now / 1_000)
  let count = 0
  let oldest = second
  for (const [at, hits] of buckets) {
    if (at < second - windowSeconds) buckets.delete(at)
    else {
      count += hits
      oldest = Math.min(oldest, at)
    }
  }
  if (count >= most) {
    return { allowed: false, count, retryAfterMs: Math.ceil((oldest + windowSeconds + 1) * 1_000 - now) }
  }
  buckets.set(second, (buckets.get(second) ?? 0) + 1)
  return { allowed: true, count: count + 1, retryAfterMs: 0 }
}
