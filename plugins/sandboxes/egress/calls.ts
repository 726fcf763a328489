import { costOf } from '#contracts/prices'
import type { Usage, UsageEvent } from '#contracts/run-event'
import type { RunBudget } from '#contracts/runner'
import type { MeasuredCalls } from '#contracts/workers'
import { sandboxErrors } from '../errors.ts'
import type { UsageOf } from './usage.ts'
import { UsageReader } from './usage.ts'

/**
 * The most concurrent model calls of a run. A call starts only while those before it leave some budget, so a run can exceed its budget by at most the
 * cost of this many calls.
 */
export const callsAtOnce = 4

/**
 * An estimate for servers that report no input tokens: this many bytes per token, and at most as many tokens as a model accepts, which is also the
 * estimate for a request that refers to something outside of it: a link of 60 bytes may lead to a file of any length.
 */
const bytesPerToken = 4
const mostInputTokens = 1_000_000
/**
 * An estimate of the output for servers that report none: at least this many tokens per second, because the thinking of a model need not be in the
 * answer.
 */
const tokensPerSecond = 100

/** Counts for the metrics of the runner. */
export interface CallCounts {
  /** Counts a finished call with its usage, which may be estimated. */
  measured(provider: string, usage: Omit<Usage, 'model'>): void
  refused(provider: string, why: 'budget' | 'at_once'): void
}

export interface ModelCallsOptions {
  /** `provider/model` of the profile. */
  readonly model: string
  readonly budget?: RunBudget | undefined
  readonly counts: CallCounts
  onUsage(usage: UsageEvent): void
  /** A monotonic clock in ms. */
  readonly now?: () => number
}

/** The model calls of one run. They are allowed while the run executes and budget is left, and each is measured. */
export class ModelCalls implements MeasuredCalls {
  readonly #options: ModelCallsOptions
  readonly #provider: string
  readonly #underWay = new Set<ModelCall>()
  readonly #over = new AbortController()
  /** The cost of the finished calls, in cents. */
  #spent = 0

  constructor(options: ModelCallsOptions) {
    this.#options = options
    this.#provider = options.model.slice(0, options.model.indexOf('/'))
  }

  /** Aborts when the run is over. */
  get signal(): AbortSignal {
    return this.#over.signal
  }
  /** The name of the run's model at this provider. AppError 409 `no_run_under_way`, 403 `model_not_allowed`. */
  modelAt(provider: string): string {
    if (this.signal.aborted) throw sandboxErrors.noRunUnderWay()
    const { model } = this.#options
    if (provider === this.#provider) return model.slice(provider.length + 1)
    throw sandboxErrors.modelNotAllowed({ message: `The running run may call only the model ${model}.` })
  }
  /** Starts a call. `usageOf` finds the usage in its answer. AppErrors: 403 `run_budget_spent`, 429 `too_many_model_calls`. */
  begin(usageOf: UsageOf): ModelCall {
    const { budget, counts, now = () => performance.now() } = this.#options
    if (budget && this.#spent >= budget.cents) {
      counts.refused(this.#provider, 'budget')
      throw sandboxErrors.runBudgetSpent()
    }
    // What calls under way use is an estimate until they end, and may be far less then, so a caller should try again.
    if (this.#underWay.size >= callsAtOnce || (budget && this.#spentSoFar(budget) >= budget.cents)) {
      counts.refused(this.#provider, 'at_once')
      throw sandboxErrors.tooManyModelCalls({ headers: { 'retry-after': '1' } })
    }
    const call = new ModelCall(usageOf, now, (ended) => {
      if (!this.#underWay.delete(ended)) return
      const usage = this.#measure(ended)
      if (usage) this.#options.onUsage(usage)
    })
    this.#underWay.add(call)
    return call
  }
  end(): readonly UsageEvent[] {
    const left = [...this.#underWay]
    this.#underWay.clear()
    const used = left.map((call) => this.#measure(call)).filter((usage) => usage !== undefined)
    if (!this.signal.aborted) this.#over.abort(sandboxErrors.noRunUnderWay())
    return used
  }

  #spentSoFar({ price }: RunBudget): number {
    let spent = this.#spent
    for (const { usage } of this.#underWay) spent += (usage && costOf(price, usage)) ?? 0
    return spent
  }
  #measure(call: ModelCall): UsageEvent | undefined {
    const usage = call.end()
    if (!usage) return undefined
    const { budget, counts, model } = this.#options
    if (budget) this.#spent += costOf(budget.price, usage) ?? 0
    counts.measured(this.#provider, usage)
    return { type: 'usage', ...usage, model }
  }
}

/** One model call. */
export class ModelCall {
  readonly #usageOf: UsageOf
  readonly #now: () => number
  readonly #onOver: (call: ModelCall) => void
  readonly #began: number
  /** The tokens of the request by its size, set when the last of it goes to the server. */
  #asked: number | undefined
  #reader: UsageReader | undefined

  constructor(usageOf: UsageOf, now: () => number, onOver: (call: ModelCall) => void) {
    this.#usageOf = usageOf
    this.#now = now
    this.#onOver = onOver
    this.#began = now()
  }

  /** The usage of a call that is over, as `usage`. */
  end(): Omit<Usage, 'model'> | undefined {
    this.#reader?.end()
    return this.usage
  }
  /** The usage so far. Each further request reads it, so it costs nothing. Undefined when the request has not reached a model, or the server has refused it. */
  get usage(): Omit<Usage, 'model'> | undefined {
    if (this.#asked === undefined) return undefined
    const told = this.#reader?.told
    const cached = told?.cached ? { cachedTokens: told.cached } : {}
    if (told?.whole) return { inputTokens: told.input, outputTokens: told.output, ...cached }
    const inTime = Math.round(((this.#now() - this.#began) / 1_000) * tokensPerSecond)
    return {
      inputTokens: told?.input ?? this.#asked,
      outputTokens: Math.max(told?.output ?? 0, this.#reader?.tokens ?? 0, inTime),
      ...cached,
      estimated: true,
    }
  }
  /** Must be called with the size of the request, before its last chunk is sent. It stands for at least `tokens`, whatever its size. */
  asked(bytes: number, tokens = 0): void {
    this.#asked = Math.min(Math.max(Math.ceil(bytes / bytesPerToken), tokens), mostInputTokens)
  }
  /** Called when the server answers. A refused call costs nothing. */
  answered(status: number, contentType: string): void {
    if (status >= 300) this.#asked = undefined
    else this.#reader = new UsageReader(this.#usageOf, contentType.startsWith('text/event-stream'))
  }
  /** Passes on the answer. Each chunk is counted before its reader gets it. */
  async *read(body: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    for await (const chunk of body) {
      this.#reader?.read(chunk)
      yield chunk
    }
    this.over()
  }
  /** Must be called when the call is over, however it ended. Further calls do nothing. */
  over(): void {
    this.#onOver(this)
  }
}
