import { Type } from '@sinclair/typebox'
import { access, type App, NoContent, failures, invalidRequest, conflict, notFound } from '#kernel'
import { type Guard, operator } from '#contracts/auth'
import { retentionErrors } from '#contracts/retention'
import { sendList } from '#kit/lists'
import {
  ChangeTenant,
  CreatedTenant,
  CreateTenant,
  DeleteQuery,
  FindQuery,
  IdParams,
  ListQuery,
  Tenant,
  TenantLimit,
  TenantList,
} from './schema.ts'
import type { TenantService } from './service.ts'

const tags = ['tenants']
const operators = 'For admins of the tenant AGENT_ORC_ADMIN_TENANT; 404 to everybody else.'
const byId = { tags, description: operators, params: IdParams }

export function limitRoutes(app: App, guard: Guard, service: TenantService): void {
  app.get(
    '/api/limits',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Show the limits of this tenant',
        description:
          'Every limit, with its use where it is counted. Above a limit the answer is 429 `limit_reached` or 409 `limit_exceeded`, and names it. Operators change them by `PATCH /api/tenants/{id}`.',
        response: { 200: Type.Object({ limits: Type.Array(TenantLimit) }) },
      },
    },
    async (request) => ({ limits: await service.limitsOf(guard.callerOf(request).tenantId) }),
  )
}

export function tenantRoutes(app: App, guard: Guard, service: TenantService): void {
  app.get(
    '/api/tenants',
    {
      ...access(operator),
      schema: {
        tags,
        summary: 'List tenants',
        description: operators,
        querystring: ListQuery,
        response: { 200: TenantList },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      const found = await service.list(page)
      const document = (tenants: readonly Tenant[]) => ({ total: found.total, tenants })
      return sendList(request, reply, found, { page, item: Tenant, document })
    },
  )
  app.post(
    '/api/tenants',
    {
      ...access(operator),
      schema: {
        tags,
        summary: 'Create a tenant',
        description: `${operators} With \`ownerKey\` the answer has its first key; \`agent-orc key issue --tenant <id> --role owner\` makes further ones.`,
        body: CreateTenant,
        response: { 201: CreatedTenant, ...failures(invalidRequest, conflict) },
      },
    },
    async (request, reply) => {
      const created = await service.create(request.body, guard.callerOf(request).keyId)
      return reply.code(201).header('cache-control', 'no-store').send(created)
    },
  )
  app.get(
    '/api/tenants/:id',
    {
      ...access(operator),
      schema: {
        ...byId,
        summary: 'Get a tenant',
        querystring: FindQuery,
        response: { 200: Tenant, ...failures(notFound) },
      },
    },
    async (request) => service.find(request.params.id, request.query.includeDeleted ?? false),
  )
  tenantChangeRoutes(app, guard, service)
}

/** Routes that change or delete an existing tenant. */
function tenantChangeRoutes(app: App, guard: Guard, service: TenantService): void {
  app.patch(
    '/api/tenants/:id',
    {
      ...access(operator),
      schema: {
        ...byId,
        summary: 'Rename, limit, hold or restore a tenant',
        body: ChangeTenant,
        response: {
          200: Tenant,
          ...failures(
            invalidRequest,
            notFound,
            retentionErrors.tenantErased,
            retentionErrors.noRetention,
            retentionErrors.holdNotTold,
          ),
        },
      },
    },
    async (request) => service.change(request.params.id, request.body),
  )
  app.delete(
    '/api/tenants/:id',
    {
      ...access(operator),
      schema: {
        tags,
        summary: 'Delete a tenant',
        description: `${operators} Its keys stop working with their next request, and its running runs are cancelled. Nothing is erased unless \`erase\` is true, or the role file says after how many days.`,
        params: IdParams,
        querystring: DeleteQuery,
        response: {
          204: NoContent,
          ...failures(notFound, conflict, retentionErrors.legalHold, retentionErrors.noRetention),
        },
      },
    },
    async (request, reply) => {
      await service.remove(request.params.id, guard.callerOf(request).tenantId, request.query.erase ?? false)
      return reply.code(204).send()
    },
  )
}
