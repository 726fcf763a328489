import { Type } from '@sinclair/typebox'
import { access, type App, NoContent } from '#kernel'
import { Delegation, DelegationAnswer } from '#contracts/delegation'
import type { RunnerService, RunnerSessions } from '#contracts/runner'
import { SessionParams, TenantHeaders } from './schema.ts'
import { sessionOf, tenantOf } from './tenant.ts'

const tags = ['tools']

/** Tool calls that wait for a run of another profile: a conductor reads of one in the run's events, starts the run and answers. */
export function delegationRoutes(app: App, core: RunnerService, sessions: RunnerSessions): void {
  const address = { tags, headers: TenantHeaders, params: SessionParams }
  app.get(
    '/runner/sessions/:id/delegations',
    {
      ...access('network'),
      schema: {
        ...address,
        summary: 'Take the delegations of a session',
        description: 'Those that wait. They count as taken from then on, and wait until they are answered.',
        response: { 200: Type.Array(Delegation) },
      },
    },
    async (request) => {
      const { id, tenantId } = sessionOf(sessions, tenantOf(request), request.params.id)
      return [...(await core.delegations(tenantId, id))]
    },
  )

  app.post(
    '/runner/sessions/:id/delegations',
    {
      ...access('network'),
      schema: {
        ...address,
        summary: 'Answer a delegation',
        description: 'One that nobody waits for any more is no error.',
        body: Type.Composite([Type.Object({ id: Type.String() }), DelegationAnswer]),
        response: { 204: NoContent },
      },
    },
    async (request, reply) => {
      const { id, tenantId } = sessionOf(sessions, tenantOf(request), request.params.id)
      const { id: delegationId, ...answer } = request.body
      await core.answerDelegation(tenantId, id, delegationId, answer)
      return reply.code(204).send()
    },
  )
}
