import { Type } from '@sinclair/typebox'
import { PageQuery } from '#contracts/paging'
import { RunSummary } from '#contracts/runs'
import { Session } from '#contracts/sessions'

export const SessionParams = Type.Object({ id: Type.String({ description: 'Id of the session.' }) })
export const SessionListQuery = Type.Composite([
  PageQuery,
  Type.Object({
    q: Type.Optional(Type.String({ maxLength: 200, description: 'Part of the session id or the profile name.' })),
  }),
])
export const SessionList = Type.Array(Session, { description: 'Live sessions, newest first.' })
export const SessionRuns = Type.Array(RunSummary, { description: 'Newest first.' })
