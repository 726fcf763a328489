import { access, type App, failure } from '#kernel'
import type { RunnerSessions } from '#contracts/runner'
import type { Toolkit } from '#contracts/tools'
import { InvokeResult, InvokeTool, SessionParams, TenantHeaders, ToolSpecs } from './schema.ts'
import { sessionOf, tenantOf } from './tenant.ts'

const tags = ['tools']

/** Tools over plain HTTP: a tool's own failure is 200 with `ok: false`; other statuses are the wire's. */
export function toolkitRoutes(app: App, sessions: RunnerSessions, toolkit: Toolkit): void {
  app.get(
    '/runner/toolkit/specs',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'List the tools of this runner',
        description: 'Every platform tool, whatever profiles allow.',
        response: { 200: ToolSpecs },
      },
    },
    async () => toolkit.specs(),
  )

  app.get(
    '/runner/sessions/:id/toolkit/specs',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'List the tools of a session',
        description: 'What its profile allowed when the session was created.',
        headers: TenantHeaders,
        params: SessionParams,
        response: { 200: ToolSpecs },
      },
    },
    async (request) => sessions.toolSpecs(sessionOf(sessions, tenantOf(request), request.params.id)),
  )

  app.post(
    '/runner/sessions/:id/toolkit/invoke',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Invoke a tool',
        description: "A tool's own failure is 200 with `result.ok` false.",
        headers: TenantHeaders,
        params: SessionParams,
        body: InvokeTool,
        response: { 200: InvokeResult, 403: failure('`tool_not_allowed`: it is not in the toolkit of the session.') },
      },
    },
    async (request, reply) => {
      const session = sessionOf(sessions, tenantOf(request), request.params.id)
      const gone = new AbortController()
      reply.raw.once('close', () => gone.abort())
      const { name, input } = request.body
      return { result: await sessions.invokeTool(session, name, input, gone.signal) }
    },
  )
}
