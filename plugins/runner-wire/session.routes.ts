import { type Static, Type } from '@sinclair/typebox'
import { access, type App, failure, isAppError, NoContent } from '#kernel'
import type { RunnerService, RunnerSession, RunnerSessions } from '#contracts/runner'
import { encodeSessionStatus } from '#contracts/wire/runner'
import { CreateSession, SessionHealth, SessionParams, TenantHeaders, WireSession } from './schema.ts'
import { sessionOf, tenantOf } from './tenant.ts'

const tags = ['sessions']

const wire = (session: RunnerSession): Static<typeof WireSession> => ({
  ...session,
  tools: [...session.tools],
  runtime: session.profile.runtime,
  status: encodeSessionStatus(session.status),
})

export function sessionRoutes(app: App, core: RunnerService, sessions: RunnerSessions): void {
  app.get(
    '/runner/sessions',
    {
      ...access('network'),
      schema: {
        tags,
        summary: "List a tenant's sessions on this runner",
        headers: TenantHeaders,
        response: { 200: Type.Array(WireSession) },
      },
    },
    async (request) => {
      const tenantId = tenantOf(request)
      return sessions
        .list()
        .filter((session) => session.tenantId === tenantId)
        .map(wire)
    },
  )

  app.post(
    '/runner/sessions',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Create a session',
        description:
          'Under an id of this runner. Its tools are those of the profile that the runner has; they never change.',
        headers: TenantHeaders,
        body: CreateSession,
        response: { 201: WireSession, 404: failure('`unknown_profile`: it was never broadcast.') },
      },
    },
    async (request, reply) =>
      reply.code(201).send(wire(core.createSession(tenantOf(request), request.body.profileName))),
  )

  app.get(
    '/runner/sessions/:id',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Get a session',
        headers: TenantHeaders,
        params: SessionParams,
        response: { 200: WireSession },
      },
    },
    async (request) => wire(sessionOf(sessions, tenantOf(request), request.params.id)),
  )

  app.delete(
    '/runner/sessions/:id',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Shut a session down',
        description: 'Its MCP endpoint goes with it, and a run under way ends. An unknown session is no error.',
        headers: TenantHeaders,
        params: SessionParams,
        response: { 204: NoContent },
      },
    },
    async (request, reply) => {
      await core.deleteSession(tenantOf(request), request.params.id)
      return reply.code(204).send()
    },
  )

  app.get(
    '/runner/sessions/:id/health',
    {
      ...access('network'),
      schema: {
        tags,
        summary: "Check a session's sidecar",
        description: 'Or its sandbox. 200 with `healthy` false and an `error` when it does not answer.',
        headers: TenantHeaders,
        params: SessionParams,
        response: { 200: SessionHealth },
      },
    },
    async (request) => {
      const session = sessionOf(sessions, tenantOf(request), request.params.id)
      try {
        await core.checkSession(session)
        return { healthy: true }
      } catch (error) {
        return { healthy: false, error: (isAppError(error) && error.sentence) || 'The sidecar does not answer.' }
      }
    },
  )
}
