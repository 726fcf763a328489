import { Type } from '@sinclair/typebox'
import { access, type App, NoContent, notFound } from '#kernel'
import { newId } from '#contracts/ids'
import type { RunnerService } from '#contracts/runner'
import { Pool, PoolInput, SessionParams, TenantHeaders } from './schema.ts'
import { tenantOf } from './tenant.ts'

const tags = ['broadcast']

/** Agent pools, one by one. Specification 4.22. */
export function poolRoutes(app: App, core: RunnerService): void {
  app.get(
    '/runner/pools',
    {
      ...access('network'),
      schema: {
        tags,
        summary: "List a tenant's pools on this runner",
        headers: TenantHeaders,
        response: { 200: Type.Array(Pool) },
      },
    },
    async (request) => [...core.pools(tenantOf(request))],
  )

  app.post(
    '/runner/pools',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Store a pool on this runner',
        headers: TenantHeaders,
        body: PoolInput,
        response: { 201: Pool },
      },
    },
    async (request, reply) => {
      const pool = { ...request.body, id: request.body.id ?? newId('pool') }
      await core.putPool(tenantOf(request), pool)
      return reply.code(201).send(pool)
    },
  )

  app.delete(
    '/runner/pools/:id',
    {
      ...access('network'),
      schema: {
        tags,
        summary: 'Delete a pool from this runner',
        headers: TenantHeaders,
        params: SessionParams,
        response: { 204: NoContent },
      },
    },
    async (request, reply) => {
      const tenantId = tenantOf(request)
      if (!core.pools(tenantId).some(({ id }) => id === request.params.id)) throw notFound()
      await core.deletePool(tenantId, request.params.id)
      return reply.code(204).send()
    },
  )
}
