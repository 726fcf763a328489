import type { FastifyBaseLogger } from 'fastify'
import type { Caller, TenantRole } from '#contracts/auth'
import type { Database } from '#contracts/database'
import type { KeyLookup } from './authenticate.ts'

interface Row {
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
      const [[row]] = await database.systemBatch<[Row[]]>([lookup], { 'app.auth_hash': hash.toString('hex') })
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

  /** At most once a minute per key, and behind the request's back: the time is for people who look for unused keys. */
  async function touch({ tenant_id, id }: Row): Promise<void> {
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
