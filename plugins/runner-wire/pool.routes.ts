import { type Static, Type } from '@sinclair/typebox'
import { access, type App, notFound } from '#kernel'
import { newId } from '#contracts/ids'
import { Pool, PoolInput, SessionParams, TenantHeaders } from './schema.ts'
import { tenantOf } from './tenant.ts'

/** Agent pools as conductors broadcast them, per tenant. */
export function poolRoutes(app: App): void {
  const tenants = new Map<string, Map<string, Static<typeof Pool>>>()

  app.get(
    '/runner/pools',
    { ...access('network'), schema: { headers: TenantHeaders, response: { 200: Type.Array(Pool) } } },
    async (request) => [...(tenants.get(tenantOf(request))?.values() ?? [])],
  )

  app.post(
    '/runner/pools',
    { ...access('network'), schema: { headers: TenantHeaders, body: PoolInput, response: { 201: Pool } } },
    async (request, reply) => {
      const tenantId = tenantOf(request)
      const pool = { ...request.body, id: request.body.id ?? newId('pool') }
      const pools = tenants.get(tenantId) ?? new Map<string, Static<typeof Pool>>()
      tenants.set(tenantId, pools.set(pool.id, pool))
      return reply.code(201).send(pool)
    },
  )

  app.delete(
    '/runner/pools/:id',
    { ...access('network'), schema: { headers: TenantHeaders, params: SessionParams } },
    async (request, reply) => {
      const tenantId = tenantOf(request)
      const pools = tenants.get(tenantId)
      if (!pools?.delete(request.params.id)) throw notFound()
      if (pools.size === 0) tenants.delete(tenantId)
      return reply.code(204).send()
    },
  )
}
