/** Waits of synchronous calls. When the server stops they get `drainMs` more, so that most calls under way still get their answer. */
export interface SyncWaits {
  /** The value, or why there is none yet. */
  for<T>(promise: Promise<T>, ms: number): Promise<T | 'timeout' | 'stopping'>
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
    for<T>(promise: Promise<T>, ms: number) {
      return new Promise<T | 'timeout' | 'stopping'>((resolve, reject) => {
        if (drained) return resolve('stopping')
        const giveUp = (): void => resolve('stopping')
        const timer = setTimeout(() => resolve('timeout'), ms)
        giveUps.add(giveUp)
        promise.then(resolve, reject).finally(() => {
          clearTimeout(timer)
          giveUps.delete(giveUp)
        })
      })
    },
  }
}
