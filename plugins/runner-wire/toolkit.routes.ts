import { access, type App } from '#kernel'
import type { RunnerSessions } from '#contracts/runner'
import type { Toolkit } from '#contracts/tools'
import { InvokeResult, InvokeTool, SessionParams, TenantHeaders, ToolSpecs } from './schema.ts'
import { sessionOf, tenantOf } from './tenant.ts'

/** Tools over plain HTTP: a tool's own failure is 200 with `ok: false`; other statuses are the wire's. */
export function toolkitRoutes(app: App, sessions: RunnerSessions, toolkit: Toolkit): void {
  app.get('/runner/toolkit/specs', { ...access('network'), schema: { response: { 200: ToolSpecs } } }, async () =>
    toolkit.specs(),
  )

  app.get(
    '/runner/sessions/:id/toolkit/specs',
    { ...access('network'), schema: { headers: TenantHeaders, params: SessionParams, response: { 200: ToolSpecs } } },
    async (request) => sessions.toolSpecs(sessionOf(sessions, tenantOf(request), request.params.id)),
  )

  app.post(
    '/runner/sessions/:id/toolkit/invoke',
    {
      ...access('network'),
      schema: { headers: TenantHeaders, params: SessionParams, body: InvokeTool, response: { 200: InvokeResult } },
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
