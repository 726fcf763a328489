import { Type } from '@sinclair/typebox'
import { access, type App, NoContent } from '#kernel'
import type { Guard } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { isId, newId } from '#contracts/ids'
import { pageHeaders, PageQuery } from '#contracts/paging'
import type { Broadcast } from './broadcast.ts'
import { noSuchPool } from './errors.ts'
import { deletePool, insertPool, listPools } from './pools.store.ts'
import { Pool, PoolInput } from './schema.ts'

const tags = ['pools']

/** Agent pools. Specification 4.6. */
export function poolRoutes(app: App, guard: Guard, database: Database, broadcast: Broadcast): void {
  app.get(
    '/api/pools',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List pools',
        description: 'By name.',
        querystring: PageQuery,
        response: { 200: Type.Array(Pool) },
      },
    },
    async (request, reply) => {
      const { pools, total } = await listPools(database, guard.callerOf(request).tenantId, request.query)
      void reply.headers(pageHeaders(request.url, request.query, total))
      return pools
    },
  )
  app.post(
    '/api/pools',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Create a pool',
        description:
          'A part of the fleet. New sessions of a profile that names it are placed on its live runners only. Broadcast to every runner; it never changes, so make another one and let profiles name that.',
        body: PoolInput,
        response: { 201: Pool },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      const pool = await insertPool(database, tenantId, newId('pool'), request.body)
      await broadcast.changed(tenantId)
      return reply.code(201).send(pool)
    },
  )
  app.delete(
    '/api/pools/:id',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Delete a pool',
        description: '409 `pool_in_use` while profiles name it. Existing sessions stay where they are.',
        params: Type.Object({ id: Type.String() }),
        response: { 204: NoContent },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      // No other text is the id of a pool, and PostgreSQL would refuse some of it with an error.
      if (!isId('pool', request.params.id)) throw noSuchPool()
      await deletePool(database, tenantId, request.params.id)
      await broadcast.changed(tenantId)
      return reply.code(204).send()
    },
  )
}
