/** For this long runs do without a server that was silent, instead of waiting for it each. */
const skipMs = 30_000
/** Servers are named by operators and tenants; beyond so many silent ones the oldest is waited for again. */
const maxKnown = 1_000

/** External servers that did not answer in time a moment ago. */
export interface Silence {
  isKnown(url: string): boolean
  note(url: string): void
}

export function createSilence(now: () => number = Date.now): Silence {
  const until = new Map<string, number>()
  return {
    isKnown: (url) => (until.get(url) ?? 0) > now(),
    note(url) {
      until.delete(url)
      until.set(url, now() + skipMs)
      for (const oldest of until.keys()) {
        if (until.size <= maxKnown) return
        until.delete(oldest)
      }
    },
  }
}
