import type { FastifyBaseLogger } from 'fastify'
import { type Billing, unpricedModel } from '#contracts/billing'
import { microcentsPerCent } from '#contracts/prices'
import type { Claim } from '#contracts/run-store'

/** More is held before what is there is spent to the end, so that a model call seldom goes beyond it. */
const headroom = 0.8

export interface FundsDeps {
  /** Undefined: runs need no money. */
  readonly billing: Billing | undefined
  readonly log: FastifyBaseLogger
}

/**
 * What is held for a run of the credit and the budgets of its tenant. Looked at after each model call; only a run that costs
 * more than was held at its start asks the database.
 */
export class Funds {
  readonly #deps: FundsDeps
  readonly #claim: Claim
  readonly #onExceeded: (sentence: string) => void
  /** Microcents. 0: how much is not known here, so that the next look asks. */
  #held: number
  #asking = false
  /** What was spent when it was asked last: before the next model call there is nothing to ask. */
  #asked = 0

  /** `held`: microcents, when this process has started the run. `onExceeded` is told which budget has no more. */
  constructor(deps: FundsDeps, claim: Claim, held: number | undefined, onExceeded: (sentence: string) => void) {
    this.#deps = deps
    this.#claim = claim
    this.#held = held ?? 0
    this.#onExceeded = onExceeded
  }

  /** A delegated run has taken a part of it. */
  share(): void {
    this.#held = 0
    this.#asked = 0
  }
  /**
   * Called with what the run has spent itself by now, in cents, and a model without a price that it has used. Resolves once more is held,
   * where that is needed.
   */
  look(cents: number, unpriced?: string): Promise<void> | undefined {
    const { billing } = this.#deps
    if (!billing) return undefined
    if (unpriced !== undefined && billing.refusesUnpriced) this.#onExceeded(unpricedModel(unpriced))
    const spent = Math.round(cents * microcentsPerCent)
    const enough = Math.min(this.#held * headroom, this.#held - billing.reserveMicrocents)
    if (this.#asking || spent === this.#asked || spent < enough) return undefined
    this.#asked = spent
    return this.#extend(billing, spent)
  }

  async #extend(billing: Billing, spent: number): Promise<void> {
    const { tenantId, runId } = this.#claim
    this.#asking = true
    try {
      const held = await billing.extend(tenantId, runId, spent)
      if (typeof held === 'number') this.#held = held
      else this.#onExceeded(held.sentence ?? held.message)
    } catch (err) {
      // The next model call asks again. What this one cost is charged at the end of the run in any case.
      this.#deps.log.warn({ err, runId }, 'no more could be held for a run yet')
    } finally {
      this.#asking = false
    }
  }
}
