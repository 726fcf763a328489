import type { Billing } from '#contracts/billing'
import type { Database } from '#contracts/database'
import { newId } from '#contracts/ids'
import type { Listing, Page } from '#contracts/paging'
import type { Profiles } from '#contracts/profiles'
import type { Webhooks } from '#contracts/webhooks'
import { badOrigin, publishingErrors, slugFixed, unknownProfile } from './errors.ts'
import { type AgentRow, findAgent, insertAgent, listAgents, unpublishAgent, updateAgent } from './store.ts'
import type { PatchBody, PublishBody, PublishedAgent } from './schema.ts'

const defaults = { rateLimitRpm: 60, syncMaxDurationSeconds: 60 }

interface PublishingOptions {
  readonly database: Database
  readonly profiles: Pick<Profiles, 'find'>
  /** Undefined: this installation has no webhooks. */
  readonly webhooks: Webhooks | undefined
  /** Undefined: publishing costs nothing. */
  readonly billing?: Billing | undefined
  /** Undefined: answers carry no `publicUrl`. */
  readonly publicHost: string | undefined
}

/** Publishing of profiles. Specification 2.1, 4.4. */
export function createPublishingService({ database, profiles, webhooks, billing, publicHost }: PublishingOptions) {
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

/** A browser sends exactly `scheme://host[:port]`, so anything else in the list could never match, or match too much. */
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
