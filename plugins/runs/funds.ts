import type { FastifyBaseLogger } from 'fastify'
import { type Billing, unpricedModel } from '#contracts/billing'
import { microcentsPerCent, type Prices } from '#contracts/prices'
import type { Claim } from '#contracts/run-store'
import type { Ending, RunOrder } from './ending.ts'
import type { RunUsage } from './usage.ts'

/** The share of the held amount at which more is held, so that a model call seldom exceeds the hold. */
const headroom = 0.8

/** Errors that end a run while a model call may be under way. */
const stops: readonly string[] = ['timeout', 'budget_exceeded']

interface FundsDeps {
  readonly billing: Billing
  /** Undefined: tool calls and sandboxes cost nothing. */
  readonly prices: Pick<Prices, 'services'> | undefined
  readonly log: FastifyBaseLogger
}

/** The run that the money is for. */
interface Spending {
  readonly usage: Pick<RunUsage, 'ownCents' | 'unpriced' | 'modelCalls' | 'toolCalls' | 'sandbox'>
  /** The start of execution in milliseconds of the monotonic clock, moved forward by the time the run waited for people. */
  readonly beganAt: number
  /** Called with the sentence that names the exhausted budget. */
  onExceeded(sentence: string): void
}

/**
 * The amount held for a run from its tenant's credit and budgets. It is checked after each model call and tool call. Only a run that costs more
 * than was held at its start queries the database.
 */
export class Funds {
  readonly #deps: FundsDeps
  readonly #claim: Claim
  readonly #run: Spending
  /** Microcents. 0: this process does not know the amount, so the next check queries the database. */
  #held: number
  #asking = false
  /** How many calls the run had made at the last query. Until the next call there is nothing to query. */
  #asked = 0

  /** `held`: microcents, given when this process started the run. */
  constructor(deps: FundsDeps, { claim, held = 0 }: Pick<RunOrder, 'claim' | 'held'>, run: Spending) {
    this.#deps = deps
    this.#claim = claim
    this.#run = run
    this.#held = held
  }

  /**
   * Called when a delegated run takes a part of the hold. Forgets the held amount, and returns what this run itself has spent so far, in cents,
   * which no child may use.
   */
  share(): number {
    this.#held = 0
    this.#asked = 0
    return this.#spent / microcentsPerCent
  }
  /** Called when the run may have spent more. Resolves once more is held, where that is needed. */
  look(): Promise<void> | undefined {
    const { billing } = this.#deps
    const { unpriced, modelCalls, toolCalls } = this.#run.usage
    if (unpriced !== undefined && billing.refusesUnpriced) this.#run.onExceeded(unpricedModel(unpriced))
    const calls = modelCalls + toolCalls
    if (this.#asking || calls === this.#asked) return undefined
    const spent = this.#spent
    if (spent < Math.min(this.#held * headroom, this.#held - billing.reserveMicrocents)) return undefined
    this.#asked = calls
    return this.#extend(spent)
  }

  /** Called when the run is over, before it is charged: a call that was cut off is paid for as well, however the run was stopped. */
  over(ending: Ending, { session, task }: Pick<RunOrder, 'session' | 'task'>, usage: RunUsage): void {
    if (ending.status === 'ok') return
    usage.cutOff(session, task, ending.status === 'cancelled' || stops.includes(ending.code))
  }

  /** Microcents that the run would be charged for if it ended now. */
  get #spent(): number {
    const { usage, beganAt } = this.#run
    const { toolCall = 0, sandboxSecond = 0 } = this.#deps.prices?.services ?? {}
    const seconds = usage.sandbox ? usage.sandbox.idleSeconds + (Date.now() - beganAt) / 1_000 : 0
    return Math.round(usage.ownCents * microcentsPerCent + usage.toolCalls * toolCall + seconds * sandboxSecond)
  }
  async #extend(spent: number): Promise<void> {
    const { tenantId, runId } = this.#claim
    this.#asking = true
    try {
      const held = await this.#deps.billing.extend(tenantId, runId, spent)
      if (typeof held === 'number') this.#held = held
      else this.#run.onExceeded(held.sentence ?? held.message)
    } catch (err) {
      // The next model call queries again. The end of the run charges what this call cost in any case.
      this.#deps.log.warn({ err, runId }, 'the hold of a run could not be raised yet')
    } finally {
      this.#asking = false
    }
  }
}
