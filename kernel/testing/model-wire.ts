import { randomUUID } from 'node:crypto'
import type { ModelReply, ModelRequestBody } from './model-reply.ts'

/** The frames of one streamed answer; tests cut between them, benchmarks send them whole. */
export interface Frames {
  readonly head: string
  readonly deltas: readonly string[]
  readonly tail: string
  all(): string
}

/** How one vendor's API writes an answer. */
export interface Wire {
  readonly name: string
  frames(body: ModelRequestBody, deltas: readonly string[], reply: ModelReply): Frames
  whole(body: ModelRequestBody, text: string, reply: ModelReply): unknown
  error(message: string): unknown
  /** How the vendor says that a prompt is longer than its model takes. */
  readonly tooLong?: unknown
}

const framesOf = (head: string, deltas: readonly string[], tail: string): Frames => ({
  head,
  deltas,
  tail,
  all: () => head + deltas.join('') + tail,
})

const data = (value: unknown): string => `data: ${JSON.stringify(value)}\n\n`
const wordsOf = (text = ''): string[] => text.match(/\S+\s*|\s+/g) ?? []
/** The signature by which the vendor would refuse changed reasoning. */
const signatureOf = (thought: string): string => `signed:${thought.length}`
export const inputTokens = (body: ModelRequestBody): number =>
  JSON.stringify(body.messages ?? body['input']).length >> 2

/** OpenAI chat completions. */
export const chatWire: Wire = {
  name: 'chat',
  error: (message) => ({ error: { message, type: 'stand_in', code: null } }),
  tooLong: {
    error: { message: 'Too much.', type: 'invalid_request_error', param: 'messages', code: 'context_length_exceeded' },
  },
  whole: (body, text, reply) => ({
    id: 'chatcmpl-1',
    object: 'chat.completion',
    created: 1,
    model: body.model,
    choices: [
      {
        index: 0,
        finish_reason: reply.toolCalls ? 'tool_calls' : 'stop',
        message: {
          role: 'assistant',
          content: text,
          ...(reply.reasoning ? { reasoning_content: reply.reasoning } : {}),
          ...(reply.toolCalls ? { tool_calls: chatCalls(reply) } : {}),
        },
      },
    ],
    usage: chatUsage(body, text.split(' ').length),
  }),
  frames(body, deltas, reply) {
    const envelope = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":${JSON.stringify(body.model)},"choices":[{"index":0,`
    const chunk = (delta: unknown, finish: string | null = null): string =>
      `data: ${envelope}"delta":${JSON.stringify(delta)},"finish_reason":${JSON.stringify(finish)}}]}\n\n`
    const head =
      chunk({ role: 'assistant', content: '' }) +
      wordsOf(reply.reasoning)
        .map((word) => chunk({ reasoning_content: word }))
        .join('')
    if (reply.inBandError !== undefined) {
      return framesOf(
        head,
        deltas.map((content) => chunk({ content })),
        data({ error: { message: reply.inBandError, type: 'server_error', code: null } }),
      )
    }
    const calls = chatCalls(reply).map(({ index, id, type, function: f }) => {
      // Arguments arrive in two halves, as from a real server.
      const half = f.arguments.length >> 1
      return (
        chunk({
          tool_calls: [{ index, id, type, function: { name: f.name, arguments: f.arguments.slice(0, half) } }],
        }) + chunk({ tool_calls: [{ index, function: { arguments: f.arguments.slice(half) } }] })
      )
    })
    const options = body['stream_options'] as { include_usage?: boolean } | undefined
    const usage = options?.include_usage
      ? data({
          id: 'chatcmpl-1',
          object: 'chat.completion.chunk',
          created: 1,
          model: body.model,
          choices: [],
          usage: chatUsage(body, deltas.length),
        })
      : ''
    return framesOf(
      head,
      deltas.map((content) => chunk({ content })),
      `${calls.join('')}${chunk({}, reply.toolCalls ? 'tool_calls' : 'stop')}${usage}data: [DONE]\n\n`,
    )
  },
}

const chatUsage = (body: ModelRequestBody, outputTokens: number) => {
  const prompt = inputTokens(body)
  return { prompt_tokens: prompt, completion_tokens: outputTokens, total_tokens: prompt + outputTokens }
}

const argumentsText = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value))

const chatCalls = (reply: ModelReply) =>
  (reply.toolCalls ?? []).map((call, index) => ({
    index,
    id: call.id ?? `call_${index}`,
    type: 'function',
    function: { name: call.name, arguments: argumentsText(call.arguments) },
  }))

/** Anthropic messages. */
export const anthropicWire: Wire = {
  name: 'anthropic',
  error: (message) => ({ type: 'error', error: { type: 'api_error', message } }),
  tooLong: {
    type: 'error',
    error: { type: 'invalid_request_error', message: 'prompt is too long: 2 tokens > 1 maximum' },
  },
  whole: (body, text, reply) => ({
    ...anthropicMessage(body, reply),
    content: [
      ...(reply.reasoning
        ? [{ type: 'thinking', thinking: reply.reasoning, signature: signatureOf(reply.reasoning) }]
        : []),
      ...(text ? [{ type: 'text', text }] : []),
      ...(reply.toolCalls ?? []).map((call, index) => ({
        type: 'tool_use',
        id: call.id ?? `toolu_${index}`,
        name: call.name,
        input: call.arguments,
      })),
    ],
    stop_reason: anthropicStop(reply),
    usage: { input_tokens: inputTokens(body), output_tokens: text.split(' ').length },
  }),
  frames(body, deltas, reply) {
    const event = (value: { type: string; [more: string]: unknown }): string => `event: ${value.type}\n${data(value)}`
    const delta = (index: number, fields: object): string =>
      event({ type: 'content_block_delta', index, delta: fields })
    const thought = reply.reasoning
      ? event({
          type: 'content_block_start',
          index: 0,
          content_block: { type: 'thinking', thinking: '', signature: '' },
        }) +
        wordsOf(reply.reasoning)
          .map((thinking) => delta(0, { type: 'thinking_delta', thinking }))
          .join('') +
        delta(0, { type: 'signature_delta', signature: signatureOf(reply.reasoning) }) +
        event({ type: 'content_block_stop', index: 0 })
      : ''
    const first = reply.reasoning ? 1 : 0
    const head =
      event({ type: 'message_start', message: anthropicMessage(body, reply) }) +
      thought +
      (deltas.length > 0
        ? event({ type: 'content_block_start', index: first, content_block: { type: 'text', text: '' } })
        : '')
    const texts = deltas.map((text) => delta(first, { type: 'text_delta', text }))
    if (reply.inBandError !== undefined) {
      return framesOf(
        head,
        texts,
        event({ type: 'error', error: { type: 'overloaded_error', message: reply.inBandError } }),
      )
    }
    const calls = (reply.toolCalls ?? []).map((call, i) => {
      const index = first + i + 1
      return (
        event({
          type: 'content_block_start',
          index,
          content_block: { type: 'tool_use', id: call.id ?? `toolu_${i}`, name: call.name, input: {} },
        }) +
        delta(index, { type: 'input_json_delta', partial_json: argumentsText(call.arguments) }) +
        event({ type: 'content_block_stop', index })
      )
    })
    const tail =
      (deltas.length > 0 ? event({ type: 'content_block_stop', index: first }) : '') +
      calls.join('') +
      event({
        type: 'message_delta',
        delta: { stop_reason: anthropicStop(reply), stop_sequence: null },
        usage: { output_tokens: deltas.length },
      }) +
      event({ type: 'message_stop' })
    return framesOf(head, texts, tail)
  },
}

const anthropicStop = ({ stopReason, toolCalls }: ModelReply): string =>
  stopReason ?? (toolCalls ? 'tool_use' : 'end_turn')

const anthropicMessage = (body: ModelRequestBody, { cachedTokens }: ModelReply) => ({
  // Clients take answers with the same id for parts of one message.
  id: `msg_${randomUUID()}`,
  type: 'message',
  role: 'assistant',
  model: body.model,
  content: [],
  stop_reason: null,
  stop_sequence: null,
  usage: {
    input_tokens: inputTokens(body),
    ...(cachedTokens === undefined ? {} : { cache_read_input_tokens: cachedTokens }),
    output_tokens: 1,
  },
})
