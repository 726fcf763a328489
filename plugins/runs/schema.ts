import { Type } from '@sinclair/typebox'
import { PageQuery } from '#contracts/paging'
import { eventTypes } from '#contracts/run-event'
import { RunSummary, runStatuses } from '#contracts/runs'

export const RunParams = Type.Object({ id: Type.String({ description: 'Id of the run.' }) })
export const ProfileParams = Type.Object({ name: Type.String({ description: 'Name of the profile.' }) })

/** Of a log, whose lines pass as the runner wrote them. */
export const EventLine = Type.Object(
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

export const RunList = Type.Array(RunSummary, { description: 'Newest first.' })
export const RunDetail = Type.Composite([
  RunSummary,
  Type.Object({ events: Type.Optional(Type.Array(Type.Unknown(), { description: 'RunEvents so far, in order.' })) }),
])

/** A gateway asks for the summary alone: a log may be long. */
export const RunDetailQuery = Type.Object({
  events: Type.Optional(Type.Boolean({ default: true, description: 'False leaves the events out.' })),
})

export const RunListQuery = Type.Composite([
  PageQuery,
  Type.Object({
    status: Type.Optional(Type.Union(runStatuses.map((status) => Type.Literal(status)))),
    profile: Type.Optional(Type.String({ maxLength: 200, description: 'Only runs of this profile.' })),
    sessionId: Type.Optional(Type.String({ maxLength: 128, description: 'Only runs of this session.' })),
    parent: Type.Optional(Type.String({ maxLength: 128, description: 'Only runs that this run delegated.' })),
    from: Type.Optional(Type.String({ format: 'date-time', description: 'Only runs that started then or later.' })),
    to: Type.Optional(Type.String({ format: 'date-time', description: 'Only runs that started before.' })),
  }),
])
export const EventsQuery = Type.Object({
  after: Type.Optional(
    Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER, description: 'Only events behind this `seq`.' }),
  ),
})
