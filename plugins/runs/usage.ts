import { microcentsPerCent, type Prices } from '#contracts/prices'
import { type EventType, parseLine, unsaidCallsStage, type Usage } from '#contracts/run-event'
import type { Profile } from '#contracts/profiles'
import { attachmentTokensOf } from '#contracts/prompt'
import type { DurableSession, SandboxUse } from '#contracts/run-store'
import type { Task } from '#contracts/runs'
import type { RunBudget } from '#contracts/runner'

/** The most tokens that one call may report. No real call comes near it. */
const mostTokens = 1e12
const mostCents = 1e9
/** The longest name of a model, as in profiles. */
const mostModelChars = 200
/** The most tokens of a run, so that sums stay exact and meters fit PostgreSQL's bigint. */
const mostTokensOfRun = 1e15
const mostMicrocentsOfRun = mostCents * microcentsPerCent
/** How a runner's event marks tool calls that the worker did not report. */
const unsaid = Buffer.from(`"stage":"${unsaidCallsStage}"`)
const reasoning = Buffer.from('"stage":"reasoning"')
const mostUnsaid = 1_000_000
/** The most idle seconds that are counted. An idle sandbox is paused long before. */
const mostIdleSeconds = 7 * 24 * 3_600

/** Clamps a count to 0 … `most`. A foreign runtime may report anything, and a run whose count cannot be stored could not end. */
const whole = (value: unknown, most: number): number =>
  typeof value === 'number' && value > 0 ? Math.min(Math.round(value), most) : 0
const cents = (value: unknown): number | undefined =>
  typeof value === 'number' && value >= 0 ? Math.min(value, mostCents) : undefined
/** Approximate bytes of an event around its text, and approximate characters that a model counts as one token. */
const bytesAround = 150
const charsPerToken = 4
/** What results count at most in an estimate: runtimes cut those that the context of a model has no room for. */
const mostResultTokens = 100_000
/** When an event was written. A log that is read again later is priced as of that time. */
const timeOf = (at: unknown): Date | undefined => {
  const time = typeof at === 'string' ? Date.parse(at) : Number.NaN
  return Number.isNaN(time) ? undefined : new Date(time)
}
const sum = (before = 0, call = 0): number => Math.min(before + call, mostTokensOfRun)

/** A session as an estimate needs it. */
interface CutOffSession extends Pick<DurableSession, 'contextTokens'> {
  readonly profile: Pick<Profile, 'model' | 'instructions' | 'workerMode'>
}

/**
 * What a run has used in all its attempts, and what it may cost. It is read from the run's lines, as they stream or as they were stored. Money is
 * in cents.
 */
export class RunUsage {
  toolCalls = 0
  modelCalls = 0
  /** The conversation handle that was reported last. */
  runtimeSessionId: string | undefined
  readonly #prices: Pick<Prices, 'costCents'> | undefined
  readonly #limit: number | undefined
  #calls: Usage | undefined
  #last: Usage | undefined
  /** The cost of the calls with a known price, in whole millionths of a cent, so that many small costs add up exactly. */
  #known = 0
  #unpriced: string | undefined
  /** The cost of each delegated run including its own children, in millionths of a cent. A run without a price counts as nothing. */
  readonly #delegated = new Map<string, number>()
  readonly #tell: ((cents: number) => void) | undefined
  /** Whether a model call may be under way. Undefined: no runner has the run yet. `#answer` counts what arrived of its answer. */
  #calling: boolean | undefined
  #answer = { deltas: 0, bytes: 0 }
  /** Bytes of results since the last call, which the next one reads. */
  #results = 0
  #acceptedAt = Infinity
  #sandboxIsKnown = false
  #sandbox: SandboxUse | undefined

  /** `tell` is called with the cost so far in cents, delegated runs included. */
  constructor(
    prices: Pick<Prices, 'costCents'> | undefined,
    limits: readonly (number | undefined)[] = [],
    tell?: (cents: number) => void,
  ) {
    this.#prices = prices
    this.#tell = tell
    const given = limits.filter((limit) => limit !== undefined)
    this.#limit = given.length === 0 ? undefined : Math.min(...given)
  }

  /** All model calls together, under the last call's model. `costCents` is set only when every call has a cost. Undefined: no call was reported. */
  get calls(): Usage | undefined {
    return this.#calls
  }
  /** What the last call read and wrote, which a call after it reads again. Undefined: no call was reported. */
  get contextTokens(): number | undefined {
    return this.#last && this.#last.inputTokens + this.#last.outputTokens
  }
  /** Undefined: no attempt has had a sandbox so far. */
  get sandbox(): SandboxUse | undefined {
    return this.#sandbox
  }
  /** Cents that the run may still cost. Undefined: there is no limit. */
  get left(): number | undefined {
    return this.#limit === undefined ? undefined : Math.max(0, this.#limit - this.#spent)
  }
  /** True when the run has cost more than it may. */
  get exceeded(): boolean {
    return this.#limit !== undefined && this.#spent > this.#limit
  }
  /** Cents of the run's own model calls. Calls of unknown price are not included. */
  get ownCents(): number {
    return this.#known / microcentsPerCent
  }
  /** The model of a call without a known price. */
  get unpriced(): string | undefined {
    return this.#unpriced
  }
  get #spent(): number {
    const delegated = this.#delegated.values().reduce((sum, cost) => sum + cost, 0)
    return (delegated + this.#known) / microcentsPerCent
  }
  /** Records what a delegated run has cost so far, its own children included. A repeated or late report counts once. */
  delegated(runId: string, costCents = 0): void {
    const cost = Math.round(costCents * microcentsPerCent)
    if (cost <= (this.#delegated.get(runId) ?? 0)) return
    this.#delegated.set(runId, cost)
    this.#tell?.(this.#spent)
  }
  /** True when deltas from `seq` on cannot change the usage, so that they need not be read. */
  isPastSandbox(seq: number): boolean {
    return this.#sandboxIsKnown || seq > this.#acceptedAt + 1
  }
  /** Reads the next line of the run. False: a line of this type must be a JSON object, and is not. */
  read(type: EventType | undefined, line: Buffer, seq: number): boolean {
    if (!this.#sandboxIsKnown) this.#readSandbox(type, line, seq)
    if (type === 'tool_call') this.toolCalls++
    if (type === 'assistant') this.said(1, line.length)
    if (type === 'tool_result') this.#results += Math.max(0, line.length - bytesAround)
    if (type === 'progress') this.#readProgress(line)
    if (this.#calling === undefined || type === 'tool_result') this.#calling = true
    if (type !== 'usage' && type !== 'session_init') return true
    const event = parseLine(line)
    if (type === 'usage' && event) this.#add(event)
    else if (typeof event?.['runtimeSessionId'] === 'string') this.runtimeSessionId = event['runtimeSessionId']
    return event !== undefined
  }

  #readProgress(line: Buffer): void {
    if (line.includes(unsaid)) this.toolCalls += whole(parseLine(line)?.['count'], mostUnsaid)
    // What a model thinks is part of its answer. It comes in larger pieces than its words, so their number says nothing.
    if (line.includes(reasoning)) this.said(0, Math.max(0, line.length - bytesAround))
  }
  /** Counts deltas that were not read one by one. */
  said(deltas: number, bytes: number): void {
    this.#calling = true
    this.#answer = { deltas: this.#answer.deltas + deltas, bytes: this.#answer.bytes + bytes }
  }
  /**
   * Called when the run ended in the middle of a model call whose usage nobody reports. The call counts as its input, with the conversation before
   * it, and its answer so far. In a sandbox the runner has measured it instead. `stopped`: the call may not have answered anything yet.
   */
  cutOff(
    { profile, contextTokens }: CutOffSession,
    task: Pick<Task, 'prompt' | 'attachments'>,
    stopped: boolean,
  ): void {
    const { model, instructions, workerMode } = profile
    const { deltas, bytes } = this.#answer
    // A sandbox that is only for its tools measures no call.
    const isMeasured = workerMode === 'sandbox' && this.#sandbox !== undefined
    if (isMeasured || !this.#calling || (deltas === 0 && !stopped)) return
    const prompt = task.prompt.length / charsPerToken + attachmentTokensOf(task)
    const first = prompt + (contextTokens ?? instructions.length / charsPerToken)
    const results = Math.min(this.#results / charsPerToken, mostResultTokens)
    const inputTokens = Math.ceil((this.contextTokens ?? first) + results)
    const outputTokens = Math.max(deltas, Math.ceil((bytes - deltas * bytesAround) / charsPerToken))
    this.#add({ inputTokens, outputTokens, model, estimated: true })
  }

  /** Each call is priced on its own, so that a run with two models costs the sum of both. A cost that the runtime reports is used as it is. */
  #add(event: Readonly<Record<string, unknown>>): void {
    this.modelCalls++
    this.#calling = false
    this.#answer = { deltas: 0, bytes: 0 }
    this.#results = 0
    const before = this.#calls
    const call: Usage = {
      inputTokens: whole(event['inputTokens'], mostTokens),
      outputTokens: whole(event['outputTokens'], mostTokens),
      cachedTokens: whole(event['cachedTokens'], mostTokens),
      model: typeof event['model'] === 'string' ? event['model'].slice(0, mostModelChars) : (before?.model ?? ''),
    }
    this.#last = call
    const cost = cents(event['costCents']) ?? this.#prices?.costCents(call, timeOf(event['at']))
    if (cost === undefined) this.#unpriced = call.model
    else this.#known = Math.min(this.#known + Math.round(cost * microcentsPerCent), mostMicrocentsOfRun)
    if (cost) this.#tell?.(this.#spent)
    const cachedTokens = sum(before?.cachedTokens, call.cachedTokens)
    this.#calls = {
      inputTokens: sum(before?.inputTokens, call.inputTokens),
      outputTokens: sum(before?.outputTokens, call.outputTokens),
      ...(cachedTokens > 0 ? { cachedTokens } : {}),
      ...(before?.estimated || event['estimated'] === true ? { estimated: true } : {}),
      model: call.model,
      ...(this.#unpriced === undefined
        ? { costCents: this.ownCents }
        : this.#known > 0
          ? { knownCostCents: this.ownCents }
          : {}),
    }
  }
  /**
   * A worker writes events too, and could lie about its sandbox. So only the line after the first `runner_accepted` counts, which no worker can
   * write.
   */
  #readSandbox(type: EventType | undefined, line: Buffer, seq: number): void {
    this.#sandboxIsKnown = seq > this.#acceptedAt
    if (seq > this.#acceptedAt + 1 || type !== 'progress') return
    const { stage, idleSeconds } = parseLine(line) ?? {}
    if (stage === 'runner_accepted' && !this.#sandboxIsKnown) this.#acceptedAt = seq
    if (stage === 'sandbox' && this.#sandboxIsKnown)
      this.#sandbox = { idleSeconds: whole(idleSeconds, mostIdleSeconds) }
  }
}

/** Cents that a run may still cost, for the runner through which a sandboxed worker calls its model. Undefined without a price. */
export function budgetOf(
  { model, workerMode }: Profile,
  { left }: RunUsage,
  prices: Prices | undefined,
): { readonly budget?: RunBudget } {
  const price = workerMode === 'sandbox' && left !== undefined ? prices?.priceOf(model) : undefined
  return left === undefined || !price ? {} : { budget: { cents: left, price } }
}
