import { Type } from '@sinclair/typebox'
import { access, type App, conflict, NoContent, failures, invalidRequest, forbidden, notFound } from '#kernel'
import { auditedAccess } from '#contracts/audit'
import { KeyRotation } from '#contracts/auth'
import { limitErrors } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { sendList } from '#kit/lists'
import type { ApiGuard } from './api-guard.ts'
import { IdParams, IssueBody, IssuedKey, KeyMetadata } from './keys.schema.ts'
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
          'The token is in this answer and never again. A key may be granted the role of the key that asks, or a lower one; it expires with that key at the latest, may be used from no other addresses and for no other MCP servers and tools, and is revoked with it.',
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

/** How a key is replaced, and ends. */
function lifeRoutes(app: App, guard: KeyGuard, service: ApiKeyService): void {
  app.post(
    '/api/api-keys/:id/rotate',
    {
      ...auditedAccess('member', 'api-keys.rotate'),
      schema: {
        tags,
        summary: 'Replace an API key by a new one',
        description:
          'The new key has the label, role, bounds and expiry of the old one, and all that it minted. A key replaces itself, and those below it: what it minted, and what they minted in turn. The token is in this answer and never again. Revoking either of the two revokes both.',
        params: IdParams,
        body: KeyRotation,
        response: { 201: IssuedKey, ...failures(invalidRequest, forbidden, notFound, conflict) },
      },
      // Its only field is optional, and so is the body.
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
          'With all keys that it created, and what those created. Effective with their very next request; their open streams end within two seconds. Members revoke the keys that they created, admins any key but those of owners, owners any key.',
        params: IdParams,
        response: { 204: NoContent, ...failures(forbidden, notFound) },
      },
    },
    async (request, reply) => {
      const others = await service.revoke(guard.callerOf(request), request.params.id)
      await guard.record(request, others)
      return reply.code(204).send()
    },
  )
}
