import { type Database, sqlState, violatedConstraint } from '#contracts/database'
import type { Listing, Page } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import { alreadyPublished, slugTaken, unknownProfile } from './errors.ts'

/** A row of `published_agents`, under its column names: the chat gateway reads the same table. */
export interface AgentRow {
  id: string
  profile_name: string
  slug: string
  visibility: string
  auth_mode: string
  allowed_origins: string[]
  rate_limit_rpm: number
  sync_max_duration_seconds: number
  expose_tool_events: boolean
  enabled: boolean
  webhook_url: string | null
}

const columns = `id, profile_name, slug, visibility, auth_mode, allowed_origins, rate_limit_rpm,
  sync_max_duration_seconds, expose_tool_events, enabled, webhook_url`

export type NewAgent = Omit<AgentRow, 'visibility' | 'auth_mode' | 'enabled'>

export async function insertAgent(database: Database, tenantId: string, agent: NewAgent): Promise<AgentRow> {
  const insert = {
    text: `INSERT INTO published_agents (tenant_id, id, profile_name, slug, allowed_origins, rate_limit_rpm,
             sync_max_duration_seconds, expose_tool_events, webhook_url) VALUES ($1, $2, $3, $4, $5::text[], $6, $7, $8, $9) RETURNING ${columns}`,
    values: [
      tenantId,
      agent.id,
      agent.profile_name,
      agent.slug,
      agent.allowed_origins,
      agent.rate_limit_rpm,
      agent.sync_max_duration_seconds,
      agent.expose_tool_events,
      agent.webhook_url,
    ],
  }
  const [rows] = await database.batch<[AgentRow[]]>(tenantId, [insert]).catch(async (error: unknown) => {
    // The profile went away since it was looked up.
    if (sqlState(error) === '23503') throw unknownProfile()
    if (sqlState(error) !== '23505') throw error
    // A profile that is published already violates the index of slugs first; it must not be told to choose another slug.
    throw violatedConstraint(error) === 'published_agents_active_slug' &&
      !(await findAgent(database, tenantId, agent.profile_name))
      ? slugTaken(agent.slug)
      : alreadyPublished(agent.profile_name)
  })
  return rows[0]!
}

export async function findAgent(database: Database, tenantId: string, profile: string): Promise<AgentRow | undefined> {
  const find = {
    name: 'publishing_find',
    text: `SELECT ${columns} FROM published_agents WHERE tenant_id = $1 AND active_profile = $2`,
    values: [tenantId, profile],
  }
  const [rows] = await database.batch<[AgentRow[]]>(tenantId, [find])
  return rows[0]
}

export function listAgents<T>(
  database: Database,
  tenantId: string,
  page: Page,
  toAgent: (row: AgentRow) => T,
): Promise<Listing<T>> {
  const list: ListSql = {
    columns,
    from: 'published_agents',
    where: 'tenant_id = $1 AND unpublished_at IS NULL',
    values: [tenantId],
    order: { profile_name: 'text' },
    // Of some 30 KB at most: an agent has up to a hundred origins.
    atOnce: 64,
  }
  return readList({ database, tenantId }, list, page, toAgent)
}

export interface AgentChange {
  readonly allowedOrigins?: string[]
  readonly rateLimitRpm?: number
  readonly syncMaxDurationSeconds?: number
  readonly exposeToolEvents?: boolean
  readonly enabled?: boolean
  /** Null takes it away. */
  readonly webhookUrl?: string | null
}

/** Fields left out keep their value. Undefined when the profile is not published. */
export async function updateAgent(
  database: Database,
  tenantId: string,
  profile: string,
  change: AgentChange,
): Promise<AgentRow | undefined> {
  const update = {
    text: `UPDATE published_agents SET
             allowed_origins = COALESCE($3::text[], allowed_origins),
             rate_limit_rpm = COALESCE($4, rate_limit_rpm),
             sync_max_duration_seconds = COALESCE($5, sync_max_duration_seconds),
             expose_tool_events = COALESCE($6, expose_tool_events),
             enabled = COALESCE($7, enabled),
             webhook_url = CASE WHEN $8::boolean THEN $9 ELSE webhook_url END
           WHERE tenant_id = $1 AND active_profile = $2 RETURNING ${columns}`,
    values: [
      tenantId,
      profile,
      change.allowedOrigins ?? null,
      change.rateLimitRpm ?? null,
      change.syncMaxDurationSeconds ?? null,
      change.exposeToolEvents ?? null,
      change.enabled ?? null,
      change.webhookUrl !== undefined,
      change.webhookUrl ?? null,
    ],
  }
  const [rows] = await database.batch<[AgentRow[]]>(tenantId, [update])
  return rows[0]
}

/** Keeps the row as history and frees slug and profile. False when the profile is not published. */
export async function unpublishAgent(database: Database, tenantId: string, profile: string): Promise<boolean> {
  const update = {
    text: `UPDATE published_agents SET unpublished_at = now() WHERE tenant_id = $1 AND active_profile = $2 RETURNING id`,
    values: [tenantId, profile],
  }
  const [rows] = await database.batch<[object[]]>(tenantId, [update])
  return rows.length > 0
}
