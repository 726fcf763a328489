/** Whether a worker is alive: it has an open poll, or sent something a moment ago. */
export interface Presence {
  readonly lastPollAt: number | undefined
  readonly present: boolean
  /** Must be called when a poll opens. The returned function must be called when the poll ends. */
  polls(): () => void
  /** Called when anything else came from the worker. */
  seen(): void
  /** Resolves once a poll is open. */
  connected(signal: AbortSignal): Promise<void>
  /** Calls back once the worker has been silent for too long. Returns a function that stops watching. */
  watch(onLost: () => void): () => void
}

/** When a check is this late, this process itself was blocked. */
const lateMs = 1_000

/** `lostMs`: how long a worker may be silent between two polls. */
export function createPresence(lostMs: number): Presence {
  let open = 0
  let lastPollAt: number | undefined
  let seenAt = -Infinity
  const arrivals = new Set<() => void>()
  const seen = (): void => {
    seenAt = performance.now()
  }
  const silentMs = (): number => (open > 0 ? 0 : performance.now() - seenAt)
  return {
    get lastPollAt() {
      return lastPollAt
    },
    get present() {
      return silentMs() < lostMs
    },
    polls() {
      open++
      lastPollAt = Date.now()
      for (const arrive of arrivals) arrive()
      return () => {
        open--
        seen()
      }
    },
    seen,
    connected: (signal) =>
      new Promise((resolve, reject) => {
        if (open > 0) return resolve()
        const settle = (): void => {
          arrivals.delete(arrive)
          signal.removeEventListener('abort', leave)
        }
        const arrive = (): void => {
          settle()
          resolve()
        }
        const leave = (): void => {
          settle()
          reject(signal.reason as Error)
        }
        if (signal.aborted) return leave()
        arrivals.add(arrive)
        signal.addEventListener('abort', leave)
      }),
    watch(onLost) {
      // Silence counts from now on: before, the worker had no reason to send anything.
      let since = performance.now()
      let timer: NodeJS.Timeout
      const look = (due: number): void => {
        const now = performance.now()
        // This process was blocked and has not yet read what the worker sent, so the silence starts anew.
        if (now - due > lateMs) since = now
        const silent = Math.min(silentMs(), now - since)
        if (silent >= lostMs) onLost()
        else timer = setTimeout(look, lostMs - silent, now + lostMs - silent)
      }
      look(since)
      return () => clearTimeout(timer)
    },
  }
}
