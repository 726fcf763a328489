import type { Database } from '#contracts/database'
import type { OwnLimits } from '#contracts/limits'
import type { Listing } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import type { RetentionDays } from '#contracts/retention'
import type { ListQuery, Tenant } from './schema.ts'

interface Row {
  id: string
  name: string
  created_at: string
  deleted_at: string | null
  limits: OwnLimits | null
  retention: RetentionDays | null
  legal_hold: boolean
  erase_at: string | null
  erased_at: string | null
  erased_rows: Record<string, number> | null
}

const columns = 'id, name, created_at, deleted_at, limits, retention, legal_hold, erase_at, erased_at, erased_rows'

const toTenant = (row: Row): Tenant => ({
  id: row.id,
  name: row.name,
  limits: { ...row.limits },
  retention: { ...row.retention },
  legalHold: row.legal_hold,
  createdAt: row.created_at,
  deletedAt: row.deleted_at,
  ...(row.erase_at === null
    ? {}
    : { erasure: { dueAt: row.erase_at, erasedAt: row.erased_at, rows: { ...row.erased_rows } } }),
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

interface TenantChange {
  readonly name?: string | undefined
  readonly restore: boolean
  readonly legalHold?: boolean | undefined
  /** Days by kind; null gives the role file's back. */
  readonly retention?: Readonly<Record<string, number | null | undefined>> | undefined
}

/** Undefined when there is no such tenant, or a deleted one that is not to be brought back, or no longer can be. */
export async function updateTenant(
  database: Database,
  id: string,
  { name, restore, legalHold, retention = {} }: TenantChange,
): Promise<Tenant | undefined> {
  const entries = Object.entries(retention)
  const given = Object.fromEntries(entries.filter(([, days]) => typeof days === 'number'))
  const dropped = entries.filter(([, days]) => days === null).map(([kind]) => kind)
  const update = {
    // A deleted tenant's hold can be set and lifted: it is what keeps it from being erased.
    text: `UPDATE tenants SET name = coalesce($2, name), legal_hold = coalesce($4, legal_hold),
             retention = (coalesce(retention, '{}') || $5::jsonb) - $6::text[],
             deleted_at = CASE WHEN NOT $3 THEN deleted_at END, erase_at = CASE WHEN NOT $3 THEN erase_at END
           WHERE id = $1 AND (deleted_at IS NULL OR $7::boolean OR ($3::boolean AND (erase_at IS NULL OR erase_at > now())))
           RETURNING ${columns}`,
    values: [
      id,
      name ?? null,
      restore,
      legalHold ?? null,
      JSON.stringify(given),
      dropped,
      legalHold !== undefined && !restore,
    ],
  }
  const [[row]] = await database.systemBatch<[Row[]]>([update])
  return row && toTenant(row)
}

/**
 * Deletes a tenant that is not deleted yet, to be erased after so many days; never by default. With `erase` now, and also one that was
 * deleted before. Undefined when there is none. One under a legal hold is not touched by `erase`.
 */
export async function deleteTenant(
  database: Database,
  id: string,
  erase: boolean,
  eraseAfterDays: number | undefined,
): Promise<Tenant | undefined> {
  const update = {
    text: `UPDATE tenants SET deleted_at = coalesce(deleted_at, now()),
             erase_at = CASE WHEN $2 THEN least(erase_at, now()) ELSE now() + $3::int * interval '1 day' END
           WHERE id = $1 AND CASE WHEN $2::boolean THEN erased_at IS NULL AND NOT legal_hold ELSE deleted_at IS NULL END
           RETURNING ${columns}`,
    values: [id, erase, eraseAfterDays ?? null],
  }
  const [[row]] = await database.systemBatch<[Row[]]>([update])
  return row && toTenant(row)
}
