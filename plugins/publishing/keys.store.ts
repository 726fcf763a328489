import type { Database } from '#contracts/database'
import { type Page, pageValues } from '#contracts/paging'
import type { KeyMetadata } from './schema.ts'

interface KeyRow {
  id: string
  published_id: string
  label: string
  created_at: string
  last_used_at: string | null
  revoked_at: string | null
}

const toMetadata = (row: KeyRow): KeyMetadata => ({
  id: row.id,
  publishedId: row.published_id,
  label: row.label,
  createdAt: row.created_at,
  lastUsedAt: row.last_used_at,
  revokedAt: row.revoked_at,
})

export interface NewKey {
  readonly id: string
  readonly label: string
  readonly hash: Buffer
}

const active = `SELECT id FROM published_agents WHERE tenant_id = $1 AND active_profile = $2`

/** Undefined when the profile is not published. */
export async function insertKey(
  database: Database,
  tenantId: string,
  profile: string,
  key: NewKey,
): Promise<KeyMetadata | undefined> {
  const insert = {
    text: `INSERT INTO published_agent_keys (tenant_id, id, published_id, label, key_hash)
           SELECT $1, $3, agent.id, $4, $5::bytea FROM (${active}) agent
           RETURNING id, published_id, label, created_at, last_used_at, revoked_at`,
    values: [tenantId, profile, key.id, key.label, key.hash],
  }
  const [[row]] = await database.batch<[KeyRow[]]>(tenantId, [insert])
  return row && toMetadata(row)
}

/** Active and revoked keys, newest first. Undefined when the profile is not published. */
export async function listKeys(
  database: Database,
  tenantId: string,
  profile: string,
  page: Page,
): Promise<{ keys: KeyMetadata[]; total: number } | undefined> {
  const ofAgent = `tenant_id = $1 AND published_id = (${active})`
  const [[agent], rows, [count]] = await database.batch<[object[], KeyRow[], { total: number }[]]>(tenantId, [
    { text: active, values: [tenantId, profile] },
    {
      text: `SELECT id, published_id, label, created_at, last_used_at, revoked_at FROM published_agent_keys
             WHERE ${ofAgent} ORDER BY created_at DESC, id DESC LIMIT $3 OFFSET $4`,
      values: [tenantId, profile, ...pageValues(page)],
    },
    { text: `SELECT count(*)::int AS total FROM published_agent_keys WHERE ${ofAgent}`, values: [tenantId, profile] },
  ])
  return agent && { keys: rows.map(toMetadata), total: count!.total }
}

/** False for a key that belongs to no publication of this profile. Revoking twice keeps the first time. */
export async function revokeKey(database: Database, tenantId: string, profile: string, id: string): Promise<boolean> {
  const update = {
    text: `UPDATE published_agent_keys k SET revoked_at = COALESCE(k.revoked_at, now())
           FROM published_agents p
           WHERE k.tenant_id = $1 AND k.id = $3
             AND p.tenant_id = k.tenant_id AND p.id = k.published_id AND p.profile_name = $2
           RETURNING k.id`,
    values: [tenantId, profile, id],
  }
  const [rows] = await database.batch<[object[]]>(tenantId, [update])
  return rows.length > 0
}
