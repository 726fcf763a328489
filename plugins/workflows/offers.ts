import type { Wake } from '#contracts/jobs'

/** The gap between the first two offers of a run. Each further gap is twice as long, up to `longestMs`. */
const firstMs = 500
const longestMs = 15_000
/** An offer that was last made so long ago is forgotten: the run went on in another process, and this one was not told. */
const forgottenMs = 10 * longestMs

interface Offered {
  /** How long after the next offer the one after it comes. */
  readonly gapMs: number
  /** The time of the next offer. */
  readonly at: number
}

/**
 * When this process offers a run, of which it has no room for all ready nodes, to the other processes. Each offer costs all of them a look. A
 * process that has looked goes on with the run by itself as long as it has ready nodes, or waits for its own room. So a run is offered at once when it
 * has more than fits, for the processes that know nothing of it, and then ever less often, for those that start later.
 */
export class Offers {
  readonly #now: () => number
  readonly #offered = new Map<string, Offered>()
  #cleanAt = 0

  constructor(now: () => number = () => performance.now()) {
    this.#now = now
  }

  /** Whether the run has to be offered now. If so, the caller offers it. */
  take(run: string): boolean {
    if (this.#waitMs(run) > 0) return false
    this.#count(run)
    return true
  }
  /** After how many milliseconds the caller offers a run that wholly waits for room. It is never offered at once, because this process has just looked. */
  later(run: string): number {
    if (this.#waitMs(run) <= 0) this.#count(run)
    return this.#waitMs(run)
  }
  /** The run has no more ready nodes than this process has room for. The next time that it has, it is offered at once. */
  over(run: string): void {
    this.#offered.delete(run)
  }

  #waitMs(run: string): number {
    return (this.#offered.get(run)?.at ?? -Infinity) - this.#now()
  }
  #count(run: string): void {
    const now = this.#now()
    if (now > this.#cleanAt) this.#clean(now)
    const gapMs = this.#offered.get(run)?.gapMs ?? firstMs
    this.#offered.set(run, { gapMs: Math.min(longestMs, 2 * gapMs), at: now + gapMs })
  }
  #clean(now: number): void {
    for (const [run, { at }] of this.#offered) if (at < now - forgottenMs) this.#offered.delete(run)
    this.#cleanAt = now + longestMs
  }
}

/** A wake-up that offers a run, which has more ready nodes than the sender has room for, to whichever process has room. */
export const offerOf = (tenantId: string, runId: string, afterMs?: number): Wake => ({
  tenantId,
  what: { tenantId, runId, offer: 'yes' },
  key: `${runId}/offer`,
  ...(afterMs === undefined ? {} : { afterMs }),
})
