import { Type } from '@sinclair/typebox'
import { access, type App, conflict, NoContent, failures, invalidRequest, forbidden, notFound } from '#kernel'
import { auditedAccess } from '#contracts/audit'
import { KeyRotation } from '#contracts/auth'
import { limitErrors } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { sendList } from '#kit/lists'
import type { ApiGuard } from './api-guard.ts'
import { IdParams, IssueBody, IssuedKey, KeyMetadata, RevokeQuery } from './keys.schema.ts'
import type { ApiKeyService } from './keys.service.ts'

const tags = ['api keys']

type KeyGuard = Pick<ApiGuard, 'callerOf' | 'record'>

export function apiKeyRoutes(app: App, guard: KeyGuard, service: ApiKeyService): void {
  app.get(
    '/api/api-keys',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List API keys',
        description:
          'Newest first, revoked ones included. Members see the keys that they created, admins and owners every key.',
        querystring: PageQuery,
        response: { 200: Type.Array(KeyMetadata) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      return sendList(request, reply, await service.list(guard.callerOf(request), page), { page, item: KeyMetadata })
    },
  )
  app.post(
    '/api/api-keys',
    {
      ...auditedAccess('member', 'api-keys.create'),
      schema: {
        tags,
        summary: 'Issue an API key',
        description:
          'The token is in this answer and never again. The new key has the role of the calling key or a lower one, expires no later, may be used only from the same addresses and for the same MCP servers and tools, or fewer, and is revoked with it.',
        body: IssueBody,
        response: { 201: IssuedKey, ...failures(invalidRequest, forbidden, limitErrors.limitExceeded) },
      },
    },
    async (request, reply) => {
      const issued = await service.issue(guard.callerOf(request), request.body)
      return reply.code(201).send(issued)
    },
  )
  lifeRoutes(app, guard, service)
}

/** The routes that replace and revoke a key. */
function lifeRoutes(app: App, guard: KeyGuard, service: ApiKeyService): void {
  app.post(
    '/api/api-keys/:id/rotate',
    {
      ...auditedAccess('member', 'api-keys.rotate'),
      schema: {
        tags,
        summary: 'Replace an API key by a new one',
        description:
          'The new key has the label, role, restrictions and expiry of the old one, or the longest lifetime of this server if that ends earlier. It takes over the keys that the old one issued and issues in its grace. A key can replace itself and the keys below it. The token is in this answer and never again. Revoking either of the two revokes both.',
        params: IdParams,
        body: KeyRotation,
        response: {
          201: IssuedKey,
          ...failures(invalidRequest, forbidden, notFound, conflict, limitErrors.limitExceeded),
        },
      },
      // The only field of the body is optional, so the body may be absent as well.
      preValidation: async (request) => void (request.body ??= { graceSeconds: 0 }),
    },
    async (request, reply) => {
      const issued = await service.rotate(guard.callerOf(request), request.params.id, request.body)
      await guard.record(request, [issued.id])
      return reply.code(201).send(issued)
    },
  )
  app.delete(
    '/api/api-keys/:id',
    {
      ...auditedAccess('member', 'api-keys.delete'),
      schema: {
        tags,
        summary: 'Revoke an API key',
        description:
          'Revokes the key and all keys below it, and with `agentKeys` also the keys of published agents that these issued. They are refused on their next request, and their open streams end within two seconds. Members revoke the keys that they created, admins any key except those of owners, owners any key.',
        params: IdParams,
        querystring: RevokeQuery,
        response: { 204: NoContent, ...failures(forbidden, notFound) },
      },
    },
    async (request, reply) => {
      const { agentKeys: wanted = false } = request.query
      const { ids, agentKeys } = await service.revoke(guard.callerOf(request), request.params.id, wanted)
      await guard.record(request, ids, wanted ? { agentKeys } : undefined)
      return reply.code(204).send()
    },
  )
}
