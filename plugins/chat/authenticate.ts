import { access, type App } from '#kernel'
import type { FastifyBaseLogger, FastifyReply, FastifyRequest } from 'fastify'
import { bearerForm, type Tokens } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { invalidKey, notPublished, originNotAllowed } from './errors.ts'
import { ChatParams } from './schema.ts'

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

interface KeyLookup extends Agent {
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
async function findByKey(database: Database, tenantId: string, hash: Buffer): Promise<KeyLookup | undefined> {
  const [row] = await database.unit<KeyLookup>(tenantId, { ...byKey, values: [tenantId, hash] })
  return row
}

const origins = {
  name: 'chat-origins',
  text: `SELECT allowed_origins FROM published_agents WHERE tenant_id = $1 AND slug = $2 AND unpublished_at IS NULL`,
}

/** For requests that carry no valid key; empty for an unknown agent. */
async function allowedOrigins(database: Database, tenantId: string, slug: string): Promise<readonly string[]> {
  const [[row]] = await database.batch<[{ allowed_origins: string[] }[]]>(tenantId, [
    { ...origins, values: [tenantId, slug] },
  ])
  return row?.allowed_origins ?? []
}

/** Who chats: found by the key, within the tenant and agent that the URL names. */
export interface Caller {
  readonly tenantId: string
  readonly keyId: string
  readonly agent: Agent
}

// Nothing else can name a tenant or a slug, and PostgreSQL refuses some texts outright.
const name = /^[A-Za-z0-9_.-]{1,128}$/

export function createAuthenticator(database: Database, tokens: Tokens, keyUse: KeyUse, log: FastifyBaseLogger) {
  const callers = new WeakMap<FastifyRequest, Caller>()

  const find = async (request: FastifyRequest): Promise<Caller | undefined> => {
    const { tenant: tenantId, agent: slug } = request.params as { tenant: string; agent: string }
    const token = bearerForm.exec(request.headers.authorization ?? '')?.[1]
    if (token === undefined || !name.test(tenantId) || !tokens.wellFormed(token)) return undefined
    const hash = tokens.hash('ao:pub-key:v1', token)
    const found = await findByKey(database, tenantId, hash).catch((err: unknown) => {
      log.error({ err, request_id: request.id }, 'auth.lookup_failed')
      throw err
    })
    if (found?.slug !== slug) return undefined
    if (found.unrecorded) keyUse.note(tenantId, found.keyId)
    return { tenantId, keyId: found.keyId, agent: found }
  }

  /** True when the agent of the URL exists and lists `origin`: for preflights, which carry no key. */
  const admits = async (request: FastifyRequest, origin: string): Promise<boolean> => {
    const { tenant: tenantId, agent: slug } = request.params as { tenant: string; agent: string }
    if (!name.test(tenantId) || !name.test(slug)) return false
    return (await allowedOrigins(database, tenantId, slug)).includes(origin)
  }

  return {
    admits,
    async authenticate(request: FastifyRequest, reply: FastifyReply): Promise<void> {
      const { origin } = request.headers
      const caller = await find(request)
      if (!caller) {
        // Without these headers a browser would show its user a network failure instead of the 401.
        if (origin !== undefined && (await admits(request, origin))) allow(reply, origin)
        throw invalidKey()
      }
      if (origin !== undefined) {
        // Exact, as browsers serialise it: `null`, a longer host or a user part is another origin.
        if (!caller.agent.allowedOrigins.includes(origin)) throw originNotAllowed()
        allow(reply, origin)
      }
      if (!caller.agent.active) throw notPublished()
      callers.set(request, caller)
    },
    /** The caller of a request that passed `authenticate`; throws when the route was never protected. */
    callerOf(request: FastifyRequest): Caller {
      const caller = callers.get(request)
      if (!caller) throw new Error(`route ${request.routeOptions.url ?? request.url} is not behind authenticate`)
      return caller
    },
  }
}

const used = {
  name: 'chat-keys-used',
  text: `UPDATE published_agent_keys SET last_used_at = now() WHERE tenant_id = $1 AND id = ANY($2)`,
}

const recordEveryMs = 1_000

/** When keys were last used: it may reach the database a second late, and so costs no request anything. */
export function createKeyUse(database: Database, log: FastifyBaseLogger) {
  const keys = new Map<string, Set<string>>()
  let timer: NodeJS.Timeout | undefined
  let recording: Promise<void> | undefined
  const record = async (): Promise<void> => {
    const noted = [...keys]
    keys.clear()
    for (const [tenantId, ids] of noted) await database.batch(tenantId, [{ ...used, values: [tenantId, [...ids]] }])
  }
  const flush = (): Promise<void> =>
    (recording ??= record()
      .catch((err: unknown) => log.warn({ err }, 'the use of keys could not be recorded'))
      .finally(() => {
        recording = undefined
      }))
  return {
    note(tenantId: string, keyId: string): void {
      const ids = keys.get(tenantId)
      if (ids) ids.add(keyId)
      else keys.set(tenantId, new Set([keyId]))
    },
    start(): void {
      timer = setInterval(() => void flush(), recordEveryMs).unref()
    },
    async stop(): Promise<void> {
      clearInterval(timer)
      await recording
      await flush()
    },
  }
}

type KeyUse = ReturnType<typeof createKeyUse>

const exposed =
  'x-request-id, x-conversation-id, x-public-run-id, retry-after, ratelimit, ratelimit-policy, idempotency-replayed'
const methods = 'GET, POST, DELETE, OPTIONS'
const headers = 'authorization, content-type, last-event-id, idempotency-key'
/** Browsers ask again after ten minutes, so a withdrawn origin does not stay usable for long. Seconds. */
const maxAge = '600'

/** Lets a script of `origin` read this reply, its ids and its limits. */
const allow = (reply: FastifyReply, origin: string): FastifyReply =>
  reply.header('access-control-allow-origin', origin).header('access-control-expose-headers', exposed)

/**
 * While the gateway stops, or its database is away, nobody can look which origins are allowed. The answer says nothing but that,
 * so any script may read it: otherwise a browser shows its user a network failure, and the script cannot see `Retry-After`.
 */
export function readableWhenAway({ headers: { origin } }: FastifyRequest, reply: FastifyReply): void {
  if (reply.statusCode !== 503 || origin === undefined || reply.hasHeader('access-control-allow-origin')) return
  allow(reply, origin)
}

/** Answers CORS preflights. They carry no key, so the agent of the URL decides. */
export function preflightRoutes(app: App, admits: (request: FastifyRequest, origin: string) => Promise<boolean>): void {
  for (const url of ['/v1/chat/:tenant/:agent', '/v1/chat/:tenant/:agent/*']) {
    app.options(url, { ...access('public'), schema: { hide: true, params: ChatParams } }, async (request, reply) => {
      const { origin } = request.headers
      if (origin === undefined) return reply.code(204).header('allow', methods).send()
      // An unknown agent answers like one that does not list the origin.
      if (!(await admits(request, origin))) throw originNotAllowed()
      return allow(reply, origin)
        .code(204)
        .header('access-control-allow-methods', methods)
        .header('access-control-allow-headers', headers)
        .header('access-control-max-age', maxAge)
        .send()
    })
  }
}
