import type { OutputSchemas } from '#kit/schemas'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { RuntimeEvent } from '#contracts/run-event'
import { answerCut, failureOf, runtimeAErrors } from './errors.ts'
import { maxStepsOf } from './options.ts'
import type { Assistant, Init, Message, ModelTotals, Result, StreamEvent, Tokens, User } from './sdk.ts'
import type { ToolServers } from './tool-servers.ts'

/** Separates the texts of two model calls, which are paragraphs of one answer. */
const paragraph = '\n\n'
/** The vendor's own tool, through which a model returns an answer in the required form. */
const outputTool = 'StructuredOutput'

type TurnEnvelope = Pick<RunEnvelope, 'tenantId' | 'profile' | 'responseFormat'>

/** Turns the vendor's messages of one run into events. */
export class Turn {
  readonly #envelope: TurnEnvelope
  readonly #tools: ToolServers
  readonly #schemas: OutputSchemas
  readonly #usage: Usage
  /** The names of the tools that are being executed, by the ids of their calls. */
  readonly #open = new Map<string, string>()
  #answer = ''
  /** The text of the current model call that a client has seen. */
  #streamed = ''
  #tokens: Tokens = {}
  #stopReason: string | null = null
  /** True when the current model call continues an answer that reached its length limit. */
  #continues = false
  #spoke = false
  #over = false
  #result: RuntimeEvent | undefined

  constructor(envelope: TurnEnvelope, tools: ToolServers, schemas: OutputSchemas) {
    this.#envelope = envelope
    this.#tools = tools
    this.#schemas = schemas
    this.#usage = createUsage(envelope.profile.model)
  }

  /** True once the vendor has sent its result. */
  get over(): boolean {
    return this.#over
  }
  /** True once the model wrote or did something that belongs to the conversation. */
  get spoke(): boolean {
    return this.#spoke
  }
  /** The run's last event. Undefined until the vendor has sent its result. */
  get result(): RuntimeEvent | undefined {
    return this.#result
  }

  /** Takes one message. Throws an AppError when the run has failed. */
  async *take(message: Message): AsyncGenerator<RuntimeEvent> {
    // Messages of a subagent have a parent. Without host tools there are no subagents.
    if ('parent_tool_use_id' in message && message.parent_tool_use_id !== null) return
    if (message.type === 'system') {
      if (message.subtype === 'init') yield* this.#begin(message)
      else if (message.subtype === 'api_retry') this.#refuseCut()
      else if (message.subtype === 'compact_boundary') yield compacted
    } else if (message.type === 'stream_event') yield* this.#stream(message)
    else if (message.type === 'assistant') yield* this.#calls(message)
    else if (message.type === 'user') yield* this.#results(message)
    else if (message.type === 'result') yield* this.#end(message)
  }

  *#begin(init: Init): Generator<RuntimeEvent> {
    // End here: the vendor's program would continue, and its model would answer as if it had no tools.
    if (!this.#tools.connected(init)) throw runtimeAErrors.toolServerUnavailable()
    yield { type: 'session_init', runtimeSessionId: init.session_id }
    for (const one of this.#tools.unavailable(init)) {
      yield { type: 'progress', stage: 'mcp_server_unavailable', ...one }
    }
  }

  *#stream({ event }: StreamEvent): Generator<RuntimeEvent> {
    if (event.type === 'message_start') {
      this.#refuseCut()
      this.#continues = this.#stopReason === 'max_tokens'
      this.#stopReason = null
      this.#streamed = ''
      this.#tokens = event.message.usage ?? {}
    } else if (event.type === 'content_block_delta' && event.delta.type === 'text_delta') {
      this.#spoke = true
      // With a response format the answer comes as a whole, and text before it is not part of the answer.
      if (!this.#envelope.responseFormat) yield* this.#say(event.delta.text ?? '')
    } else if (event.type === 'message_delta') {
      this.#stopReason = event.delta.stop_reason
      this.#tokens = merged(this.#tokens, event.usage)
      yield this.#usage.call(this.#tokens)
    }
  }

  /** Fails the run when the vendor requests a broken answer again, because text that a client has read cannot be taken back. */
  #refuseCut(): void {
    if (this.#streamed !== '' && this.#stopReason === null) throw answerCut()
  }

  *#say(delta: string): Generator<RuntimeEvent> {
    if (delta === '') return
    const begins = this.#answer !== '' && this.#streamed === '' && !this.#continues
    const text = begins ? paragraph + delta : delta
    this.#streamed += delta
    this.#answer += text
    yield { type: 'assistant', text, delta: true }
  }

  *#calls({ message }: Assistant): Generator<RuntimeEvent> {
    const { responseFormat } = this.#envelope
    for (const block of message.content) {
      if (block.type !== 'tool_use' || (responseFormat && block.name === outputTool)) continue
      if (this.#open.has(block.id)) continue
      this.#spoke = true
      const name = this.#tools.plainName(block.name)
      this.#open.set(block.id, name)
      yield { type: 'tool_call', id: block.id, name, arguments: block.input }
    }
  }

  *#results({ message }: User): Generator<RuntimeEvent> {
    for (const block of typeof message.content === 'string' ? [] : message.content) {
      const name = block.type === 'tool_result' ? this.#open.get(block.tool_use_id) : undefined
      if (block.type !== 'tool_result' || name === undefined) continue
      this.#open.delete(block.tool_use_id)
      yield { type: 'tool_result', id: block.tool_use_id, name, ok: block.is_error !== true, content: textOf(block) }
    }
  }

  async *#end(last: Result): AsyncGenerator<RuntimeEvent> {
    const { responseFormat, tenantId } = this.#envelope
    this.#over = true
    yield* this.#usage.rest(last.model_usage_since_last_result ?? {})
    if (last.subtype !== 'success' || last.is_error) throw failureOf(last, maxStepsOf(this.#envelope))
    if (responseFormat) {
      const value = last.structured_output
      const form = await this.#schemas(tenantId, responseFormat.schema)
      if (value === undefined || (await form.problem(value)) !== undefined) throw runtimeAErrors.invalidOutput()
      yield* this.#say(JSON.stringify(value))
      this.#result = { type: 'result', text: this.#answer, finishReason: 'stop', output: value }
      return
    }
    // The text was not streamed, but it is the answer.
    if (this.#answer === '') yield* this.#say(last.result ?? '')
    const finishReason = finishReasons[last.stop_reason ?? ''] ?? 'other'
    this.#result = { type: 'result', text: this.#answer, finishReason }
  }
}

const compacted: RuntimeEvent = {
  type: 'progress',
  stage: 'context_trimmed',
  message: 'The conversation was too long for its model; older turns have been summarized.',
}

/** Translates the vendor's finish reasons into those of the other runtimes. */
const finishReasons: Readonly<Record<string, string>> = {
  end_turn: 'stop',
  stop_sequence: 'stop',
  max_tokens: 'length',
  model_context_window_exceeded: 'length',
  refusal: 'content-filter',
}

/** Merges counts, because the last frame of a call has only the counts that changed. */
const merged = (had: Tokens, more: Tokens = {}): Tokens => ({
  ...had,
  ...Object.fromEntries(Object.entries(more).filter(([, value]) => value !== null && value !== undefined)),
})

type ToolResultBlock = Extract<Exclude<User['message']['content'], string>[number], { type: 'tool_result' }>

const textOf = ({ content = '' }: ToolResultBlock): string =>
  typeof content === 'string'
    ? content
    : content.map((part) => (part.type === 'text' ? (part.text ?? '') : `[${part.type}]`)).join('\n')

type UsageEvent = Extract<RuntimeEvent, { type: 'usage' }>

/** The usage of the model calls of one run. */
interface Usage {
  /** The usage of one call whose tokens the model server has reported. */
  call(tokens: Tokens): UsageEvent
  /** The rest of the vendor's totals. The vendor also calls models by itself, to summarize a long conversation. */
  rest(totals: Readonly<Record<string, ModelTotals>>): UsageEvent[]
}

/** `model` is the profile's name of the model. Tokens that are read from a cache are part of the input. */
function createUsage(model: string): Usage {
  const provider = model.slice(0, model.indexOf('/') + 1)
  const told = { input: 0, output: 0, cached: 0 }
  return {
    call(tokens) {
      const cached = count(tokens.cache_read_input_tokens)
      const input = count(tokens.input_tokens) + cached + count(tokens.cache_creation_input_tokens)
      const output = count(tokens.output_tokens)
      told.input += input
      told.output += output
      told.cached += cached
      return event(model, input, output, cached)
    },
    rest: (totals) =>
      Object.entries(totals).flatMap(([name, total]) => {
        const called = provider + name === model ? told : { input: 0, output: 0, cached: 0 }
        const read = count(total.cacheReadInputTokens)
        const all = count(total.inputTokens) + read + count(total.cacheCreationInputTokens)
        const input = Math.max(0, all - called.input)
        const output = Math.max(0, count(total.outputTokens) - called.output)
        const cached = Math.min(input, Math.max(0, read - called.cached))
        return input + output > 0 ? [event(provider + name, input, output, cached)] : []
      }),
  }
}

const event = (model: string, inputTokens: number, outputTokens: number, cachedTokens: number): UsageEvent => ({
  type: 'usage',
  inputTokens,
  outputTokens,
  ...(cachedTokens > 0 ? { cachedTokens } : {}),
  model,
})

/** Servers omit some counts and send others that are invalid. */
const count = (tokens: number | null | undefined): number =>
  typeof tokens === 'number' && Number.isFinite(tokens) && tokens > 0 ? Math.round(tokens) : 0
