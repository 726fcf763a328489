import { Type } from '@sinclair/typebox'
import { access, type App, NoContent } from '#kernel'
import { Profile } from '#contracts/profiles'
import type { RunnerService } from '#contracts/runner'
import { NameParams, TenantHeaders } from './schema.ts'
import { tenantOf } from './tenant.ts'

const tags = ['broadcast']

/** Profiles, one by one. Specification 4.22. */
export function profileRoutes(app: App, core: RunnerService): void {
  app.get(
    '/runner/profiles',
    {
      ...access('network'),
      schema: {
        tags,
        summary: "List a tenant's profiles on this runner",
        headers: TenantHeaders,
        response: { 200: Type.Array(Profile) },
      },
    },
    async (request) => [...core.profiles(tenantOf(request))],
  )

  app.post(
    '/runner/profiles',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Store a profile on this runner',
        description: 'An older version than the one that is there changes nothing.',
        headers: TenantHeaders,
        body: Profile,
        response: { 204: NoContent },
      },
    },
    async (request, reply) => {
      await core.putProfile(tenantOf(request), request.body)
      return reply.code(204).send()
    },
  )

  app.delete(
    '/runner/profiles/:name',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Delete a profile from this runner',
        description: 'Sessions keep their snapshot of it.',
        headers: TenantHeaders,
        params: NameParams,
        response: { 204: NoContent },
      },
    },
    async (request, reply) => {
      await core.deleteProfile(tenantOf(request), request.params.name)
      return reply.code(204).send()
    },
  )
}
