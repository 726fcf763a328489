import { fundsErrors } from '../billing.ts'
import { Type } from '@sinclair/typebox'
import { eventTypes } from '../run-event.ts'
import { ChatOf, RunAccepted, RunSummary, SubTask } from '../runs.ts'
import { bodyTooLarge, invalidRequest, unavailable } from '../http-errors.ts'
import { linkErrors } from '../linked-objects.ts'
import { limitErrors } from '../limits.ts'
import { fleetErrors, runErrors } from '../run-errors.ts'
import { webhookErrors } from '../webhooks.ts'
import type { Wire } from './route.ts'

// The requests of a gateway to a conductor, on the conductor's signed internal listener. The public listener serves the same paths: it uses these
// rows, and sets its own access and its own bodies.

const tags = ['runs']
/** Bytes: a prompt of 1,000,000 characters, most of them one byte in JSON, and attachments of 4 MiB in base64. */
const maxRunBytes = 8 * 1024 * 1024

export const runIdHeader = 'x-run-id'
export const sessionIdHeader = 'x-session-id'

/** A line of a log, exactly as the runner wrote it. */
const EventLine = Type.Object(
  {
    type: Type.Union(eventTypes.map((type) => Type.Literal(type))),
    runId: Type.String(),
    sessionId: Type.String(),
    seq: Type.Integer({ minimum: 1, description: 'Counts from 1, without a gap.' }),
    at: Type.String({ format: 'date-time' }),
  },
  {
    additionalProperties: true,
    title: 'RunEvent',
    description:
      'Besides what is here, by type: progress {stage, message?, supersedes?}, session_init {runtimeSessionId}, assistant {text, delta} (a chunk), tool_call {id, name, arguments}, tool_result {id, name, ok, content}, usage {inputTokens, outputTokens, cachedTokens?, model, costCents?}, result {text, finishReason, output?}, error {code, message, retryable?}. The last one is result or error.',
  },
)

export const RunParams = Type.Object({ id: Type.String({ description: 'Id of the run.' }) })

const after = Type.Optional(
  Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER, description: 'Only events after this `seq`.' }),
)
const EventsQuery = Type.Object({ after })

/** A gateway requests only the summary, because a log may be long. */
const RunDetailQuery = Type.Object({
  events: Type.Optional(Type.Boolean({ default: true, description: 'False leaves the events out.' })),
})
const RunDetail = Type.Composite([
  RunSummary,
  Type.Object({ events: Type.Optional(Type.Array(Type.Unknown(), { description: 'RunEvents so far, in order.' })) }),
])

/** A task of a gateway. It names the run, and the chat that the run answers. */
export const SignedTask = Type.Object(
  { ...SubTask.properties, chat: Type.Optional(ChatOf) },
  { additionalProperties: false },
)

/** Why a run cannot start, for any caller. */
export const startErrors = [
  invalidRequest,
  runErrors.unknownProfile,
  runErrors.invalidRunId,
  runErrors.invalidSessionId,
  runErrors.invalidAttachment,
  linkErrors.unknownUpload,
  runErrors.invalidResponseFormat,
  runErrors.tooManySchemas,
  webhookErrors.invalidWebhook,
  runErrors.notFound,
  runErrors.sessionBusy,
  runErrors.sessionProfileMismatch,
  runErrors.conflict,
  runErrors.attachmentsTooLarge,
  bodyTooLarge,
  runErrors.queueFull,
  ...fundsErrors,
  limitErrors.limitReached,
  limitErrors.limitExceeded,
  fleetErrors.runnerFailed,
  fleetErrors.noRunner,
  fleetErrors.runnerUnreachable,
  runErrors.hydrationFailed,
  runErrors.webhooksUnavailable,
  unavailable,
] as const

export const conductorWire = {
  start: {
    method: 'POST',
    path: '/api/runs',
    access: 'service',
    tags,
    summary: 'Start a run',
    description:
      'In a new session, or in `sessionId`. Answers when a runner has accepted the run, or after 2 seconds; the run continues without the caller. The same `id` with the same task is the same run. With `Accept: application/x-ndjson` the answer is its event log, followed to the end, and the ids are in `X-Run-Id` and `X-Session-Id`.',
    query: EventsQuery,
    body: SignedTask,
    bodyLimit: maxRunBytes,
    reply: { status: 202, json: RunAccepted, lines: EventLine, description: 'Accepted.' },
    errors: [
      ...startErrors,
      runErrors.conversationNotFound,
      runErrors.conversationBusy,
      runErrors.conversationEnded,
      runErrors.admissionStale,
    ],
  },
  find: {
    method: 'GET',
    path: '/api/runs/:id',
    access: 'service',
    tags,
    summary: 'Get a run',
    description:
      'Its summary, with prompt and result whole, and unless `events=false` its events so far, streamed while they are read. An answer that breaks off is not closed by `]}`.',
    params: RunParams,
    query: RunDetailQuery,
    reply: { status: 200, json: RunDetail },
    absent: true,
  },
  events: {
    method: 'GET',
    path: '/api/runs/:id/events',
    access: 'service',
    tags,
    summary: 'Read the raw event log of a run',
    description:
      '`session_init` included. Replays the log, then follows it to the last event. A reader past the end of the log gets that event again under the next number.',
    params: RunParams,
    query: EventsQuery,
    reply: { status: 200, lines: EventLine, description: 'One RunEvent a line.' },
  },
  cancel: {
    method: 'DELETE',
    path: '/api/runs/:id',
    access: 'service',
    tags,
    summary: 'Cancel a run',
    description: 'Works on any server, also before the run has started. A run that is over keeps its status.',
    params: RunParams,
    reply: { status: 204 },
    absent: true,
  },
} as const satisfies Wire
