import { type Static, Type } from '@sinclair/typebox'

const maybe = <T extends Parameters<typeof Type.Optional>[0]>(schema: T) =>
  Type.Optional(Type.Union([schema, Type.Null()]))

/** A piece of a tool call in a chunk. Servers leave out what they do not know yet, some the index. */
export const ToolCallDelta = Type.Object({
  index: maybe(Type.Number()),
  id: maybe(Type.String()),
  function: Type.Object({ name: maybe(Type.String()), arguments: maybe(Type.String()) }),
  // Gemini signs what it thought, and wants it back with the call.
  extra_content: maybe(Type.Object({ google: maybe(Type.Object({ thought_signature: maybe(Type.String()) })) })),
})
export type ToolCallDelta = Static<typeof ToolCallDelta>

const count = maybe(Type.Number())

/** What is read of a chunk. Servers add what they like; other values than these in its place make the chunk invalid. */
export const Chunk = Type.Object({
  id: maybe(Type.String()),
  model: maybe(Type.String()),
  created: maybe(Type.Number()),
  choices: Type.Array(
    Type.Object({
      delta: maybe(
        Type.Object({
          // Text, or parts of it: some servers send what they think between them.
          content: maybe(Type.Union([Type.String(), Type.Array(Type.Object({ type: Type.String() }))])),
          // Servers send other things than a text here when nothing was refused.
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
export type Chunk = Static<typeof Chunk>
export type Delta = NonNullable<Chunk['choices'][number]['delta']>
