import type { Work } from '#contracts/database'
import { databaseBusy } from './errors.ts'

/** How many connections each kind of work may hold at once. Units are bounded by their lanes and not among them. */
export type Limits = Readonly<Record<Work, number>>

/** How long a unit of work waits for its turn, in milliseconds. Readers wait behind each other, and nobody behind them. */
const patience: Readonly<Record<Work, number>> = { claims: 5_000, requests: 5_000, reads: 10_000 }

interface Waiter {
  readonly enter: () => void
  readonly timer: NodeJS.Timeout
}

/** The connections of one kind of work: at most half of them for one tenant, and tenants that wait take turns. */
class Share {
  readonly #work: Work
  readonly #most: number
  #free: number
  readonly #held = new Map<string, number>()
  /** By tenant; the one whose turn is next comes first. Whoever waits here has its most, or nothing is free. */
  readonly #waiting = new Map<string, Set<Waiter>>()

  constructor(work: Work, size: number) {
    this.#work = work
    this.#free = size
    this.#most = Math.ceil(size / 2)
  }
  get waiting(): number {
    let count = 0
    for (const waiters of this.#waiting.values()) count += waiters.size
    return count
  }
  /** Undefined: enter at once. Each entry is followed by one `leave`. */
  enter(tenant: string): Promise<void> | undefined {
    if (this.#free > 0 && this.#heldBy(tenant) < this.#most) this.#take(tenant)
    else return this.#wait(tenant)
  }
  leave(tenant: string): void {
    const held = this.#heldBy(tenant) - 1
    if (held === 0) this.#held.delete(tenant)
    else this.#held.set(tenant, held)
    this.#free++
    this.#admit()
  }
  #heldBy(tenant: string): number {
    return this.#held.get(tenant) ?? 0
  }
  #take(tenant: string): void {
    this.#free--
    this.#held.set(tenant, this.#heldBy(tenant) + 1)
  }
  #admit(): void {
    for (const [tenant, waiters] of this.#waiting) {
      if (this.#free === 0) return
      if (this.#heldBy(tenant) >= this.#most) continue
      const [first] = waiters
      this.#take(tenant)
      this.#forget(tenant, first!)
      // Others come first from now on.
      if (waiters.size > 0 && this.#waiting.delete(tenant)) this.#waiting.set(tenant, waiters)
      first!.enter()
    }
  }
  #wait(tenant: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const waiter: Waiter = {
        enter: resolve,
        timer: setTimeout(() => {
          this.#forget(tenant, waiter)
          reject(databaseBusy())
        }, patience[this.#work]),
      }
      const waiters = this.#waiting.get(tenant) ?? new Set()
      this.#waiting.set(tenant, waiters.add(waiter))
    })
  }
  #forget(tenant: string, waiter: Waiter): void {
    clearTimeout(waiter.timer)
    const waiters = this.#waiting.get(tenant)
    if (waiters?.delete(waiter) && waiters.size === 0) this.#waiting.delete(tenant)
  }
}

/** Divides connections among kinds of work, and those of each kind among tenants. Work without a tenant counts as one more. */
export class Shares {
  readonly #shares: Readonly<Record<Work, Share>>

  constructor({ claims, requests, reads }: Limits) {
    this.#shares = {
      claims: new Share('claims', claims),
      requests: new Share('requests', requests),
      reads: new Share('reads', reads),
    }
  }
  /** Resolves to what `use` resolves to, which begins when it is its turn. Rejects with 503 `database_busy` when that takes too long. */
  async within<T>(work: Work, tenant: string, use: () => Promise<T>): Promise<T> {
    const share = this.#shares[work]
    const turn = share.enter(tenant)
    if (turn) await turn
    try {
      return await use()
    } finally {
      share.leave(tenant)
    }
  }
  /** How many units of each kind of work wait for their turn. */
  waiting(): Readonly<Record<Work, number>> {
    const { claims, requests, reads } = this.#shares
    return { claims: claims.waiting, requests: requests.waiting, reads: reads.waiting }
  }
}

interface Division {
  readonly size: number
  /** Connections that are nobody's share: the lanes of units. */
  readonly lanes: number
  readonly requestsPercent: number
  readonly readsPercent: number
}

/** Each kind of work has at least one connection; what the lanes, requests and reads leave is for other claims. */
export function divide({ size, lanes, requestsPercent, readsPercent }: Division): Limits {
  const rest = size - lanes
  const part = (percent: number): number => Math.max(1, Math.floor((rest * percent) / 100))
  const [requests, reads] = [part(requestsPercent), part(readsPercent)]
  return { requests, reads, claims: Math.max(1, rest - requests - reads) }
}
