import type { ServerResponse } from 'node:http'

/** Why a synchronous call waits no longer. `gone`: its client has left, so nobody reads the answer. */
export type GaveUp = 'timeout' | 'stopping' | 'gone'

/** Waits of synchronous calls. When the server stops they get `drainMs` more, so that most calls under way still get their answer. */
export class SyncWaits {
  readonly #giveUps = new Set<() => void>()
  #drained = false

  constructor(stopping: AbortSignal, drainMs: number) {
    const drain = (): void => {
      this.#drained = true
      for (const giveUp of this.#giveUps) giveUp()
    }
    const stop = (): void => void setTimeout(drain, drainMs).unref()
    if (stopping.aborted) stop()
    else stopping.addEventListener('abort', stop, { once: true })
  }

  /** What `work` resolves to, or why there is nothing yet. */
  async for<T>(work: () => Promise<T>, ms: number, client: ServerResponse): Promise<T | GaveUp> {
    if (this.#drained) return 'stopping'
    const { promise, resolve, reject } = Promise.withResolvers<T | GaveUp>()
    const giveUp = (): void => resolve('stopping')
    const gone = (): void => resolve('gone')
    const timer = setTimeout(resolve, ms, 'timeout')
    this.#giveUps.add(giveUp)
    client.once('close', gone)
    work().then(resolve, reject)
    try {
      return await promise
    } finally {
      clearTimeout(timer)
      this.#giveUps.delete(giveUp)
      client.off('close', gone)
    }
  }
}
