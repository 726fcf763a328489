import { Type } from '@sinclair/typebox'
import { access, type App } from '#kernel'
import { Profile } from '#contracts/profiles'
import type { RunnerService } from '#contracts/runner'
import { NameParams, TenantHeaders } from './schema.ts'
import { tenantOf } from './tenant.ts'

/** Profiles as conductors broadcast them. */
export function profileRoutes(app: App, core: RunnerService): void {
  app.get(
    '/runner/profiles',
    { ...access('network'), schema: { headers: TenantHeaders, response: { 200: Type.Array(Profile) } } },
    async (request) => [...core.profiles(tenantOf(request))],
  )

  app.post(
    '/runner/profiles',
    { ...access('network'), schema: { headers: TenantHeaders, body: Profile } },
    async (request, reply) => {
      await core.putProfile(tenantOf(request), request.body)
      return reply.code(204).send()
    },
  )

  app.delete(
    '/runner/profiles/:name',
    { ...access('network'), schema: { headers: TenantHeaders, params: NameParams } },
    async (request, reply) => {
      await core.deleteProfile(tenantOf(request), request.params.name)
      return reply.code(204).send()
    },
  )
}
