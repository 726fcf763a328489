import type { OutputSchemas } from '#contracts/output-schema'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { RuntimeEvent } from '#contracts/run-event'
import { answerCut, failureOf, invalidOutput, toolServerUnavailable } from './errors.ts'
import { maxStepsOf } from './options.ts'
import type { Assistant, Init, Message, ModelTotals, Result, StreamEvent, Tokens, User } from './sdk.ts'
import type { ToolServers } from './tool-servers.ts'

/** What the vendor says of one run, as events. */
export interface Turn {
  /** Throws an AppError when the run has failed. */
  take(message: Message): Iterable<RuntimeEvent>
  /** The vendor has said its last word. */
  readonly over: boolean
  /** Something was said or done that belongs to the conversation. */
  readonly spoke: boolean
  /** The run's last event. Undefined: the vendor has not come to its end. */
  readonly result: RuntimeEvent | undefined
}

/** The texts of two model calls are paragraphs of one answer. */
const paragraph = '\n\n'
/** The vendor's own tool, with which a model hands over an answer in a form. */
const outputTool = 'StructuredOutput'

export function createTurn(
  envelope: Pick<RunEnvelope, 'profile' | 'responseFormat'>,
  tools: ToolServers,
  schemas: OutputSchemas,
): Turn {
  const { profile, responseFormat } = envelope
  const open = new Map<string, string>()
  const usage = createUsage(profile.model)
  let answer = ''
  /** Text of the call under way that a client has seen. */
  let streamed = ''
  let tokens: Tokens = {}
  let stopReason: string | null = null
  let continues = false
  let spoke = false
  let over = false
  let result: RuntimeEvent | undefined

  function* say(delta: string): Generator<RuntimeEvent> {
    if (delta === '') return
    const text = answer !== '' && streamed === '' && !continues ? paragraph + delta : delta
    streamed += delta
    answer += text
    yield { type: 'assistant', text, delta: true }
  }
  function* begin(init: Init): Generator<RuntimeEvent> {
    // The vendor goes on without: its model would then answer as if it had no tools.
    if (!tools.connected(init)) throw toolServerUnavailable({ retryable: true })
    yield { type: 'session_init', runtimeSessionId: init.session_id }
    for (const server of tools.unavailable(init)) {
      const message = `The MCP server '${server}' cannot be used; the run goes on without its tools.`
      yield { type: 'progress', stage: 'mcp_server_unavailable', server, message }
    }
  }
  function* stream({ event }: StreamEvent): Generator<RuntimeEvent> {
    if (event.type === 'message_start') {
      cut()
      continues = stopReason === 'max_tokens'
      stopReason = null
      streamed = ''
      tokens = event.message.usage ?? {}
    } else if (event.type === 'content_block_delta' && event.delta.type === 'text_delta') {
      spoke = true
      // An answer in a form comes as a whole; what is said on the way to it is none.
      if (!responseFormat) yield* say(event.delta.text ?? '')
    } else if (event.type === 'message_delta') {
      stopReason = event.delta.stop_reason
      tokens = merged(tokens, event.usage)
      yield usage.call(tokens)
    }
  }
  /** The vendor asks again for an answer that broke off; what a client has read of it cannot be taken back. */
  const cut = (): void => {
    if (streamed !== '' && stopReason === null) throw answerCut({ retryable: true })
  }
  function* calls({ message }: Assistant): Generator<RuntimeEvent> {
    for (const block of message.content) {
      if (block.type !== 'tool_use' || (responseFormat && block.name === outputTool) || open.has(block.id)) continue
      spoke = true
      const name = tools.plainName(block.name)
      open.set(block.id, name)
      yield { type: 'tool_call', id: block.id, name, arguments: block.input }
    }
  }
  function* results({ message }: User): Generator<RuntimeEvent> {
    for (const block of typeof message.content === 'string' ? [] : message.content) {
      const name = block.type === 'tool_result' ? open.get(block.tool_use_id) : undefined
      if (block.type !== 'tool_result' || name === undefined) continue
      open.delete(block.tool_use_id)
      yield { type: 'tool_result', id: block.tool_use_id, name, ok: block.is_error !== true, content: textOf(block) }
    }
  }
  function* end(last: Result): Generator<RuntimeEvent> {
    over = true
    yield* usage.rest(last.model_usage_since_last_result ?? {})
    if (last.subtype !== 'success' || last.is_error) throw failureOf(last, maxStepsOf(envelope))
    if (responseFormat) {
      const value = last.structured_output
      if (value === undefined || schemas(responseFormat.schema).problem(value) !== undefined) throw invalidOutput()
      yield* say(JSON.stringify(value))
      result = { type: 'result', text: answer, finishReason: 'stop', output: value }
      return
    }
    // Not streamed, for whatever reason: it is the answer all the same.
    if (answer === '') yield* say(last.result ?? '')
    result = { type: 'result', text: answer, finishReason: finishReasons[last.stop_reason ?? ''] ?? 'other' }
  }

  return {
    get over() {
      return over
    },
    get spoke() {
      return spoke
    },
    get result() {
      return result
    },
    *take(message) {
      // What a subagent says has a parent. There are none without host tools.
      if ('parent_tool_use_id' in message && message.parent_tool_use_id !== null) return
      if (message.type === 'system') {
        if (message.subtype === 'init') yield* begin(message)
        else if (message.subtype === 'api_retry') cut()
        else if (message.subtype === 'compact_boundary') yield compacted
      } else if (message.type === 'stream_event') yield* stream(message)
      else if (message.type === 'assistant') yield* calls(message)
      else if (message.type === 'user') yield* results(message)
      else if (message.type === 'result') yield* end(message)
    },
  }
}

const compacted: RuntimeEvent = {
  type: 'progress',
  stage: 'context_trimmed',
  message: 'The conversation was too long for its model; what is older has been summarized.',
}

/** In the words of the other runtimes. */
const finishReasons: Readonly<Record<string, string>> = {
  end_turn: 'stop',
  stop_sequence: 'stop',
  max_tokens: 'length',
  model_context_window_exceeded: 'length',
  refusal: 'content-filter',
}

/** The last frame of a call repeats only what has changed. */
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

/** What the model calls of one run have used. */
interface Usage {
  /** One call whose tokens the model server has told. */
  call(tokens: Tokens): UsageEvent
  /** What else the vendor has counted: it also calls models by itself, to summarize a long conversation. */
  rest(totals: Readonly<Record<string, ModelTotals>>): UsageEvent[]
}

/** `model`: as the profile names it. Those that are read from a cache are part of the input. */
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

/** Servers omit counts, and some send nonsense. */
const count = (tokens: number | null | undefined): number =>
  typeof tokens === 'number' && Number.isFinite(tokens) && tokens > 0 ? Math.round(tokens) : 0
