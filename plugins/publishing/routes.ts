import { Type } from '@sinclair/typebox'
import { access, type App, NoContent, failures, conflict, notFound, invalidRequest } from '#kernel'
import { type Guard, KeyRotation } from '#contracts/auth'
import { fundsErrors } from '#contracts/billing'
import { limitErrors } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { isProfileName } from '#contracts/profiles'
import { type PublishedStats, PublishedMetrics, SeriesQuery } from '#contracts/stats'
import { sendList } from '#kit/lists'
import { unknownProfile, publishingErrors, unfit, unknownKey } from './errors.ts'
import {
  NameParams,
  PatchBody,
  PublishBody,
  PublishedAgent,
  IssuedKey,
  KeyBody,
  KeyMetadata,
  KeyParams,
} from './schema.ts'
import type { PublishingService } from './agents.ts'
import type { AgentKeyService } from './keys.ts'

const tags = ['publishing']

/** Publishes a profile and unpublishes it. */
export function publishingRoutes(app: App, guard: Guard, service: PublishingService): void {
  app.post(
    '/api/profiles/:name/publish',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Publish a profile',
        description: '409 `conflict` when it is published already, or another agent has the slug.',
        params: NameParams,
        body: PublishBody,
        response: {
          201: PublishedAgent,
          ...failures(...unfit, ...fundsErrors, notFound, conflict, limitErrors.limitExceeded),
        },
      },
      // Every field is optional, so the body is optional too.
      preValidation: async (request) => void (request.body ??= {}),
    },
    async (request, reply) => {
      if (!isProfileName(request.params.name)) throw unknownProfile()
      const agent = await service.publish(guard.callerOf(request).tenantId, request.params.name, request.body)
      return reply.code(201).send(agent)
    },
  )
  app.delete(
    '/api/profiles/:name/published',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Unpublish a profile',
        description: 'Its keys stop working and its slug is free at once; its conversations are kept.',
        params: NameParams,
        response: { 204: NoContent, ...failures(publishingErrors.notPublished) },
      },
    },
    async (request, reply) => {
      await service.unpublish(guard.callerOf(request).tenantId, publishable(request.params.name))
      return reply.code(204).send()
    },
  )
}

/** What is published, and how. */
export function publishedRoutes(app: App, guard: Guard, service: PublishingService): void {
  app.get(
    '/api/published',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List published agents',
        description: 'The agents that are published now, by the name of their profile.',
        querystring: PageQuery,
        response: { 200: Type.Array(PublishedAgent) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      const agents = await service.list(guard.callerOf(request).tenantId, page)
      return sendList(request, reply, agents, { page, item: PublishedAgent })
    },
  )
  app.get(
    '/api/profiles/:name/published',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Show how a profile is published',
        description: '404 `not_published` when it is not.',
        params: NameParams,
        response: { 200: PublishedAgent, ...failures(publishingErrors.notPublished) },
      },
    },
    async (request) => service.find(guard.callerOf(request).tenantId, publishable(request.params.name)),
  )
  app.patch(
    '/api/profiles/:name/published',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Change a published agent',
        description: 'Omitted fields stay unchanged. Applies from the next chat request on.',
        params: NameParams,
        body: PatchBody,
        response: { 200: PublishedAgent, ...failures(...unfit, publishingErrors.notPublished, conflict) },
      },
    },
    async (request) => {
      return service.change(guard.callerOf(request).tenantId, publishable(request.params.name), request.body)
    },
  )
}

/** The figures of an agent's public requests; only in roles that keep statistics. */
export function metricsRoutes(app: App, guard: Guard, service: PublishingService, stats: PublishedStats): void {
  app.get(
    '/api/profiles/:name/metrics',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Measure a published agent',
        description: 'For the active publication: 404 `not_published` without one.',
        params: NameParams,
        querystring: SeriesQuery,
        response: { 200: PublishedMetrics, ...failures(publishingErrors.notPublished) },
      },
    },
    async (request) => {
      const { tenantId } = guard.callerOf(request)
      const { id, slug, profileName: profile } = await service.find(tenantId, publishable(request.params.name))
      return stats.metrics(tenantId, { id, slug, profile }, request.query)
    },
  )
}

/** Throws for a name that no profile can have, so that it never reaches the database. */
function publishable(name: string): string {
  if (!isProfileName(name)) throw publishingErrors.notPublished()
  return name
}

// Keys are administered by admins only; the contract keeps members out of it.
export function keyRoutes(app: App, guard: Guard, service: AgentKeyService): void {
  app.get(
    '/api/profiles/:name/keys',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'List the keys of a published agent',
        description: 'Active and revoked ones, newest first; never a token.',
        params: NameParams,
        querystring: PageQuery,
        response: { 200: Type.Array(KeyMetadata), ...failures(publishingErrors.notPublished) },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const { query: page } = request
      const keys = await service.list(tenantId, publishable(request.params.name), page)
      return sendList(request, reply, keys, { page, item: KeyMetadata })
    },
  )
  app.post(
    '/api/profiles/:name/keys',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Issue a key',
        description:
          'The token is in this answer and never again. 503 `key_hashing_unavailable` without AGENT_API_KEY_PEPPER.',
        params: NameParams,
        body: KeyBody,
        response: {
          201: IssuedKey,
          ...failures(invalidRequest, publishingErrors.notPublished, limitErrors.limitExceeded),
        },
      },
    },
    async (request, reply) => {
      const issued = await service.issue(guard.callerOf(request), publishable(request.params.name), request.body)
      return reply.code(201).send(issued)
    },
  )
  lifeRoutes(app, guard, service)
}

/** How a key is replaced, and ends. */
function lifeRoutes(app: App, guard: Guard, service: AgentKeyService): void {
  app.post(
    '/api/profiles/:name/keys/:keyId/rotate',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Replace a key by a new one',
        description:
          'The new key has the label, the networks and the expiry of the old one, or the expiry of the calling API key when that is earlier. The token is in this answer and never again.',
        params: KeyParams,
        body: KeyRotation,
        response: {
          201: IssuedKey,
          ...failures(invalidRequest, notFound, conflict, publishingErrors.notPublished, limitErrors.limitExceeded),
        },
      },
      // The only field is optional, so the body is optional too.
      preValidation: async (request) => void (request.body ??= { graceSeconds: 0 }),
    },
    async (request, reply) => {
      const { name, keyId } = request.params
      const issued = await service.rotate(guard.callerOf(request), publishable(name), keyId, request.body)
      return reply.code(201).send(issued)
    },
  )
  app.delete(
    '/api/profiles/:name/keys/:keyId',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Revoke a key',
        description: 'Its next request is refused. Keys of an earlier publication can be revoked, too.',
        params: KeyParams,
        response: { 204: NoContent, ...failures(notFound, publishingErrors.notPublished) },
      },
    },
    async (request, reply) => {
      const { name, keyId } = request.params
      if (!isProfileName(name)) throw unknownKey()
      await service.revoke(guard.callerOf(request).tenantId, name, keyId)
      return reply.code(204).send()
    },
  )
}
