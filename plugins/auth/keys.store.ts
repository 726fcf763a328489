import type { FastifyBaseLogger } from 'fastify'
import type { Caller, TenantRole } from '#contracts/auth'
import type { Database } from '#contracts/database'
import type { Listing, Page } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import type { KeyLookup } from './api-guard.ts'
import type { KeyMetadata } from './keys.schema.ts'

interface Row {
  id: string
  label: string
  role: TenantRole
  created_at: string
  created_by: string
  last_used_at: string | null
  expires_at: string | null
  revoked_at: string | null
}

const columns = 'id, label, role, created_at, created_by, last_used_at, expires_at, revoked_at'

const toMetadata = (row: Row): KeyMetadata => ({
  id: row.id,
  label: row.label,
  role: row.role,
  createdAt: row.created_at,
  createdBy: row.created_by,
  lastUsedAt: row.last_used_at,
  expiresAt: row.expires_at,
  revokedAt: row.revoked_at,
})

export interface NewKey {
  readonly id: string
  readonly label: string
  readonly role: TenantRole
  readonly hash: Buffer
  readonly createdBy: string
  readonly expiresAt: Date | undefined
}

/** Undefined when the tenant does not exist or was deleted. */
export async function insertKey(database: Database, tenantId: string, key: NewKey): Promise<KeyMetadata | undefined> {
  const insert = {
    text: `INSERT INTO tenant_api_keys (tenant_id, id, label, role, key_hash, created_by, expires_at)
           SELECT id, $2, $3, $4, $5::bytea, $6, $7::timestamptz FROM tenants WHERE id = $1 AND deleted_at IS NULL
           RETURNING ${columns}`,
    values: [tenantId, key.id, key.label, key.role, key.hash, key.createdBy, key.expiresAt ?? null],
  }
  const [[row]] = await database.batch<[Row[]]>(tenantId, [insert])
  return row && toMetadata(row)
}

/** Newest first. `createdBy` undefined shows every key of the tenant. */
export async function listKeys(
  database: Database,
  tenantId: string,
  createdBy: string | undefined,
  page: Page,
): Promise<Listing<KeyMetadata>> {
  const list: ListSql = {
    columns,
    from: 'tenant_api_keys',
    where: 'tenant_id = $1 AND ($2::text IS NULL OR created_by = $2)',
    values: [tenantId, createdBy ?? null],
    order: { created_at: 'timestamptz', id: 'text' },
    newestFirst: true,
    atOnce: 200,
  }
  return readList({ database, tenantId }, list, page, toMetadata)
}

/** False when `createdBy` can see no such key. Revoking twice keeps the first time. */
export async function revokeKey(
  database: Database,
  tenantId: string,
  createdBy: string | undefined,
  id: string,
): Promise<boolean> {
  const update = {
    text: `UPDATE tenant_api_keys SET revoked_at = COALESCE(revoked_at, now())
           WHERE tenant_id = $1 AND ($2::text IS NULL OR created_by = $2) AND id = $3 RETURNING id`,
    values: [tenantId, createdBy ?? null, id],
  }
  const [rows] = await database.batch<[object[]]>(tenantId, [update])
  return rows.length > 0
}

interface FoundRow {
  tenant_id: string
  id: string
  role: TenantRole
  stale: boolean
}

export interface StoredKeys extends KeyLookup {
  /** Resolves when the writes of last use under way are done. */
  settled(): Promise<void>
}

/**
 * Looks keys up in one round trip, each time: nothing positive is cached, so a revoked key fails on its next request.
 * The tenant is not known yet; the policy on `app.auth_hash` shows exactly the row with this hash.
 */
export function createKeyLookup(database: Database, log: Pick<FastifyBaseLogger, 'warn'>): StoredKeys {
  const touching = new Map<string, Promise<void>>()
  return {
    async find(hash): Promise<Caller | undefined> {
      const lookup = {
        name: 'api_keys_authenticate',
        text: `SELECT k.tenant_id, k.id, k.role,
                      (k.last_used_at IS NULL OR k.last_used_at < now() - interval '1 minute') AS stale
               FROM tenant_api_keys k JOIN tenants t ON t.id = k.tenant_id AND t.deleted_at IS NULL
               WHERE k.key_hash = $1 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())`,
        values: [hash],
      }
      const [[row]] = await database.systemBatch<[FoundRow[]]>([lookup], { 'app.auth_hash': hash.toString('hex') })
      if (!row) return undefined
      if (row.stale && !touching.has(row.id))
        touching.set(
          row.id,
          touch(row).finally(() => touching.delete(row.id)),
        )
      return { tenantId: row.tenant_id, role: row.role, keyId: row.id }
    },
    async tenantLives(tenantId) {
      const lookup = {
        name: 'api_keys_tenant',
        text: 'SELECT id FROM tenants WHERE id = $1 AND deleted_at IS NULL',
        values: [tenantId],
      }
      const [rows] = await database.systemBatch<[object[]]>([lookup])
      return rows.length > 0
    },
    async settled() {
      await Promise.all(touching.values())
    },
  }

  /** Records the last use, at most once a minute per key and without delaying the request: it only helps people find unused keys. */
  async function touch({ tenant_id, id }: FoundRow): Promise<void> {
    const update = {
      name: 'api_keys_touch',
      text: `UPDATE tenant_api_keys SET last_used_at = now() WHERE tenant_id = $1 AND id = $2
             AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')`,
      values: [tenant_id, id],
    }
    await database
      .batch(tenant_id, [update])
      .catch((err: unknown) => log.warn({ err, key: id }, 'last use not recorded'))
  }
}
