import pLimit, { type LimitFunction } from 'p-limit'
import type { ModelFetch } from '#contracts/model'

/** Runs work with the same name one after the other, and work with different names concurrently. */
export class Turns {
  readonly #last = new Map<string, Promise<unknown>>()

  async take<T>(name: string, work: () => Promise<T>): Promise<T> {
    const before = this.#last.get(name) ?? Promise.resolve()
    const mine = before.then(work)
    const settled = mine.catch(() => {})
    this.#last.set(name, settled)
    try {
      return await mine
    } finally {
      if (this.#last.get(name) === settled) this.#last.delete(name)
    }
  }
}

interface SharesOptions {
  /** How much work is under way at once, of all tenants; any amount unless given. */
  readonly together?: number
  /** How much of one tenant is under way at once. */
  readonly each: number
  /** How much of one tenant may wait. */
  readonly mostWaiting: number
  /** Makes the error for work of a tenant of which so much waits already. */
  busy(): Error
}

/** Work of tenants with a share for each. What a tenant has waiting waits for that tenant alone, so nobody is behind all work of another one. */
export class Shares {
  readonly #options: SharesOptions
  readonly #all: LimitFunction
  readonly #tenants = new Map<string, LimitFunction>()
  constructor(options: SharesOptions) {
    this.#options = options
    this.#all = pLimit(options.together ?? Infinity)
  }

  async take<T>(tenantId: string, work: () => Promise<T>): Promise<T> {
    const { each, mostWaiting, busy } = this.#options
    const own = this.#tenants.get(tenantId) ?? pLimit(each)
    if (own.pendingCount >= mostWaiting) throw busy()
    this.#tenants.set(tenantId, own)
    try {
      return await own(() => this.#all(work))
    } finally {
      if (own.activeCount + own.pendingCount === 0) this.#tenants.delete(tenantId)
    }
  }
}

/** A fetch whose large answers take turns: each part of a large answer waits behind small work. */
export const inTurns =
  (fetch: ModelFetch, smallBytes: number, turnOf: (part: Uint8Array) => Promise<void>): ModelFetch =>
  async (input, init) => {
    const answer = await fetch(input, init)
    const { status, statusText, headers, body } = answer
    if (!body || Number(headers.get('content-length') ?? Infinity) <= smallBytes) return answer
    let bytes = 0
    const paced = body.pipeThrough(
      new TransformStream<Uint8Array, Uint8Array>({
        async transform(part, controller) {
          bytes += part.length
          if (bytes > smallBytes) await turnOf(part)
          controller.enqueue(part)
        },
      }),
    )
    return new Response(paced, { status, statusText, headers })
  }
