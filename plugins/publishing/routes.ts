import { Type } from '@sinclair/typebox'
import { access, type App } from '#kernel'
import type { Guard } from '#contracts/auth'
import { pageHeaders, PageQuery } from '#contracts/paging'
import { isProfileName } from '#contracts/profiles'
import { notPublished, unknownProfile } from './errors.ts'
import { NameParams, NoContent, PatchBody, PublishBody, PublishedAgent } from './schema.ts'
import type { PublishingService } from './service.ts'

const tags = ['publishing']

export function publishingRoutes(app: App, guard: Guard, service: PublishingService): void {
  app.get(
    '/api/published',
    { ...access('member'), schema: { tags, querystring: PageQuery, response: { 200: Type.Array(PublishedAgent) } } },
    async (request, reply) => {
      const { agents, total } = await service.list(guard.callerOf(request).tenantId, request.query)
      void reply.headers(pageHeaders(request.url, request.query, total))
      return agents
    },
  )
  app.post(
    '/api/profiles/:name/publish',
    {
      ...access('admin'),
      schema: { tags, params: NameParams, body: PublishBody, response: { 201: PublishedAgent } },
      // Every field is optional, and so is the body.
      preValidation: async (request) => void (request.body ??= {}),
    },
    async (request, reply) => {
      if (!isProfileName(request.params.name)) throw unknownProfile()
      const agent = await service.publish(guard.callerOf(request).tenantId, request.params.name, request.body)
      return reply.code(201).send(agent)
    },
  )
  app.get(
    '/api/profiles/:name/published',
    { ...access('member'), schema: { tags, params: NameParams, response: { 200: PublishedAgent } } },
    async (request) => service.find(guard.callerOf(request).tenantId, publishable(request.params.name)),
  )
  app.patch(
    '/api/profiles/:name/published',
    { ...access('admin'), schema: { tags, params: NameParams, body: PatchBody, response: { 200: PublishedAgent } } },
    async (request) => {
      return service.change(guard.callerOf(request).tenantId, publishable(request.params.name), request.body)
    },
  )
  app.delete(
    '/api/profiles/:name/published',
    { ...access('admin'), schema: { tags, params: NameParams, response: { 204: NoContent } } },
    async (request, reply) => {
      await service.unpublish(guard.callerOf(request).tenantId, publishable(request.params.name))
      return reply.code(204).send()
    },
  )
}

/** A name that no profile can have is not published, and never reaches the database. */
export function publishable(name: string): string {
  if (!isProfileName(name)) throw notPublished()
  return name
}
