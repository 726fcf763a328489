import { setTimeout as sleep } from 'node:timers/promises'
import { leastOf, type LimitName, overLimit, type WaitForTurn } from '#contracts/limits'
import { Ahead, ahead, type LoopLooks, loopLooks, Pace } from '#kit'

/** The longest wait of a request in ms, while turns pass at three times the average. When they are further apart, as many may wait. */
const longestMs = 2_000
/** Turns without a request are no further apart, in ms: whatever the limit is now, they are of work that it allowed. */
const mostApartMs = 20_000

/** The turns of each tenant, by limit: some pass at once, the next ones ahead of the average of a minute, and how far depends on the process. */
export class TenantTurns {
  readonly #limitOf: (tenantId: string, kind: LimitName) => number
  readonly #pace = new Pace({ atOnce: ahead.atOnce, longestMs })
  readonly #ahead: Ahead

  constructor(limitOf: (tenantId: string, kind: LimitName) => number, looks: LoopLooks = loopLooks()) {
    this.#limitOf = limitOf
    this.#ahead = new Ahead(looks)
  }

  /** Resolves when it is the turn of a request of this weight; see `TenantLimits.turn`. */
  async take(tenantId: string, kind: LimitName, weight: number, patient: boolean): Promise<void> {
    this.#ahead.works(tenantId, weight)
    const longest = this.#longestMs
    // Patient work has its place behind those who wait: if it had to find one that is free, those who ask more often would have it each time.
    const waitMs = this.#pace.turnOf(
      keyOf(tenantId, kind),
      this.#everyMs(tenantId, kind),
      weight,
      patient ? Infinity : longest,
    )
    if (waitMs === 0) return
    this.#ahead.waits()
    if (waitMs === undefined) throw this.#over(tenantId, kind, Math.ceil(longest / 1_000))
    await sleep(waitMs, undefined, { ref: false })
  }
  /** Takes turns for what was done already. */
  owe(tenantId: string, kind: LimitName, turns: number): void {
    this.#ahead.works(tenantId, turns)
    this.#pace.owe(keyOf(tenantId, kind), this.#everyMs(tenantId, kind), turns)
  }
  /** The process works for a tenant without a turn of it; see `TenantLimits.works`. */
  works(tenantId: string): void {
    this.#ahead.works(tenantId)
  }
  /** Bytes for so many turns were passed on, which costs far less than as many requests. */
  passed(tenantId: string, turns: number): void {
    this.#ahead.works(tenantId, turns / 16)
  }
  /** How much of a limit in which nobody is ahead a tenant has in a minute now. */
  nowOf(tenantId: string, kind: LimitName): number {
    return Math.min(this.#limitOf(tenantId, kind), this.#rateOf(tenantId, kind))
  }
  /** Whether a request would be refused now, since as many wait as may. */
  isFull(tenantId: string, kind: LimitName): boolean {
    return this.#pace.isFull(keyOf(tenantId, kind), this.#everyMs(tenantId, kind), this.#longestMs)
  }
  /** Turns of other work; see `TenantLimits.pace`. */
  pace(atOnce: number): WaitForTurn {
    const pace = new Pace({ atOnce, longestMs: Infinity })
    return async (tenantId, signal, turns) => {
      this.#ahead.works(tenantId, turns)
      const waitMs = pace.turnOf(tenantId, Math.min(mostApartMs, this.#everyMs(tenantId, 'writesPerMinute')), turns)!
      if (waitMs === 0) return
      this.#ahead.waits()
      await sleep(waitMs, undefined, { ref: false, ...(signal ? { signal } : {}) })
    }
  }
  /** Turns of work without an end; see `TenantLimits.steady`. */
  steady(atOnce: number): (tenantId: string) => number {
    const pace = new Pace({ atOnce, longestMs: Infinity })
    return (tenantId) =>
      pace.turnOf(tenantId, Math.min(mostApartMs, 60_000 / this.#limitOf(tenantId, 'writesPerMinute')))!
  }
  /** How many times the average of its limits a tenant may be ahead now. */
  get factor(): number {
    return this.#ahead.factor
  }
  /** How many tenants have fewer turns than their limits say, because others need the time. */
  get givingWay(): number {
    return this.#ahead.givingWay
  }
  stop(): void {
    this.#ahead.stop()
  }

  /** Milliseconds between two turns. */
  #everyMs(tenantId: string, kind: LimitName): number {
    return 60_000 / this.#rateOf(tenantId, kind)
  }
  #rateOf(tenantId: string, kind: LimitName): number {
    return this.#ahead.rateOf(tenantId, this.#limitOf(tenantId, kind), leastOf(kind))
  }
  #over(tenantId: string, kind: LimitName, retryAfterSeconds: number) {
    const now = Math.floor(this.#rateOf(tenantId, kind))
    return overLimit(kind, this.#limitOf(tenantId, kind), retryAfterSeconds, now)
  }
  get #longestMs(): number {
    return (longestMs * ahead.factor) / this.#ahead.factor
  }
}

const keyOf = (tenantId: string, kind: LimitName): string => `${tenantId} ${kind}`
