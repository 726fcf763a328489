import { Type } from '@sinclair/typebox'
import { PageQuery } from '#contracts/paging'
import { RunSummary, runStatuses } from '#contracts/runs'

export const RunParams = Type.Object({ id: Type.String({ description: 'Id of the run.' }) })
export const ProfileParams = Type.Object({ name: Type.String({ description: 'Name of the profile.' }) })

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
    from: Type.Optional(Type.String({ format: 'date-time', description: 'Only runs that started then or later.' })),
    to: Type.Optional(Type.String({ format: 'date-time', description: 'Only runs that started before.' })),
  }),
])
export const EventsQuery = Type.Object({
  after: Type.Optional(
    Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER, description: 'Only events behind this `seq`.' }),
  ),
})
export const NoContent = Type.Unsafe<undefined>({ type: 'null', description: 'Done.' })
