import type { FastifyBaseLogger } from 'fastify'
import { type Billing, unpricedModel } from '#contracts/billing'
import { microcentsPerCent, type Prices } from '#contracts/prices'
import type { Claim } from '#contracts/run-store'
import type { Ending, RunOrder } from './ending.ts'
import type { RunUsage } from './usage.ts'

/** More is held before what is there is spent to the end, so that a model call seldom goes beyond it. */
const headroom = 0.8

/** Errors by which a run is ended while its model may be at work. */
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
  /** Milliseconds of the clock since which it executes, as if it had never waited. */
  readonly beganAt: number
  /** Called with the sentence that says which budget has no more. */
  onExceeded(sentence: string): void
}

/**
 * What is held for a run of the credit and the budgets of its tenant. Looked at after each model call and tool call; only a run that
 * costs more than was held at its start asks the database.
 */
export class Funds {
  readonly #deps: FundsDeps
  readonly #claim: Claim
  readonly #run: Spending
  /** Microcents. 0: how much is not known here, so that the next look asks. */
  #held: number
  #asking = false
  /** How many calls there were when it was asked last: before the next one there is nothing to ask. */
  #asked = 0

  /** `held`: microcents, when this process has started the run. */
  constructor(deps: FundsDeps, { claim, held = 0 }: Pick<RunOrder, 'claim' | 'held'>, run: Spending) {
    this.#deps = deps
    this.#claim = claim
    this.#run = run
    this.#held = held
  }

  /** A delegated run takes a part of it. Answers what the run has spent itself by now, in cents, which is not for others. */
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
    usage.cutOff(session.profile, task.prompt, ending.status === 'cancelled' || stops.includes(ending.code))
  }

  /** Microcents, as it would be charged for now. */
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
      // The next model call asks again. What this one cost is charged at the end of the run in any case.
      this.#deps.log.warn({ err, runId }, 'the hold of a run could not be raised yet')
    } finally {
      this.#asking = false
    }
  }
}
