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

/** Lists tenants, ordered by id. */
export async function listTenants(
  database: Database,
  { q, includeDeleted = false, ...page }: ListQuery,
): Promise<Listing<Tenant>> {
  // The search uses position() instead of LIKE, so that no character of the search text acts as a wildcard.
  const where = `($1::text IS NULL OR position(lower($1) IN lower(id)) > 0 OR position(lower($1) IN lower(name)) > 0)
    AND ($2::boolean OR deleted_at IS NULL)`
  const values = [q ?? null, includeDeleted]
  const list: ListSql = { columns, from: 'tenants', where, values, order: { id: 'text' }, atOnce: 200 }
  return readList({ database, tenantId: undefined }, list, page, toTenant)
}

/** Creates a tenant. Undefined if the id was ever used, even by a tenant that is deleted now. */
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
  /** Retention in days for each kind of data. Null restores the value of the role file. */
  readonly retention?: Readonly<Record<string, number | null | undefined>> | undefined
}

/**
 * Changes a tenant. Undefined for an unknown tenant, and for a deleted one, unless the change sets its legal hold or restores it before it is
 * erased.
 */
export async function updateTenant(
  database: Database,
  id: string,
  { name, restore, legalHold, retention = {} }: TenantChange,
): Promise<Tenant | undefined> {
  const entries = Object.entries(retention)
  const given = Object.fromEntries(entries.filter(([, days]) => typeof days === 'number'))
  const dropped = entries.filter(([, days]) => days === null).map(([kind]) => kind)
  const update = {
    // The legal hold of a deleted tenant can still be changed, because the hold protects the tenant's data from being erased.
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
 * Deletes a tenant, and schedules its erasure after `eraseAfterDays` days; without that number it is never erased. `erase` erases at once, also for
 * a tenant that was deleted before, but not under a legal hold. Undefined if no tenant matches.
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
