import type { FastifyBaseLogger } from 'fastify'
import type { Hit, Kv } from '#contracts/kv'
import { createChannels } from './channels.ts'
import { storeFull } from './errors.ts'

// About 40 MB of nonces; beyond that a caller is refused, because forgetting one would let it be replayed.
const mostKeys = 200_000
const sweepEveryMs = 10_000
const leastSweepGapMs = 1_000

export interface MemoryOptions {
  readonly log: FastifyBaseLogger
  /** Milliseconds on a clock that never goes back; tests give their own. */
  readonly now?: () => number
  readonly limit?: number
}

interface Window {
  /** Hits by second, oldest first. */
  readonly buckets: Map<number, number>
  goneAt: number
}

/** The state of a single process. Same promises as Redis, but nobody else sees it. */
export function createMemoryKv({ log, now = () => performance.now(), limit = mostKeys }: MemoryOptions) {
  const claims = new Map<string, number>()
  const windows = new Map<string, Window>()
  const channels = createChannels(log)
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

  const kv: Kv = {
    backend: 'memory',
    async claim(key, ttlMs) {
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
    publish(channel, message) {
      // Later, as with Redis: a publisher never finds its own listeners running inside its call.
      setImmediate(() => channels.deliver(channel, message))
    },
    subscribe(channel, listener) {
      const remove = channels.add(channel, listener)
      return () => void remove()
    },
  }
  return { kv, close: async () => clearInterval(timer) }
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
