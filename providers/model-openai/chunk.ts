import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { generateId, StreamingToolCallTracker } from '@ai-sdk/provider-utils'
import { type Static, Type } from '@sinclair/typebox'

const maybe = <T extends Parameters<typeof Type.Optional>[0]>(schema: T) =>
  Type.Optional(Type.Union([schema, Type.Null()]))

/** A piece of a tool call in a chunk. Servers leave out fields that they do not know yet; some leave out the index. */
const ToolCallDelta = Type.Object({
  index: maybe(Type.Number()),
  id: maybe(Type.String()),
  function: Type.Object({ name: maybe(Type.String()), arguments: maybe(Type.String()) }),
  // Gemini signs its thoughts, and expects the signature back with the call.
  extra_content: maybe(Type.Object({ google: maybe(Type.Object({ thought_signature: maybe(Type.String()) })) })),
})
type ToolCallDelta = Static<typeof ToolCallDelta>

const count = maybe(Type.Number())

/** The fields of a chunk that are read. Servers may add others; a value of a wrong type in one of these makes the chunk invalid. */
export const ChatChunk = Type.Object({
  id: maybe(Type.String()),
  model: maybe(Type.String()),
  created: maybe(Type.Number()),
  choices: Type.Array(
    Type.Object({
      delta: maybe(
        Type.Object({
          // A text, or a list of parts: some servers send their thoughts as parts between texts.
          content: maybe(Type.Union([Type.String(), Type.Array(Type.Object({ type: Type.String() }))])),
          // Some servers send a value other than text here when nothing was refused.
          refusal: Type.Optional(Type.Unknown()),
          reasoning_content: maybe(Type.String()),
          reasoning: maybe(Type.String()),
          tool_calls: maybe(Type.Array(ToolCallDelta)),
        }),
      ),
      finish_reason: maybe(Type.String()),
    }),
  ),
  usage: maybe(
    Type.Object({
      prompt_tokens: count,
      completion_tokens: count,
      prompt_tokens_details: maybe(Type.Object({ cached_tokens: count })),
      completion_tokens_details: maybe(Type.Object({ reasoning_tokens: count })),
    }),
  ),
})
export type ChatChunk = Static<typeof ChatChunk>
export type Delta = NonNullable<ChatChunk['choices'][number]['delta']>

/** The tool calls of one answer. They are complete only at its end: arguments that parse may still be the beginning of longer ones. */
export interface AnswerToolCalls {
  take(delta: ToolCallDelta): void
  end(): void
}

/** The package assigns pieces to calls, but needs the name of a call together with its first piece. */
export function createAnswerToolCalls(say: (part: LanguageModelV4StreamPart) => void): AnswerToolCalls {
  const tracker = new StreamingToolCallTracker<ToolCallDelta>(
    { enqueue: (part) => part && say(part) },
    {
      generateId,
      extractMetadata({ extra_content: extra }) {
        const thoughtSignature = extra?.google?.thought_signature
        return thoughtSignature ? { openai: { thoughtSignature } } : undefined
      },
      buildToolCallProviderMetadata: (metadata) => metadata,
    },
  )
  const named = new Set<number>()
  /** Calls whose name has not arrived yet, by index. */
  const nameless = new Map<number, ToolCallDelta>()
  return {
    take(delta) {
      const { index } = delta
      if (index === undefined || index === null || named.has(index)) return tracker.processDelta(delta)
      const whole = joined(nameless.get(index), delta)
      if (typeof whole.function.name !== 'string') return void nameless.set(index, whole)
      nameless.delete(index)
      named.add(index)
      tracker.processDelta(whole)
    },
    end() {
      // This throws, because a call without a name is invalid.
      for (const call of nameless.values()) tracker.processDelta(call)
      tracker.flush()
    },
  }
}

const joined = (first: ToolCallDelta | undefined, more: ToolCallDelta): ToolCallDelta => ({
  index: more.index ?? null,
  id: first?.id ?? more.id ?? null,
  function: {
    name: more.function.name ?? null,
    arguments: (first?.function.arguments ?? '') + (more.function.arguments ?? ''),
  },
  extra_content: first?.extra_content ?? more.extra_content ?? null,
})
