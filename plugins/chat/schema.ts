import { type Static, Type } from '@sinclair/typebox'
import { SentAttachment } from '#contracts/prompt'
import { eventStream, unauthorized } from '#kernel'
import { accessErrors } from '#contracts/access-errors'
import { fundsErrors } from '#contracts/billing'
import { idempotencyErrors } from '#contracts/idempotency'
import { runErrors } from '#contracts/run-errors'
import { chatErrors } from './errors.ts'

export const ChatParams = Type.Object({ tenant: Type.String(), agent: Type.String() })
export const RunParams = Type.Object({ tenant: Type.String(), agent: Type.String(), publicRunId: Type.String() })
export const ConversationParams = Type.Object({ tenant: Type.String(), agent: Type.String(), id: Type.String() })

export const ChatBody = Type.Object(
  {
    message: Type.String({ minLength: 1, maxLength: 1_000_000 }),
    conversation_id: Type.Optional(Type.String({ description: 'Continue this conversation; omit it to begin one.' })),
    attachments: Type.Optional(
      Type.Array(SentAttachment, {
        maxItems: 20,
        description:
          'Images and files that go with the message. The whole request may have 1,000,000 bytes; larger files are uploaded before, and named by `upload`.',
      }),
    ),
    metadata: Type.Optional(
      Type.Object(
        {
          end_user_id: Type.Optional(
            Type.String({ maxLength: 256, description: 'Your id of the person; it is stored.' }),
          ),
        },
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
  limit: Type.Integer({ minimum: 1, maximum: 200, default: 50, description: 'The number of newest messages.' }),
  include: Type.Optional(Type.Literal('errors', { description: 'Also the message of a failed run.' })),
})
export const Message = Type.Object({
  role: Type.String(),
  content: Type.String(),
  at: Type.String({ format: 'date-time' }),
  public_run_id: Type.Optional(Type.String()),
  attachments: Type.Optional(
    Type.Array(Type.Object({ name: Type.Optional(Type.String()), mediaType: Type.String() }), {
      description: 'The attachments of the message; their content is not stored.',
    }),
  ),
})
export type Message = Static<typeof Message>
export const History = Type.Object({ conversation_id: Type.String(), messages: Type.Array(Message) })
export type History = Static<typeof History>

export const EventStream = eventStream(
  '`delta` {text}: a chunk of the answer. `tool` {id, name, status} while tools run, if the agent shows them. At the end `done` {public_run_id, conversation_id, message} or `error` {code, message, public_run_id}. `id` resumes, `: ping` means nothing.',
)

/** The refusals that any request with a key may get. */
export const refusals = [
  unauthorized,
  chatErrors.originNotAllowed,
  chatErrors.notPublished,
  accessErrors.addressNotAllowed,
  accessErrors.tooManyWrongKeys,
] as const
/** Further refusals that a new message may get. */
export const chatRefusals = [
  ...refusals,
  runErrors.conversationNotFound,
  runErrors.conversationBusy,
  runErrors.conversationEnded,
  ...fundsErrors,
  ...Object.values(idempotencyErrors),
  chatErrors.rateLimited,
  chatErrors.upstream,
  chatErrors.unavailable,
] as const
