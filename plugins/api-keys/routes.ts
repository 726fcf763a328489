import { Type } from '@sinclair/typebox'
import { access, type App } from '#kernel'
import type { Guard } from '#contracts/auth'
import { pageHeaders, PageQuery } from '#contracts/paging'
import { IdParams, IssueBody, IssuedKey, KeyMetadata, NoContent } from './schema.ts'
import type { ApiKeyService } from './service.ts'

const tags = ['api keys']

export function apiKeyRoutes(app: App, guard: Guard, service: ApiKeyService): void {
  app.get(
    '/api/api-keys',
    { ...access('member'), schema: { tags, querystring: PageQuery, response: { 200: Type.Array(KeyMetadata) } } },
    async (request, reply) => {
      const { keys, total } = await service.list(guard.callerOf(request), request.query)
      void reply.headers(pageHeaders(request.url, request.query, total))
      return keys
    },
  )
  app.post(
    '/api/api-keys',
    { ...access('member'), schema: { tags, body: IssueBody, response: { 201: IssuedKey } } },
    async (request, reply) => {
      const issued = await service.issue(guard.callerOf(request), request.body)
      return reply.code(201).header('cache-control', 'no-store').send(issued)
    },
  )
  app.delete(
    '/api/api-keys/:id',
    { ...access('member'), schema: { tags, params: IdParams, response: { 204: NoContent } } },
    async (request, reply) => {
      await service.revoke(guard.callerOf(request), request.params.id)
      return reply.code(204).send()
    },
  )
}
