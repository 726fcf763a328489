import { Type } from '@sinclair/typebox'
import { access, type App, conflict, NoContent, failures, invalidRequest, notFound } from '#kernel'
import { type Guard, KeyRotation } from '#contracts/auth'
import { PageQuery } from '#contracts/paging'
import { isProfileName } from '#contracts/profiles'
import { sendList } from '#kit/lists'
import { unknownKey, publishingErrors } from './errors.ts'
import { publishable } from './routes.ts'
import { IssuedKey, KeyBody, KeyMetadata, KeyParams, NameParams } from './schema.ts'
import type { AgentKeyService } from './keys.ts'

const tags = ['publishing']

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
        response: { 201: IssuedKey, ...failures(invalidRequest, publishingErrors.notPublished) },
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
          'The new key has the label and the expiry of the old one, or the expiry of the API key that asks when that is sooner. The token is in this answer and never again.',
        params: KeyParams,
        body: KeyRotation,
        response: {
          201: IssuedKey,
          ...failures(invalidRequest, notFound, conflict, publishingErrors.notPublished),
        },
      },
      // Its only field is optional, and so is the body.
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
        description: 'The next request with it is refused. Keys of a former publication can be revoked, too.',
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
