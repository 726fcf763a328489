import type { ServerResponse } from 'node:http'
import { onceClosed } from '#kernel'
import type { Held } from '#kit'

/** Why a synchronous call stopped waiting. `gone`: its client disconnected, so nobody reads the answer. `revoked`: its key is no longer valid. */
export type GaveUp = 'timeout' | 'stopping' | 'gone' | 'revoked'

/** Whose key waits. */
type Waiter = Pick<Held, 'tenantId' | 'keyId'>

/** Sets how many milliseconds a synchronous call may take. */
export type Within = (ms: number) => void

/** Waits of synchronous calls. When the server stops they get `drainMs` more, so that most calls under way still get their answer. */
export class SyncWaits {
  readonly #giveUps = new Map<(why: GaveUp) => void, Waiter>()
  #drained = false

  constructor(stopping: AbortSignal, drainMs: number) {
    const drain = (): void => {
      this.#drained = true
      for (const giveUp of this.#giveUps.keys()) giveUp('stopping')
    }
    const stop = (): void => void setTimeout(drain, drainMs).unref()
    if (stopping.aborted) stop()
    else stopping.addEventListener('abort', stop, { once: true })
  }

  /** The waits that must end when their key becomes invalid. */
  *held(): Generator<Held> {
    for (const [giveUp, { tenantId, keyId }] of this.#giveUps) yield { tenantId, keyId, end: () => giveUp('revoked') }
  }

  /**
   * Resolves to the result of `work`, or to the reason why there is none yet. `work` says how many milliseconds the call may take from its
   * beginning, and may say so again.
   */
  async for<T>(work: (within: Within) => Promise<T>, waiter: Waiter, client: ServerResponse): Promise<T | GaveUp> {
    if (this.#drained) return 'stopping'
    const { promise, resolve, reject } = Promise.withResolvers<T | GaveUp>()
    const giveUp = (why: GaveUp): void => resolve(why)
    const gone = (): void => resolve('gone')
    const began = performance.now()
    let timer: NodeJS.Timeout | undefined
    const within = (ms: number): void => {
      if (!this.#giveUps.has(giveUp)) return
      clearTimeout(timer)
      timer = setTimeout(resolve, ms - (performance.now() - began), 'timeout')
    }
    this.#giveUps.set(giveUp, waiter)
    onceClosed(client, gone)
    work(within).then(resolve, reject)
    try {
      return await promise
    } finally {
      clearTimeout(timer)
      this.#giveUps.delete(giveUp)
      client.off('close', gone)
    }
  }
}
