/** Waits of synchronous calls. When the server stops they get `drainMs` more, so that most calls under way still get their answer. */
export interface SyncWaits {
  /** What `work` resolves to, or why there is nothing yet; then its signal aborts. */
  for<T>(work: (signal: AbortSignal) => Promise<T>, ms: number): Promise<T | 'timeout' | 'stopping'>
}

export function createSyncWaits(stopping: AbortSignal, drainMs: number): SyncWaits {
  const giveUps = new Set<() => void>()
  let drained = false
  const stop = (): void => {
    setTimeout(() => {
      drained = true
      for (const giveUp of giveUps) giveUp()
    }, drainMs).unref()
  }
  if (stopping.aborted) stop()
  else stopping.addEventListener('abort', stop, { once: true })
  return {
    for<T>(work: (signal: AbortSignal) => Promise<T>, ms: number) {
      const over = new AbortController()
      return new Promise<T | 'timeout' | 'stopping'>((resolve, reject) => {
        if (drained) return resolve('stopping')
        const end = (why: 'timeout' | 'stopping'): void => {
          resolve(why)
          over.abort()
        }
        const giveUp = (): void => end('stopping')
        const timer = setTimeout(() => end('timeout'), ms)
        giveUps.add(giveUp)
        work(over.signal)
          .then(resolve, reject)
          .finally(() => {
            clearTimeout(timer)
            giveUps.delete(giveUp)
          })
      })
    },
  }
}
