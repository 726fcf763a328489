import type { Hit } from '#contracts/kv'

interface Usage {
  /** Hits per second, at index second modulo its length: one bucket more than the window, because a second may be half inside it. */
  readonly buckets: Uint32Array
  last: number
}

/** Counts hits per key in this process: never more than `limit` in any window, whatever the load. */
export interface SlidingWindow {
  hit(key: string, limit: number, windowSeconds: number): Hit
  readonly size: number
}

/** `now` is monotonic milliseconds: a clock that is set must neither refuse nor forgive anybody. */
export function createSlidingWindow(now: () => number = () => performance.now()): SlidingWindow {
  const usages = new Map<string, Usage>()
  let cleaned = 0

  // At most once per window, when a key appears: what was idle for a whole window counts for nothing.
  const clean = (second: number, windowSeconds: number): void => {
    if (second - cleaned <= windowSeconds) return
    cleaned = second
    for (const [key, usage] of usages) if (second - usage.last > windowSeconds) usages.delete(key)
  }
  const usageOf = (key: string, second: number, windowSeconds: number): Usage => {
    const length = windowSeconds + 1
    let usage = usages.get(key)
    if (usage?.buckets.length !== length) {
      clean(second, windowSeconds)
      usage = { buckets: new Uint32Array(length), last: second }
      usages.set(key, usage)
    }
    const passed = Math.min(second - usage.last, length)
    for (let i = 1; i <= passed; i++) usage.buckets[(usage.last + i) % length] = 0
    usage.last = second
    return usage
  }

  return {
    get size() {
      return usages.size
    },
    hit(key, limit, windowSeconds) {
      const at = now()
      const second = Math.floor(at / 1_000)
      const { buckets } = usageOf(key, second, windowSeconds)
      let count = 0
      for (const hits of buckets) count += hits
      if (count < limit) {
        buckets[second % buckets.length]! += 1
        return { allowed: true, count: count + 1, retryAfterMs: 0 }
      }
      // The oldest second with hits in it leaves the window first.
      let oldest = Math.max(0, second - buckets.length + 1)
      while (oldest < second && buckets[oldest % buckets.length] === 0) oldest++
      return { allowed: false, count, retryAfterMs: Math.max(1, Math.ceil((oldest + buckets.length) * 1_000 - at)) }
    },
  }
}
