import type { LanguageModelV4CallOptions, LanguageModelV4StreamPart, LanguageModelV4ToolCall } from '@ai-sdk/provider'
import { needsApproval } from '#contracts/approvals'
import type { ObjectLink } from '#contracts/linked-objects'
import type { ModelPart } from '#contracts/model'
import type { ResponseFormat } from '#contracts/prompt'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { EventBatch, RuntimeEvent, Texts } from '#contracts/run-event'
import type { RuntimeContext } from '#contracts/runtime'
import { createCallIds, execute, type PendingCall, pendingCall, replayInto } from './calls.ts'
import { type ContextWindow, createContext, type Fitted } from './context.ts'
import type { History, RestoredTurn } from './conversation.ts'
import { errorEvent, ModelFailure, modelFailure, reported, generalErrors } from './errors.ts'
import { type FilePart, haveLinks, OpenTurn, withContents } from './messages.ts'
import { type Model, type OpenCall, openCall, usageOf } from './models.ts'
import type { OutputForm } from './output.ts'
import { createReasoning, type Reasoning } from './reasoning.ts'
import type { Connected } from './tools/connect.ts'
import { failed } from './tools/outcome.ts'
import type { ToolSet } from './tools/toolset.ts'

export interface RunDeps {
  readonly history: History
  readonly log: RuntimeContext<unknown>['log']
  readonly reasoningEvents: boolean
  /** Throws AppError `unknown_model`. */
  modelOf(name: string): Model
  /** Throws AppError `tool_server_unavailable`. Undefined: the run has no tools. */
  connect(envelope: RunEnvelope, signal: AbortSignal): Promise<Connected | undefined>
  /** Reads a linked content of a restored conversation, with the address and token of the run. */
  readLinked(envelope: RunEnvelope, link: ObjectLink, signal: AbortSignal): Promise<Buffer | undefined>
  /** Throws AppError `invalid_response_format`. */
  formOf(format: ResponseFormat, tenantId: string): Promise<OutputForm>
}

/** Batches of events; the events of a batch are yielded together. */
type Events = AsyncGenerator<EventBatch>

/** The most model calls of one run, unless the profile sets a limit. */
const defaultMaxSteps = 16
/** The most calls of one answer: all of them are carried out at once. */
const mostCalls = 64
const tooManyCalls = `Not carried out: an answer may call ${mostCalls} tools. Call it again.`

/** Makes the runs of this process. Each run is read as its events. */
export const createTurns =
  (deps: RunDeps) =>
  (envelope: RunEnvelope, signal: AbortSignal): Events =>
    new Run(envelope, signal, deps).events()

/** `asking` -> (`calling` ->) `asking` ... -> (`judging` ->) `ended`. An answer that does not fit its form is requested again. */
type State = 'asking' | 'calling' | 'judging' | 'ended'

/**
 * One run: calls the model, executes its tool calls and returns their results, until the model answers without a call. The loop reads the
 * provider's stream of parts directly. `streamText` of the same library costs three times the CPU per delta, and resolves after an in-band failure,
 * which the commit-once rule of specification 4.23 needs to know about.
 */
class Run {
  #state: State = 'asking'
  /** Events that are not yielded yet. */
  readonly #pending: (RuntimeEvent | Texts)[] = []
  readonly #envelope: RunEnvelope
  readonly #signal: AbortSignal
  readonly #deps: RunDeps
  readonly #turn: OpenTurn
  #model!: Model
  #context!: ContextWindow
  #form: OutputForm | undefined
  /** Created on first use, like the ids of calls, because most answers have neither reasoning nor calls. */
  #reasoning: Reasoning | undefined
  #callId: ((id: string) => string) | undefined
  #tools: ToolSet | undefined
  /** Model calls so far, including those of earlier attempts. */
  #steps = 0
  /** True once the model was asked for another answer, because its first answer does not fit the form. */
  #askedAgain = false
  #finish: Extract<LanguageModelV4StreamPart, { type: 'finish' }> | undefined
  /** The tool calls of the current step. */
  #calls: readonly PendingCall[] = []

  constructor(envelope: RunEnvelope, signal: AbortSignal, deps: RunDeps) {
    this.#envelope = envelope
    this.#signal = signal
    this.#deps = deps
    this.#turn = new OpenTurn(envelope)
  }

  async *events(): Events {
    const { runId, sessionId, attempt = 1 } = this.#envelope
    if (attempt > 1) this.#deps.history.withdraw(sessionId, runId)
    try {
      yield* this.#begin()
      while (this.#state !== 'ended') {
        const call = yield* this.#callModel()
        try {
          // Inlined, because a separate generator would cost every delta another promise.
          for (let parts = call.first; parts; parts = await call.rest.next()) {
            this.#takeParts(parts)
            if (this.#pending.length > 0) yield this.#pending.splice(0)
          }
        } catch (error) {
          throw modelFailure(error)
        } finally {
          call.rest.close()
        }
        this.#endStep()
        if (this.#form && this.#state === 'judging') this.#judge(await this.#form.read(this.#turn.text))
        if (this.#state === 'calling') yield* this.#callTools()
        else if (this.#state === 'asking') yield this.#pending.splice(0)
      }
    } catch (error) {
      this.#fail(error)
    } finally {
      // Keep the messages before the terminal event, and also when the host stops reading, because the next run must find them.
      this.#keep()
    }
    if (this.#pending.length > 0) yield this.#pending
  }

  /** Prepares what the run needs, and continues after the part that an earlier attempt finished. */
  async *#begin(): Events {
    const {
      runId,
      sessionId,
      tenantId,
      profile,
      responseFormat,
      replay,
      mcpServers = [],
      mcpUnavailable = [],
    } = this.#envelope
    const deps = this.#deps
    this.#model = deps.modelOf(profile.model)
    this.#form = responseFormat && (await deps.formOf(responseFormat, tenantId))
    const hasTools = profile.tools.length > 0 || mcpServers.length + mcpUnavailable.length > 0
    const connected = hasTools ? await deps.connect(this.#envelope, this.#signal) : undefined
    this.#tools = connected?.tools
    for (const one of connected?.unavailable ?? []) {
      deps.log.warn({ runId, ...one }, 'a run continues without the tools of an MCP server')
      yield [{ type: 'progress', stage: 'mcp_server_unavailable', ...one }]
    }
    if (deps.history.turns(sessionId)?.some(({ messages }) => haveLinks(messages))) await this.#bringHistory()
    this.#context = createContext(profile, this.#model.settings.contextTokens, deps.history.turns(sessionId) ?? [])
    if (!replay) return
    const { steps, open } = replayInto(this.#turn, replay)
    this.#steps = steps
    yield* this.#execute(open)
  }

  /** Reads the large attachments of a restored conversation, once. */
  async #bringHistory(): Promise<void> {
    const { history, readLinked } = this.#deps
    const { sessionId } = this.#envelope
    const turns: RestoredTurn[] = []
    for (const { messages, ...turn } of history.turns(sessionId) ?? []) {
      const read = (link: ObjectLink) => readLinked(this.#envelope, link, this.#signal)
      turns.push({ ...turn, messages: await withContents(messages, read) })
    }
    history.replace(sessionId, turns)
  }

  /** Calls the model with the messages that fit its context. If the server says that they did not fit, calls it once more with fewer. */
  async *#callModel(): AsyncGenerator<EventBatch, OpenCall> {
    const listing = this.#tools?.refresh()
    if (listing) await listing
    this.#steps++
    this.#finish = undefined
    this.#calls = []
    const specs = this.#tools?.specs
    const fitted = this.#context.fit(this.#turn.messages, specs)
    if (fitted.turn) this.#turn.shorten(fitted.turn)
    if (fitted.event) yield [fitted.event]
    try {
      return await openCall(this.#model.open, this.#request(fitted), this.#signal)
    } catch (error) {
      const tooLong = error instanceof ModelFailure && error.tooLong
      const less = tooLong ? this.#context.fitHarder(this.#turn.messages, specs) : undefined
      if (!less) throw error
      if (less.turn) this.#turn.shorten(less.turn)
      if (less.event) yield [less.event]
      return await openCall(this.#model.open, this.#request(less), this.#signal)
    }
  }

  #request({ messages }: Fitted): LanguageModelV4CallOptions {
    const { instructions, limits } = this.#envelope.profile
    const specs = this.#tools?.specs ?? []
    const system = instructions === '' ? [] : [{ role: 'system' as const, content: instructions }]
    const options: LanguageModelV4CallOptions = {
      // Linked contents were read before the first call, so no links remain.
      prompt: [...system, ...messages] as LanguageModelV4CallOptions['prompt'],
      abortSignal: this.#signal,
    }
    if (specs.length > 0) options.tools = specs
    if (limits.maxOutputTokens !== undefined) options.maxOutputTokens = limits.maxOutputTokens
    if (this.#form) options.responseFormat = this.#form.asked
    const { reasoning } = this.#model.settings
    if (reasoning) options.reasoning = reasoning
    return options
  }

  /** Processes the parts of the answer that have arrived. */
  #takeParts(parts: readonly ModelPart[]): void {
    for (const part of parts) {
      if (part.type === 'text-deltas') this.#takeTexts(part.deltas)
      else if (part.type === 'text-delta' && part.delta !== '') this.#takeTexts([part.delta])
      else if (part.type === 'finish') this.#finish = part
      else if (part.type === 'error') throw reported(part.error)
      else if (part.type === 'tool-call') this.#calls = [...this.#calls, this.#pendingCall(part)]
      else if (part.type === 'reasoning-start' || part.type === 'reasoning-delta' || part.type === 'reasoning-end') {
        this.#reasoning ??= createReasoning(this.#turn, this.#deps.reasoningEvents)
        this.#show(this.#reasoning.take(part))
      }
    }
  }

  #show(event: RuntimeEvent | undefined): void {
    if (event) this.#pending.push(event)
  }

  #pendingCall(part: LanguageModelV4ToolCall): PendingCall {
    const taken = (this.#envelope.replay ?? []).flatMap((event) => (event.type === 'tool_call' ? [event.id] : []))
    this.#callId ??= createCallIds(taken)
    return pendingCall(part, this.#callId(part.toolCallId), this.#tools)
  }

  #takeTexts(deltas: Texts): void {
    const begins = this.#turn.silent
    this.#turn.say(deltas)
    if (begins) this.#show(this.#reasoning?.flush())
    const gap = begins ? this.#turn.gap : ''
    this.#pending.push(gap === '' ? deltas : deltas.with(0, gap + deltas[0]!))
  }

  /** Ends a step. The run then ends, executes the calls, or asks the model once more. */
  #endStep(): void {
    const finish = this.#finish
    if (finish === undefined || finish.finishReason.unified === 'error') {
      throw new ModelFailure('The model server ended its answer early.', { retryable: true })
    }
    const { model, limits } = this.#envelope.profile
    // Reported at once, so that the usage of finished model calls is known when the run dies later.
    this.#pending.push({ type: 'usage', ...usageOf(finish.usage), model })
    if (this.#calls.length === 0) {
      if (this.#form) this.#state = 'judging'
      else this.#takeAnswer()
      return
    }
    const { maxSteps = defaultMaxSteps } = limits
    if (this.#steps >= maxSteps) {
      throw generalErrors.maxSteps({
        message: `The run reached its limit of ${maxSteps} model calls before an answer.`,
      })
    }
    this.#state = 'calling'
  }

  #takeAnswer(output: { readonly output?: unknown } = {}): void {
    const finishReason = this.#finish!.finishReason.unified
    this.#pending.push({ type: 'result', text: this.#turn.answer, finishReason, ...output })
    this.#state = 'ended'
  }
  #judge(read: Awaited<ReturnType<OutputForm['read']>>): void {
    // The second answer replaces the refused one.
    this.#turn.dropRefused()
    if ('value' in read) return this.#takeAnswer({ output: read.value })
    if (this.#askedAgain)
      throw generalErrors.invalidOutput({ message: 'The model gave no answer that matches the response format.' })
    this.#askedAgain = true
    this.#state = 'asking'
    this.#turn.askForAnother(read.problem)
    const message = 'The answer does not fit; the model is asked once more.'
    this.#pending.push({ type: 'progress', stage: 'output_invalid', supersedes: 1, message })
  }

  /** Shows the calls of the step, executes them and gives their results to the model. */
  async *#callTools(): Events {
    this.#turn.endStep(this.#calls.map(({ part }) => part))
    for (const { part, name, shown } of this.#calls) {
      this.#pending.push({ type: 'tool_call', id: part.toolCallId, name, arguments: shown })
    }
    yield this.#pending.splice(0)
    yield* this.#execute(this.#calls)
    this.#state = 'asking'
  }

  /**
   * Executes calls concurrently and adds their results in the order of the calls. Calls that may wait for a person come last, so that the results
   * of all others are known by then. Images follow if the model accepts images.
   */
  async *#execute(calls: readonly PendingCall[]): Events {
    const outcomes = calls.map((call, i) => ({
      call,
      outcome: i < mostCalls ? execute(this.#tools, call) : Promise.resolve(failed(tooManyCalls)),
    }))
    const { profile } = this.#envelope
    const mayWait = ({ call }: { readonly call: PendingCall }): number => Number(needsApproval(profile, call.name))
    const images: FilePart[] = []
    for (const { call, outcome: coming } of outcomes.toSorted((a, b) => mayWait(a) - mayWait(b))) {
      const { part, name } = call
      const outcome = await coming
      const { ok, content } = outcome
      this.#turn.addResult(part, ok, content)
      if (this.#model.settings.images && outcome.images) images.push(...outcome.images)
      yield [{ type: 'tool_result', id: part.toolCallId, name, ok, content }]
    }
    if (images.length > 0) this.#turn.addImages(images)
  }

  #fail(error: unknown): void {
    const { runId } = this.#envelope
    // The host writes the last event of an aborted run, because it knows the reason.
    if (this.#signal.aborted) return
    this.#pending.push(errorEvent(error, (details) => this.#deps.log.warn({ runId, ...details }, 'run failed')))
  }

  /** Keeps the messages of this run for the next one of the session. */
  #keep(): void {
    const { tenantId, sessionId, runId, profile } = this.#envelope
    const messages = this.#turn.end()
    if (messages) this.#deps.history.append(sessionId, messages, { tenantId, runId, model: profile.model })
    void this.#tools?.close().catch(() => {})
  }
}
