import { isIP } from 'node:net'
import type { FastifyBaseLogger } from 'fastify'
import type { McpPermissions, TenantRole } from '#contracts/auth'
import type { Database, TenantTx } from '#contracts/database'
import type { Listing, Page } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import type { KeyLookup } from './authenticate.ts'
import type { KeyMetadata } from './keys.schema.ts'
import { columnsOf, type PermissionColumns, permissionsOf } from './mcp-permissions.ts'

interface Row {
  id: string
  label: string
  role: TenantRole
  created_at: string
  created_by: string
  replaces: string | null
  last_used_at: string | null
  expires_at: string | null
  allowed_addresses: string[] | null
  mcp_servers: string[] | null
  mcp_tool_permissions: Record<string, string[]> | null
  revoked_at: string | null
}

const columns = `id, label, role, created_at, created_by, replaces, last_used_at, expires_at,
  allowed_addresses::text[] AS allowed_addresses, mcp_servers, mcp_tool_permissions, revoked_at`

const toMetadata = (row: Row): KeyMetadata => ({
  id: row.id,
  label: row.label,
  role: row.role,
  createdAt: row.created_at,
  createdBy: row.created_by,
  replaces: row.replaces,
  lastUsedAt: row.last_used_at,
  expiresAt: row.expires_at,
  allowedAddresses: row.allowed_addresses,
  mcpServers: row.mcp_servers ?? [],
  mcpToolPermissions: row.mcp_tool_permissions ?? {},
  revokedAt: row.revoked_at,
})

export interface NewKey {
  readonly id: string
  readonly label: string
  readonly role: TenantRole
  readonly hash: Buffer
  readonly createdBy: string
  readonly expiresAt: Date | undefined
  /** The networks from which the key may be used, in canonical form. Undefined: any address. */
  readonly allowedAddresses: readonly string[] | undefined
  readonly mcp?: McpPermissions
}

/** SQL: a key that is neither revoked nor expired. */
const live = '(revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()))'

/** SQL: a key that this parameter issued. What a replaced key issued in its grace is its successor's. */
const issuedBy = (key: string): string =>
  `created_by IN (${key}, (SELECT heir.id FROM tenant_api_keys heir WHERE heir.tenant_id = $1 AND heir.replaces = ${key}))`

/**
 * Locks the keys of the tenant until the transaction ends. Otherwise a key could issue another key while it is being revoked, and the new key would
 * be missed. Call it first, because a statement sees only what was committed when it began.
 */
export async function lockKeys(tx: TenantTx): Promise<void> {
  const values = [`api-keys ${tx.tenantId}`]
  await tx.query({ text: 'SELECT pg_advisory_xact_lock(hashtextextended($1, 0))', values })
}

/** Stores a key. Undefined if the tenant does not exist or was deleted. */
export async function insertKey(tx: TenantTx, key: NewKey): Promise<KeyMetadata | undefined> {
  const { id, label, role, hash, createdBy, expiresAt, allowedAddresses, mcp } = key
  const { mcp_servers: servers, mcp_tool_permissions: tools } = columnsOf(mcp)
  const bounds = [allowedAddresses ?? null, servers, tools && JSON.stringify(tools)]
  const insert = {
    text: `INSERT INTO tenant_api_keys (tenant_id, id, label, role, key_hash, created_by, expires_at, allowed_addresses,
             mcp_servers, mcp_tool_permissions)
           SELECT id, $2, $3, $4, $5::bytea, $6, $7::timestamptz, $8::cidr[], $9::text[], $10::jsonb
           FROM tenants WHERE id = $1 AND deleted_at IS NULL
           RETURNING ${columns}`,
    values: [tx.tenantId, id, label, role, hash, createdBy, expiresAt ?? null, ...bounds],
  }
  const [row] = await tx.query<Row>(insert)
  return row && toMetadata(row)
}

/** A key that issues another one, which has at most the same rights. */
export interface IssuingKey {
  /** The key under which the new one is counted, and with which it is revoked: the one that replaced the issuing key, if any. */
  readonly id: string
  readonly expiresAt: string | null
  readonly allowedAddresses: readonly string[] | null
  /** Absent: the key may use all MCP servers and tools. */
  readonly mcp?: McpPermissions | undefined
}

/** The bounds of an issuing key; undefined if the key is no longer valid. */
export async function findIssuingKey(tx: TenantTx, id: string): Promise<IssuingKey | undefined> {
  const select = {
    text: `SELECT coalesce((SELECT id FROM tenant_api_keys WHERE tenant_id = $1 AND replaces = $2), id) AS id,
             expires_at AS "expiresAt", allowed_addresses::text[] AS "allowedAddresses", mcp_servers, mcp_tool_permissions
           FROM tenant_api_keys WHERE tenant_id = $1 AND id = $2 AND ${live}`,
    values: [tx.tenantId, id],
  }
  const [row] = await tx.query<IssuingKey & PermissionColumns>(select)
  if (!row) return undefined
  return { id: row.id, expiresAt: row.expiresAt, allowedAddresses: row.allowedAddresses, mcp: permissionsOf(row) }
}

/**
 * Counts the live keys that descend from the first member key of this key's line. Counting the keys of one key would limit nothing, because each
 * new key could issue as many again. A key stands for the one that it replaced, too, under which a process of an earlier release stores keys.
 */
export async function countIssued(tx: TenantTx, id: string): Promise<number> {
  const select = {
    text: `WITH RECURSIVE up AS (
             SELECT id, replaces, created_by FROM tenant_api_keys WHERE tenant_id = $1 AND id = $2
             UNION
             SELECT k.id, k.replaces, k.created_by FROM tenant_api_keys k
             JOIN up ON k.id = up.created_by OR k.replaces = up.created_by
             WHERE k.tenant_id = $1 AND k.role = 'member' AND ${live}
           ), first AS (
             SELECT id, replaces FROM up one
             WHERE NOT EXISTS (SELECT FROM up WHERE one.created_by IN (up.id, up.replaces))
           ), down AS (
             SELECT id, replaces FROM first
             UNION
             SELECT k.id, k.replaces FROM tenant_api_keys k JOIN down ON k.created_by = ANY (ARRAY[down.id, down.replaces])
             WHERE k.tenant_id = $1 AND ${live}
           )
           SELECT count(*)::integer AS issued FROM down WHERE id NOT IN (SELECT id FROM first)`,
    values: [tx.tenantId, id],
  }
  const [row] = await tx.query<{ issued: number }>(select)
  return row!.issued
}

/** The keys of a tenant, newest first. With `createdBy` only the keys that this key issued; undefined: all keys. */
export async function listKeys(
  database: Database,
  tenantId: string,
  createdBy: string | undefined,
  page: Page,
): Promise<Listing<KeyMetadata>> {
  const list: ListSql = {
    columns,
    shown: columns,
    // Permissions of a key are up to 16 KiB; most keys have none.
    bytes: `300 + coalesce(octet_length(mcp_servers::text), 0) + coalesce(octet_length(mcp_tool_permissions::text), 0)
      + coalesce(octet_length(allowed_addresses::text), 0)`,
    from: 'tenant_api_keys',
    where: `tenant_id = $1 AND ($2::text IS NULL OR ${issuedBy('$2')})`,
    values: [tenantId, createdBy ?? null],
    order: { created_at: 'timestamptz', id: 'text' },
    newestFirst: true,
    atOnce: 200,
  }
  return readList({ database, tenantId }, list, page, toMetadata)
}

/** The role of a key. Undefined if there is no such key, or if `createdBy` did not issue it. */
export async function roleOfKey(
  tx: TenantTx,
  id: string,
  createdBy: string | undefined,
): Promise<TenantRole | undefined> {
  const select = {
    text: `SELECT role FROM tenant_api_keys WHERE tenant_id = $1 AND id = $2 AND ($3::text IS NULL OR ${issuedBy('$3')})`,
    values: [tx.tenantId, id, createdBy ?? null],
  }
  const [row] = await tx.query<{ role: TenantRole }>(select)
  return row?.role
}

/** True if `top` issued the key, directly or through other keys. */
export async function isBelow(tx: TenantTx, id: string, top: string): Promise<boolean> {
  const select = {
    text: `WITH RECURSIVE up AS (
             SELECT created_by FROM tenant_api_keys WHERE tenant_id = $1 AND id = $2
             UNION
             SELECT k.created_by FROM tenant_api_keys k JOIN up ON k.id = up.created_by WHERE k.tenant_id = $1
           )
           SELECT FROM up WHERE ${issuedBy('$3')}`,
    values: [tx.tenantId, id, top],
  }
  return (await tx.query(select)).length > 0
}

/** SQL: the key $2, and the one that it replaced. */
const place = 'SELECT unnest(ARRAY[id, replaces]) FROM tenant_api_keys WHERE tenant_id = $1 AND id = $2'

interface Replacement extends Pick<NewKey, 'id' | 'hash'> {
  /** The new key expires with the old one, and at this time at the latest. */
  readonly latest: Date | undefined
  readonly graceSeconds: number
}

/**
 * Replaces a key by a new one, which takes over the keys that the old one issued. The old key works for `graceSeconds` more, but no longer than the
 * new one, and the key before it ends, so at most two keys of a line work. Undefined if the old key does not work or was replaced before.
 */
export async function replaceKey(tx: TenantTx, id: string, key: Replacement): Promise<KeyMetadata | undefined> {
  const latest = key.latest ?? null
  const insert = {
    text: `INSERT INTO tenant_api_keys
             (tenant_id, id, key_hash, replaces, label, role, created_by, expires_at, allowed_addresses,
              mcp_servers, mcp_tool_permissions)
           SELECT tenant_id, $3, $4::bytea, id, label, role, created_by, LEAST(expires_at, $5::timestamptz),
             allowed_addresses, mcp_servers, mcp_tool_permissions
           FROM tenant_api_keys WHERE tenant_id = $1 AND id = $2 AND ${live}
           ON CONFLICT (tenant_id, replaces) WHERE replaces IS NOT NULL DO NOTHING
           RETURNING ${columns}`,
    values: [tx.tenantId, id, key.id, key.hash, latest],
  }
  const [row] = await tx.query<Row>(insert)
  if (!row) return undefined
  const end = {
    text: `UPDATE tenant_api_keys SET expires_at = LEAST(expires_at, $4::timestamptz,
             now() + make_interval(secs => CASE WHEN id = $2 THEN $3 ELSE 0 END))
           WHERE tenant_id = $1 AND id IN (${place})`,
    values: [tx.tenantId, id, key.graceSeconds, latest],
  }
  await tx.query(end)
  const adopt = {
    text: `UPDATE tenant_api_keys SET created_by = $3 WHERE tenant_id = $1 AND created_by IN (${place})`,
    values: [tx.tenantId, id, key.id],
  }
  await tx.query(adopt)
  return toMetadata(row)
}

export interface Revoked {
  /** Those keys that were not revoked before. */
  readonly ids: readonly string[]
  /** The number of keys of agents that were not revoked before. */
  readonly agentKeys: number
}

/** Revokes a key with all keys that it issued, replaced, or was replaced by; with `agentKeys` also the keys of agents that any of these issued. */
export async function revokeLine(tx: TenantTx, id: string, agentKeys: boolean): Promise<Revoked> {
  const update = {
    text: `WITH RECURSIVE line AS (
             SELECT id, replaces FROM tenant_api_keys WHERE tenant_id = $1 AND id = $2
             UNION
             SELECT k.id, k.replaces FROM tenant_api_keys k
             JOIN line ON k.created_by = line.id OR k.replaces = line.id OR k.id = line.replaces
             WHERE k.tenant_id = $1
           ), revoked AS (
             UPDATE tenant_api_keys SET revoked_at = now()
             WHERE tenant_id = $1 AND id IN (SELECT id FROM line) AND revoked_at IS NULL RETURNING id
           ), of_agents AS (
             UPDATE published_agent_keys SET revoked_at = now()
             WHERE $3::boolean AND tenant_id = $1 AND created_by IN (SELECT id FROM line) AND revoked_at IS NULL RETURNING id
           )
           SELECT ARRAY(SELECT id FROM revoked) AS ids, (SELECT count(*)::integer FROM of_agents) AS "agentKeys"`,
    values: [tx.tenantId, id, agentKeys],
  }
  const [row] = await tx.query<Revoked>(update)
  return row!
}

interface FoundRow extends PermissionColumns {
  tenant_id: string
  id: string
  role: TenantRole
  here: boolean
  stale: boolean
}

interface StoredKeys extends KeyLookup {
  /** Resolves to those of the tenant's given keys that are still live. */
  alive(tenantId: string, ids: readonly string[]): Promise<string[]>
  /** Resolves when the pending writes of last-use times are done. */
  settled(): Promise<void>
}

/**
 * Finds keys in one round trip each time. Found keys are not cached, so that a revoked key fails on its next request. The tenant is still unknown,
 * so the policy on `app.auth_hash` shows exactly the row with this hash.
 */
export function createKeyLookup(database: Database, log: Pick<FastifyBaseLogger, 'warn'>): StoredKeys {
  const touching = new Map<string, Promise<void>>()
  return {
    async find(hash, address) {
      const lookup = {
        name: 'api_keys_authenticate',
        text: `SELECT k.tenant_id, k.id, k.role, k.mcp_servers, k.mcp_tool_permissions,
                      (k.allowed_addresses IS NULL OR coalesce($2::inet <<= ANY (k.allowed_addresses), false)) AS here,
                      (k.last_used_at IS NULL OR k.last_used_at < now() - interval '1 minute') AS stale
               FROM tenant_api_keys k JOIN tenants t ON t.id = k.tenant_id AND t.deleted_at IS NULL
               WHERE k.key_hash = $1 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())`,
        values: [hash, isIP(address) === 0 ? null : address],
      }
      const [[row]] = await database.systemBatch<[FoundRow[]]>([lookup], { 'app.auth_hash': hash.toString('hex') })
      if (!row) return undefined
      if (row.stale && !touching.has(row.id))
        touching.set(
          row.id,
          touch(row).finally(() => touching.delete(row.id)),
        )
      const mcp = permissionsOf(row)
      return { tenantId: row.tenant_id, role: row.role, keyId: row.id, here: row.here, ...(mcp ? { mcp } : {}) }
    },
    async alive(tenantId, ids) {
      const lookup = {
        name: 'api_keys_alive',
        text: `SELECT id FROM tenant_api_keys WHERE tenant_id = $1 AND id = ANY ($2::text[]) AND ${live}
               AND EXISTS (SELECT FROM tenants WHERE id = $1 AND deleted_at IS NULL)`,
        values: [tenantId, ids],
      }
      return (await database.unit<{ id: string }>(tenantId, lookup)).map((row) => row.id)
    },
    async settled() {
      await Promise.all(touching.values())
    },
  }

  /** Records the last use of a key, at most once a minute and without delaying the request. The time only helps people find unused keys. */
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
