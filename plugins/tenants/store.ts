import type { Database } from '#contracts/database'
import type { OwnLimits } from '#contracts/limits'
import type { Listing } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import type { ListQuery, Tenant } from './schema.ts'

interface Row {
  id: string
  name: string
  created_at: string
  deleted_at: string | null
  limits: OwnLimits | null
}

const columns = 'id, name, created_at, deleted_at, limits'

const toTenant = (row: Row): Tenant => ({
  id: row.id,
  name: row.name,
  limits: { ...row.limits },
  createdAt: row.created_at,
  deletedAt: row.deleted_at,
})

export async function findTenant(database: Database, id: string): Promise<Tenant | undefined> {
  const select = { text: `SELECT ${columns} FROM tenants WHERE id = $1`, values: [id] }
  const [[row]] = await database.systemBatch<[Row[]]>([select])
  return row && toTenant(row)
}

/** By id. */
export async function listTenants(
  database: Database,
  { q, includeDeleted = false, ...page }: ListQuery,
): Promise<Listing<Tenant>> {
  // Not LIKE: nothing in the text is a pattern.
  const where = `($1::text IS NULL OR position(lower($1) IN lower(id)) > 0 OR position(lower($1) IN lower(name)) > 0)
    AND ($2::boolean OR deleted_at IS NULL)`
  const values = [q ?? null, includeDeleted]
  const list: ListSql = { columns, from: 'tenants', where, values, order: { id: 'text' }, atOnce: 200 }
  return readList({ database, tenantId: undefined }, list, page, toTenant)
}

/** Undefined when the id was ever used, also by a tenant that was deleted. */
export async function insertTenant(database: Database, id: string, name: string): Promise<Tenant | undefined> {
  const insert = {
    text: `INSERT INTO tenants (id, name) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING ${columns}`,
    values: [id, name],
  }
  const [[row]] = await database.systemBatch<[Row[]]>([insert])
  return row && toTenant(row)
}

/** Undefined when there is no such tenant, or a deleted one that is not to be brought back. */
export async function updateTenant(
  database: Database,
  id: string,
  name: string | undefined,
  restore: boolean,
): Promise<Tenant | undefined> {
  const update = {
    text: `UPDATE tenants SET name = coalesce($2, name), deleted_at = NULL
           WHERE id = $1 AND ($3::boolean OR deleted_at IS NULL) RETURNING ${columns}`,
    values: [id, name ?? null, restore],
  }
  const [[row]] = await database.systemBatch<[Row[]]>([update])
  return row && toTenant(row)
}

/** False when there is no such tenant any more. */
export async function deleteTenant(database: Database, id: string): Promise<boolean> {
  const update = {
    text: `UPDATE tenants SET deleted_at = now() WHERE id = $1 AND deleted_at IS NULL RETURNING id`,
    values: [id],
  }
  const [rows] = await database.systemBatch<[object[]]>([update])
  return rows.length > 0
}
