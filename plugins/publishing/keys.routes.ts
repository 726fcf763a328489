import { Type } from '@sinclair/typebox'
import { access, type App } from '#kernel'
import type { Guard } from '#contracts/auth'
import { pageHeaders, PageQuery } from '#contracts/paging'
import { isProfileName } from '#contracts/profiles'
import { unknownKey } from './errors.ts'
import { publishable } from './routes.ts'
import { IssuedKey, KeyBody, KeyMetadata, KeyParams, NameParams, NoContent } from './schema.ts'
import type { PublishingService } from './service.ts'

const tags = ['publishing']

// Keys are administered by admins only; the contract keeps members out of it.
export function keyRoutes(app: App, guard: Guard, service: PublishingService): void {
  app.get(
    '/api/profiles/:name/keys',
    {
      ...access('admin'),
      schema: { tags, params: NameParams, querystring: PageQuery, response: { 200: Type.Array(KeyMetadata) } },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { keys, total } = await service.listKeys(tenantId, publishable(request.params.name), request.query)
      void reply.headers(pageHeaders(request.url, request.query, total))
      return keys
    },
  )
  app.post(
    '/api/profiles/:name/keys',
    { ...access('admin'), schema: { tags, params: NameParams, body: KeyBody, response: { 201: IssuedKey } } },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const issued = await service.issueKey(tenantId, publishable(request.params.name), request.body.label)
      return reply.code(201).header('cache-control', 'no-store').send(issued)
    },
  )
  app.delete(
    '/api/profiles/:name/keys/:keyId',
    { ...access('admin'), schema: { tags, params: KeyParams, response: { 204: NoContent } } },
    async (request, reply) => {
      const { name, keyId } = request.params
      if (!isProfileName(name)) throw unknownKey()
      await service.revokeKey(guard.callerOf(request).tenantId, name, keyId)
      return reply.code(204).send()
    },
  )
}
