import type { Billing } from '#contracts/billing'
import { type Database, sqlState, violatedConstraint } from '#contracts/database'
import { newId } from '#contracts/ids'
import type { TenantLimits } from '#contracts/limits'
import type { Listing, Page } from '#contracts/paging'
import type { Profiles } from '#contracts/profiles'
import type { Webhooks } from '#contracts/webhooks'
import { type ListSql, readList } from '#kit/lists'
import { alreadyPublished, badOrigin, publishingErrors, slugFixed, slugTaken, unknownProfile } from './errors.ts'
import type { PatchBody, PublishBody, PublishedAgent } from './schema.ts'

const defaults = { rateLimitRpm: 60, syncMaxDurationSeconds: 60 }

interface PublishingOptions {
  readonly database: Database
  readonly profiles: Pick<Profiles, 'find'>
  /** Undefined: this installation has no webhooks. */
  readonly webhooks: Webhooks | undefined
  /** Undefined: publishing is free of charge. */
  readonly billing?: Billing | undefined
  readonly limits?: Pick<TenantLimits, 'stored'> | undefined
  /** Undefined: answers carry no `publicUrl`. */
  readonly publicHost: string | undefined
}

/** Publishing of profiles. Specification 2.1, 4.4. */
export function createPublishingService(options: PublishingOptions) {
  const { database, profiles, webhooks, billing, limits, publicHost } = options
  const checkWebhook = (tenantId: string, url: string | null | undefined): void => {
    if (typeof url !== 'string') return
    if (!webhooks) throw publishingErrors.webhooksUnavailable()
    webhooks.check(tenantId, url)
  }
  const toAgent = (tenantId: string, row: AgentRow): PublishedAgent => ({
    id: row.id,
    tenantId,
    profileName: row.profile_name,
    slug: row.slug,
    visibility: row.visibility,
    authMode: row.auth_mode,
    allowedOrigins: row.allowed_origins,
    rateLimitRpm: row.rate_limit_rpm,
    syncMaxDurationSeconds: row.sync_max_duration_seconds,
    exposeToolEvents: row.expose_tool_events,
    enabled: row.enabled,
    ...(row.webhook_url === null ? {} : { webhookUrl: row.webhook_url }),
    ...(publicHost === undefined ? {} : { publicUrl: `https://${publicHost}/v1/chat/${tenantId}/${row.slug}` }),
  })

  return {
    async publish(tenantId: string, profile: string, body: PublishBody): Promise<PublishedAgent> {
      const { allowedOrigins = [] } = body
      checkOrigins(allowedOrigins)
      checkWebhook(tenantId, body.webhookUrl)
      if (!(await profiles.find(tenantId, profile))) throw unknownProfile()
      limits?.stored.admit(tenantId)
      await billing?.gate(tenantId)
      const row = await insertAgent(database, tenantId, {
        id: newId('pub'),
        profile_name: profile,
        slug: body.slug ?? slugOf(profile),
        allowed_origins: allowedOrigins,
        rate_limit_rpm: body.rateLimitRpm ?? defaults.rateLimitRpm,
        sync_max_duration_seconds: body.syncMaxDurationSeconds ?? defaults.syncMaxDurationSeconds,
        expose_tool_events: body.exposeToolEvents ?? false,
        webhook_url: body.webhookUrl ?? null,
      })
      // The rows of earlier publications are kept for their conversations.
      limits?.stored.add(tenantId, JSON.stringify(row).length)
      return toAgent(tenantId, row)
    },
    list: (tenantId: string, page: Page): Promise<Listing<PublishedAgent>> =>
      listAgents(database, tenantId, page, (row) => toAgent(tenantId, row)),
    async find(tenantId: string, profile: string): Promise<PublishedAgent> {
      return toAgent(tenantId, found(await findAgent(database, tenantId, profile)))
    },
    async change(tenantId: string, profile: string, body: PatchBody): Promise<PublishedAgent> {
      if ('slug' in body) throw slugFixed()
      checkOrigins(body.allowedOrigins ?? [])
      checkWebhook(tenantId, body.webhookUrl)
      return toAgent(tenantId, found(await updateAgent(database, tenantId, profile, body)))
    },
    async unpublish(tenantId: string, profile: string): Promise<void> {
      if (!(await unpublishAgent(database, tenantId, profile))) throw publishingErrors.notPublished()
    },
  }
}
export type PublishingService = ReturnType<typeof createPublishingService>

export function found<T>(value: T | undefined): T {
  if (value === undefined) throw publishingErrors.notPublished()
  return value
}

/** `My.Agent_2` becomes `my-agent-2`. A profile's name begins with a letter or digit, so a slug is never empty. */
const slugOf = (profile: string): string =>
  profile
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .slice(0, 63)
    .replace(/-$/, '')

const shape = /^[a-z][a-z0-9+.-]*:\/\/[^/?#@\\\s]+$/i

/** Refuses any entry that is not exactly `scheme://host[:port]`. Browsers send this form, so another entry could never match, or match too much. */
function checkOrigins(origins: readonly string[]): void {
  for (const [i, origin] of origins.entries()) {
    const exact = shape.test(origin) ? serialized(origin) : undefined
    if (exact === undefined) throw badOrigin(i, 'must be scheme://host[:port], without path, user or wildcard')
    if (exact !== origin) throw badOrigin(i, `must be written as browsers send it: ${exact}`)
  }
}

/** The origin as browsers serialise it: lower case, no default port. Undefined when it has no host. */
function serialized(origin: string): string | undefined {
  if (!URL.canParse(origin)) return undefined
  const { protocol, host } = new URL(origin)
  // `new URL` accepts a wildcard as a host, but no origin would ever match it.
  if (host === '' || host.includes('*')) return undefined
  return `${protocol}//${host}`
}

/** A row of `published_agents`, under its column names: the chat gateway reads the same table. */
interface AgentRow {
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

type NewAgent = Omit<AgentRow, 'visibility' | 'auth_mode' | 'enabled'>

async function insertAgent(database: Database, tenantId: string, agent: NewAgent): Promise<AgentRow> {
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
    // The profile was deleted since it was read.
    if (sqlState(error) === '23503') throw unknownProfile()
    if (sqlState(error) !== '23505') throw error
    // A profile that is already published violates the index of slugs first. Its owner must not be told to choose another slug.
    throw violatedConstraint(error) === 'published_agents_active_slug' &&
      !(await findAgent(database, tenantId, agent.profile_name))
      ? slugTaken(agent.slug)
      : alreadyPublished(agent.profile_name)
  })
  return rows[0]!
}

async function findAgent(database: Database, tenantId: string, profile: string): Promise<AgentRow | undefined> {
  const find = {
    name: 'publishing_find',
    text: `SELECT ${columns} FROM published_agents WHERE tenant_id = $1 AND active_profile = $2`,
    values: [tenantId, profile],
  }
  const [rows] = await database.batch<[AgentRow[]]>(tenantId, [find])
  return rows[0]
}

function listAgents<T>(
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
    // Agents per portion of a list. Each has at most some 30 KB, because an agent has up to a hundred origins.
    atOnce: 64,
  }
  return readList({ database, tenantId }, list, page, toAgent)
}

interface AgentChange {
  readonly allowedOrigins?: string[]
  readonly rateLimitRpm?: number
  readonly syncMaxDurationSeconds?: number
  readonly exposeToolEvents?: boolean
  readonly enabled?: boolean
  /** Null removes the URL. */
  readonly webhookUrl?: string | null
}

/** Fields left out keep their value. Undefined when the profile is not published. */
async function updateAgent(
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
async function unpublishAgent(database: Database, tenantId: string, profile: string): Promise<boolean> {
  const update = {
    text: `UPDATE published_agents SET unpublished_at = now() WHERE tenant_id = $1 AND active_profile = $2 RETURNING id`,
    values: [tenantId, profile],
  }
  const [rows] = await database.batch<[object[]]>(tenantId, [update])
  return rows.length > 0
}
