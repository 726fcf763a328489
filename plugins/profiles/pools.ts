import { Type } from '@sinclair/typebox'
import { access, type App, NoContent, failures, invalidRequest, conflict, notFound } from '#kernel'
import type { Guard } from '#contracts/auth'
import { type Database, sqlState, violatedConstraint } from '#contracts/database'
import { isId, newId } from '#contracts/ids'
import { limitErrors, type TenantLimits } from '#contracts/limits'
import { type Listing, type Page, PageQuery } from '#contracts/paging'
import { type ListSql, readList, sendList } from '#kit/lists'
import type { BroadcastSender } from './broadcast.ts'
import { noSuchPool, poolInUse, poolNameTaken, profileErrors } from './errors.ts'
import { Pool, PoolInput } from './schema.ts'

const tags = ['pools']

/** Agent pools. Specification 4.6. */
export function poolRoutes(
  app: App,
  guard: Guard,
  database: Database,
  broadcast: BroadcastSender,
  limits: TenantLimits | undefined,
): void {
  app.get(
    '/api/pools',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List pools',
        description: 'Sorted by name.',
        querystring: PageQuery,
        response: { 200: Type.Array(Pool) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      return sendList(request, reply, await listPools(database, guard.callerOf(request).tenantId, page), {
        page,
        item: Pool,
      })
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
          'A part of the fleet. New sessions of a profile that names it are placed on its live runners only. It is broadcast to every runner and never changes: create another pool and let profiles name that.',
        body: PoolInput,
        response: { 201: Pool, ...failures(invalidRequest, conflict, limitErrors.limitExceeded) },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      limits?.stored.admit(tenantId)
      const pool = await insertPool(database, tenantId, newId('pool'), request.body)
      limits?.stored.add(tenantId, JSON.stringify(pool).length)
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
        response: { 204: NoContent, ...failures(notFound, profileErrors.poolInUse) },
      },
    },
    async (request, reply) => {
      const { tenantId } = guard.callerOf(request)
      // No other text is the id of a pool, and PostgreSQL would answer some other texts with an error.
      if (!isId('pool', request.params.id)) throw noSuchPool()
      await deletePool(database, tenantId, request.params.id)
      await broadcast.changed(tenantId)
      return reply.code(204).send()
    },
  )
}

export interface PoolRow {
  id: string
  name: string
  description: string | null
  runners: string[] | null
  runtimes: string[] | null
  created_at: string
}

const columns = 'id, name, description, runners, runtimes, created_at'
/** How many profiles a refusal names. */
const namedProfiles = 5

export const toPool = (row: PoolRow): Pool => ({
  id: row.id,
  name: row.name,
  ...(row.description === null ? {} : { description: row.description }),
  ...(row.runners === null ? {} : { runners: row.runners }),
  ...(row.runtimes === null ? {} : { runtimes: row.runtimes }),
  createdAt: row.created_at,
})

/** Pools per portion of a list. Each has at most 16 KB, because a pool names up to a thousand runners. */
const poolsAtOnce = 64

function listPools(database: Database, tenantId: string, page: Page): Promise<Listing<Pool>> {
  const list: ListSql = {
    columns,
    from: 'pools',
    where: 'tenant_id = $1',
    values: [tenantId],
    order: { name: 'text' },
    atOnce: poolsAtOnce,
  }
  return readList({ database, tenantId }, list, page, toPool)
}

/** The runtimes of a pool, for the sentence that refuses a profile. Null: any runtime. Undefined: no such pool. */
export async function runtimesOfPool(
  database: Database,
  tenantId: string,
  name: string,
): Promise<PoolRow['runtimes'] | undefined> {
  const [row] = await database.unit<Pick<PoolRow, 'runtimes'>>(tenantId, {
    text: 'SELECT runtimes FROM pools WHERE tenant_id = $1 AND name = $2',
    values: [tenantId, name],
  })
  return row?.runtimes
}

async function insertPool(database: Database, tenantId: string, id: string, pool: PoolInput): Promise<Pool> {
  const { name, description, runners, runtimes } = pool
  const insert = {
    text: `INSERT INTO pools (tenant_id, id, name, description, runners, runtimes)
           VALUES ($1, $2, $3, $4, $5::text[], $6::text[]) RETURNING ${columns}`,
    values: [tenantId, id, name, description ?? null, runners ?? null, runtimes ?? null],
  }
  const [rows] = await database.batch<[PoolRow[]]>(tenantId, [insert]).catch((error: unknown) => {
    throw sqlState(error) === '23505' ? poolNameTaken(name) : error
  })
  return toPool(rows[0]!)
}

/** Relies on the foreign key to refuse a pool that profiles name. A check beforehand would miss a profile that is written meanwhile. */
async function deletePool(database: Database, tenantId: string, id: string): Promise<void> {
  const remove = { text: 'DELETE FROM pools WHERE tenant_id = $1 AND id = $2 RETURNING id', values: [tenantId, id] }
  const [rows] = await database.batch<[object[]]>(tenantId, [remove]).catch(async (error: unknown) => {
    if (violatedConstraint(error) !== 'profiles_pool') throw error
    throw poolInUse(await profilesOf(database, tenantId, id))
  })
  if (rows.length === 0) throw noSuchPool()
}

async function profilesOf(database: Database, tenantId: string, id: string): Promise<string[]> {
  const rows = await database.unit<{ name: string }>(tenantId, {
    text: `SELECT p.name FROM profiles p JOIN pools o ON o.tenant_id = p.tenant_id AND o.name = p.pool
           WHERE o.tenant_id = $1 AND o.id = $2 ORDER BY p.name LIMIT $3`,
    values: [tenantId, id, namedProfiles],
  })
  return rows.map(({ name }) => name)
}
