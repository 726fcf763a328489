import { Type } from '@sinclair/typebox'
import { access, type App, NoContent, failures } from '#kernel'
import type { Guard } from '#contracts/auth'
import { pageHeaders, pageOf, PageQuery } from '#contracts/paging'
import type { RunStore } from '#contracts/run-store'
import { RunSummary } from '#contracts/runs'
import { Session } from '#contracts/sessions'
import type { SessionService } from './service.ts'
import { sessionErrors } from './errors.ts'

const tags = ['sessions']

export const SessionParams = Type.Object({ id: Type.String({ description: 'Id of the session.' }) })
const SessionListQuery = Type.Composite([
  PageQuery,
  Type.Object({
    q: Type.Optional(Type.String({ maxLength: 200, description: 'Part of the session id or the profile name.' })),
  }),
])
const SessionList = Type.Array(Session, { description: 'Live sessions, newest first.' })
const SessionRuns = Type.Array(RunSummary, { description: 'Newest first.' })

/** How one listener authenticates its callers. */
export interface Plane {
  readonly guard: Guard
  readonly who: { readonly read: string; readonly write: string }
}

/** The routes that gateways call, too: the same handlers on the public and on the signed listener. */
export function sessionRoutes(app: App, service: SessionService, { guard, who }: Plane): void {
  app.get(
    '/api/sessions/:id',
    {
      ...access(who.read),
      schema: {
        tags,
        summary: 'Get a session',
        description: 'Also one that was shut down.',
        params: SessionParams,
        response: { 200: Session, ...failures(sessionErrors.notFound) },
      },
    },
    async (request) => service.get(guard.callerOf(request).tenantId, request.params.id),
  )
  app.delete(
    '/api/sessions/:id',
    {
      ...access(who.write),
      schema: {
        tags,
        summary: 'Shut a session down',
        description:
          'For good: no run starts in it again, and runs that wait for it are cancelled. 409 `session_busy` while it executes one: cancel that first.',
        params: SessionParams,
        response: { 204: NoContent, ...failures(sessionErrors.notFound, sessionErrors.sessionBusy) },
      },
    },
    async (request, reply) => {
      await service.shutdown(guard.callerOf(request).tenantId, request.params.id)
      return reply.code(204).send()
    },
  )
}

/** What only the public listener serves. */
export function publicSessionRoutes(app: App, service: SessionService, store: RunStore, guard: Guard): void {
  app.get(
    '/api/sessions',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List live sessions',
        description: 'Newest first, without those that were shut down.',
        querystring: SessionListQuery,
        response: { 200: SessionList },
      },
    },
    async (request, reply) => {
      const { q, ...page } = request.query
      const filter = { ...pageOf(page), ...(q === undefined ? {} : { q }) }
      const { sessions, total } = await store.listSessions(guard.callerOf(request).tenantId, filter)
      return reply.headers(pageHeaders(request.url, page, total)).send(sessions)
    },
  )
  app.get(
    '/api/sessions/:id/runs',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List the runs of a session',
        description: 'Newest first, those that wait for it included.',
        params: SessionParams,
        querystring: PageQuery,
        response: { 200: SessionRuns },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { id: sessionId } = await service.get(tenantId, request.params.id)
      const { runs, total } = await store.listRuns(tenantId, { sessionId, ...pageOf(request.query) })
      return reply.headers(pageHeaders(request.url, request.query, total)).send(runs)
    },
  )
}
