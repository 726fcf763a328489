import { type Static, Type } from '@sinclair/typebox'

export const ChatParams = Type.Object({ tenant: Type.String(), agent: Type.String() })
export const RunParams = Type.Object({ tenant: Type.String(), agent: Type.String(), publicRunId: Type.String() })
export const ConversationParams = Type.Object({ tenant: Type.String(), agent: Type.String(), id: Type.String() })

export const ChatBody = Type.Object(
  {
    message: Type.String({ minLength: 1, maxLength: 1_000_000 }),
    conversation_id: Type.Optional(Type.String({ description: 'Continue this conversation; omit it to begin one.' })),
    metadata: Type.Optional(
      Type.Object(
        { end_user_id: Type.Optional(Type.String({ maxLength: 256, description: 'Your id of the person; kept.' })) },
        { additionalProperties: true },
      ),
    ),
  },
  { additionalProperties: false },
)
export type ChatBody = Static<typeof ChatBody>

export const ChatReply = Type.Object({
  conversation_id: Type.String(),
  message: Type.String(),
  public_run_id: Type.String(),
})

export const RunPending = Type.Object({
  public_run_id: Type.String(),
  conversation_id: Type.String(),
  status: Type.Union([Type.Literal('dispatching'), Type.Literal('running')]),
})
export const RunAnswer = Type.Object({
  public_run_id: Type.String(),
  conversation_id: Type.String(),
  message: Type.String(),
  status: Type.Literal('ok'),
})

export const HistoryQuery = Type.Object({
  limit: Type.Integer({ minimum: 1, maximum: 200, default: 50, description: 'The newest so many messages.' }),
  include: Type.Optional(Type.Literal('errors', { description: 'Also what was said when a run failed.' })),
})
export const History = Type.Object({
  conversation_id: Type.String(),
  messages: Type.Array(
    Type.Object({
      role: Type.String(),
      content: Type.String(),
      at: Type.String({ format: 'date-time' }),
      public_run_id: Type.Optional(Type.String()),
    }),
  ),
})
export type History = Static<typeof History>

export const EventStream = {
  content: { 'text/event-stream': { schema: Type.String({ description: 'delta, tool, done and error events.' }) } },
}
