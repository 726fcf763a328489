import type { Database } from '#contracts/database'

/** A published agent as the holder of one of its keys meets it. */
export interface Agent {
  readonly id: string
  readonly slug: string
  readonly profile: string
  readonly allowedOrigins: readonly string[]
  readonly rateLimitRpm: number
  readonly syncMaxDurationMs: number
  readonly exposeToolEvents: boolean
  /** Where the ends of its runs are told. */
  readonly webhookUrl: string | null
  /** Published and not switched off. */
  readonly active: boolean
}

export interface KeyLookup extends Agent {
  readonly keyId: string
  /** Its last use is not on record yet, or was over a minute ago. */
  readonly unrecorded: boolean
}

const byKey = {
  name: 'chat-key',
  text: `SELECT key.id AS "keyId",
           key.last_used_at IS NULL OR key.last_used_at < now() - interval '1 minute' AS unrecorded,
           agent.id, agent.slug, agent.profile_name AS profile, agent.allowed_origins AS "allowedOrigins",
           agent.rate_limit_rpm AS "rateLimitRpm", agent.sync_max_duration_seconds * 1000 AS "syncMaxDurationMs",
           agent.expose_tool_events AS "exposeToolEvents", agent.webhook_url AS "webhookUrl",
           agent.enabled AND agent.unpublished_at IS NULL AS active
         FROM published_agent_keys key
         JOIN published_agents agent ON agent.tenant_id = key.tenant_id AND agent.id = key.published_id
         JOIN tenants ON tenants.id = key.tenant_id AND tenants.deleted_at IS NULL
         WHERE key.tenant_id = $1 AND key.key_hash = $2::bytea AND key.revoked_at IS NULL`,
}

/** The agent of a key that is not revoked. Read anew for every request: a revoked key fails on the very next one. */
export async function findByKey(database: Database, tenantId: string, hash: Buffer): Promise<KeyLookup | undefined> {
  const [row] = await database.unit<KeyLookup>(tenantId, { ...byKey, values: [tenantId, hash] })
  return row
}

const origins = {
  name: 'chat-origins',
  text: `SELECT allowed_origins FROM published_agents WHERE tenant_id = $1 AND slug = $2 AND unpublished_at IS NULL`,
}

/** For requests that carry no valid key; empty for an unknown agent. */
export async function allowedOrigins(database: Database, tenantId: string, slug: string): Promise<readonly string[]> {
  const [[row]] = await database.batch<[{ allowed_origins: string[] }[]]>(tenantId, [
    { ...origins, values: [tenantId, slug] },
  ])
  return row?.allowed_origins ?? []
}

const used = {
  name: 'chat-keys-used',
  text: `UPDATE published_agent_keys SET last_used_at = now() WHERE tenant_id = $1 AND id = ANY($2)`,
}

export const keysUsed = (database: Database, tenantId: string, keyIds: readonly string[]): Promise<unknown> =>
  database.batch(tenantId, [{ ...used, values: [tenantId, keyIds] }])
