import type { ModelReply, ModelRequestBody } from './model-reply.ts'
import { type Frames, inputTokens, type Wire } from './model-wire.ts'

/** The part of a Responses request that tests look at. */
export interface ResponsesRequestBody {
  readonly model: string
  readonly instructions?: string
  readonly input: readonly ResponsesItem[]
  readonly tools?: readonly ResponsesTool[]
  readonly [more: string]: unknown
}
interface ResponsesItem {
  readonly type: string
  readonly role?: string
  readonly content?: readonly { readonly type: string; readonly text?: string; readonly [more: string]: unknown }[]
  readonly [more: string]: unknown
}
interface ResponsesTool {
  readonly type: string
  readonly name?: string
  readonly tools?: readonly ResponsesTool[]
  readonly [more: string]: unknown
}

type Event = { readonly type: string; readonly [more: string]: unknown }
const frame = (event: Event): string => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`
const id = 'resp_1'

/** OpenAI Responses. */
export const responsesWire: Wire = {
  name: 'responses',
  error: (message) => ({ error: { message, type: 'stand_in', code: null } }),
  whole: (body, text, reply) => completed(body, text, reply),
  frames(body, deltas, reply): Frames {
    const said = deltas.length > 0
    const head =
      frame({ type: 'response.created', response: { id } }) +
      (said ? frame({ type: 'response.output_item.added', output_index: 0, item: messageOf('') }) : '')
    const texts = deltas.map((delta) =>
      frame({ type: 'response.output_text.delta', item_id: 'msg_1', output_index: 0, content_index: 0, delta }),
    )
    const tail = (reply.inBandError === undefined ? succeeded : failed)(body, deltas.join(''), reply)
    return { head, deltas: texts, tail, all: () => head + texts.join('') + tail }
  },
}

const failed = (_body: ModelRequestBody, _text: string, { inBandError }: ModelReply): string =>
  frame({ type: 'response.failed', response: { id, error: { code: 'server_error', message: inBandError } } })

function succeeded(body: ModelRequestBody, text: string, reply: ModelReply): string {
  const done = completed(body, text, reply)
  const items = done.output.map((item, index) =>
    frame({ type: 'response.output_item.done', output_index: index, item }),
  )
  return items.join('') + frame({ type: 'response.completed', response: done })
}

function completed(body: ModelRequestBody, text: string, reply: ModelReply) {
  const calls = (reply.toolCalls ?? []).map((call, index) => ({
    type: 'function_call',
    id: `fc_${index}`,
    call_id: call.id ?? `call_${index}`,
    name: call.name,
    ...(call.namespace === undefined ? {} : { namespace: call.namespace }),
    arguments: typeof call.arguments === 'string' ? call.arguments : JSON.stringify(call.arguments),
  }))
  const read = inputTokens(body)
  const outputTokens = text === '' ? 1 : text.split(' ').length
  return {
    id,
    object: 'response',
    model: body.model,
    output: [...(text === '' ? [] : [messageOf(text)]), ...calls, ...(reply.items ?? [])],
    usage: {
      input_tokens: read,
      input_tokens_details: { cached_tokens: reply.cachedTokens ?? 0 },
      output_tokens: outputTokens,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: read + outputTokens,
    },
  }
}

const messageOf = (text: string) => ({
  type: 'message',
  id: 'msg_1',
  role: 'assistant',
  content: text === '' ? [] : [{ type: 'output_text', text, annotations: [] }],
})
