import type { FastifyBaseLogger, FastifyReply, FastifyRequest } from 'fastify'
import { Counter, Histogram, type Registry } from 'prom-client'
import { access, type App, type AppError, judgeOrigins } from '#kernel'
import { elsewhere } from '#contracts/access-errors'
import { bearerForm, type Tokens } from '#contracts/auth'
import type { Database } from '#contracts/database'
import type { Kv } from '#contracts/kv'
import { isOverLimit } from '#contracts/limits'
import { type ClientAddress, type Held, isWithinAny, type Network, networkOf } from '#kit'
import { OpenExchanges, rateLimit, Sweep, type WrongKeys } from '#kit'
import { chatErrors, invalidKey } from './errors.ts'
import { AllowedOrigins, name, namesOf } from './origins.ts'
import { ChatParams } from './schema.ts'

/** A published agent, as seen by the holder of one of its keys. */
export interface Agent {
  readonly id: string
  readonly slug: string
  readonly profile: string
  readonly allowedOrigins: readonly string[]
  readonly rateLimitRpm: number
  readonly syncMaxDurationMs: number
  readonly exposeToolEvents: boolean
  /** Where the ends of its runs are reported. Null: nowhere. */
  readonly webhookUrl: string | null
  /** True when the agent is published and not switched off. */
  readonly active: boolean
  /** A token that changes with every change of the agent. */
  readonly revision: string
}

/** Whom a key names, within the tenant and agent of the URL. */
interface Holder {
  readonly tenantId: string
  readonly keyId: string
  /** From where the key may be used; undefined: from anywhere. */
  readonly networks: readonly Network[] | undefined
  readonly agent: Agent
  /** When the database said so, in milliseconds since the epoch. */
  readonly readAt: number
}

/** Who chats. */
export interface ChatCaller extends Holder {
  /** Admitted from memory; the statement that starts a run then checks that key and agent are unchanged. */
  readonly isRemembered: boolean
  /** Reads the caller from the database, and rejects as it would for a request that comes now. What was read `maxAgeMs` ago will do. */
  readonly renew: (maxAgeMs?: number) => Promise<ChatCaller>
}

const caller = 'agent-orc.chat-caller'
/** The caller of a request in a guarded scope; throws in any other. */
export const callerOf = (request: FastifyRequest): ChatCaller => request.getDecorator<ChatCaller>(caller)
export const tenantOf = (request: FastifyRequest): string => callerOf(request).tenantId

interface Shown {
  readonly tenantId: string
  readonly slug: string
  readonly hash: Buffer
}
const memoryKey = ({ tenantId, slug, hash }: Shown): string => `${tenantId}/${slug} ${hash.toString('base64')}`

interface KeyLookup extends Agent {
  readonly keyId: string
  readonly addresses: readonly string[] | null
  /** The last use of the key is not on record yet, or was over a minute ago. */
  readonly unrecorded: boolean
}

const fromLiveKeys = `FROM published_agent_keys key
         JOIN published_agents agent ON agent.tenant_id = key.tenant_id AND agent.id = key.published_id
         JOIN tenants ON tenants.id = key.tenant_id AND tenants.deleted_at IS NULL
         WHERE key.tenant_id = $1 AND key.revoked_at IS NULL AND (key.expires_at IS NULL OR key.expires_at > now())`
const byKey = {
  name: 'chat-key',
  text: `SELECT key.id AS "keyId", key.allowed_addresses::text[] AS addresses,
           key.last_used_at IS NULL OR key.last_used_at < now() - interval '1 minute' AS unrecorded,
           agent.id, agent.slug, agent.profile_name AS profile, agent.allowed_origins AS "allowedOrigins",
           agent.rate_limit_rpm AS "rateLimitRpm", agent.sync_max_duration_seconds * 1000 AS "syncMaxDurationMs",
           agent.expose_tool_events AS "exposeToolEvents", agent.webhook_url AS "webhookUrl",
           agent.enabled AND agent.unpublished_at IS NULL AS active, agent.xmin::text AS revision
         ${fromLiveKeys} AND key.key_hash = $2::bytea`,
}
const alive = {
  name: 'chat-keys-alive',
  text: `SELECT key.id ${fromLiveKeys} AND key.id = ANY ($2::text[]) AND agent.enabled AND agent.unpublished_at IS NULL`,
}
const used = {
  name: 'chat-keys-used',
  text: `UPDATE published_agent_keys SET last_used_at = now() WHERE tenant_id = $1 AND id = ANY($2)`,
}

/** How many callers are remembered, and for how long. A revoked key is still refused, by the statement that starts its run. */
const mostRemembered = 10_000
const rememberMs = 60_000
const recordEveryMs = 1_000
/** Whoever goes on at a limit of its tenant is looked up once in this time, not for each refusal. */
const freshMs = 1_000

const exposed =
  'x-request-id, x-conversation-id, x-public-run-id, retry-after, ratelimit, ratelimit-policy, idempotency-replayed'
const methods = 'GET, POST, DELETE, OPTIONS'
const preflight = {
  'access-control-allow-methods': methods,
  'access-control-allow-headers': 'authorization, content-type, last-event-id, idempotency-key',
  // Browsers repeat the preflight after ten minutes, so a withdrawn origin does not stay usable for long.
  'access-control-max-age': '600',
}

/** Lets a script of `origin` read this reply, including its headers with ids and limits. */
const allow = (reply: FastifyReply, origin: string): FastifyReply =>
  reply.header('access-control-allow-origin', origin).header('access-control-expose-headers', exposed)

/**
 * Makes an error readable for scripts of any origin. While the gateway stops, its database is away, or an address is throttled, the allowed origins
 * cannot be read. Without this a browser would report a network failure, and the script could not see `Retry-After`. The answer reveals nothing
 * else.
 */
export function readableWhenAway({ headers: { origin } }: FastifyRequest, reply: FastifyReply): void {
  if (![429, 503].includes(reply.statusCode) || origin === undefined || reply.hasHeader('access-control-allow-origin'))
    return
  allow(reply, origin)
}

interface AdmissionOptions {
  readonly database: Database
  readonly tokens: Tokens
  readonly log: FastifyBaseLogger
  readonly clientOf: ClientAddress
  readonly wrongKeys: WrongKeys
  readonly registry: Registry
}

/** Decides whether a request may chat, by its key, by the origin of the page that sent it, and by the limit of the key. */
export class ChatAdmission {
  readonly #database: Database
  readonly #tokens: Tokens
  readonly #log: FastifyBaseLogger
  readonly #clientOf: ClientAddress
  readonly #wrongKeys: WrongKeys
  readonly #origins: AllowedOrigins
  readonly #requests: Counter
  readonly #duration: Histogram
  readonly #open = new OpenExchanges((request) => request.getDecorator<ChatCaller | null>(caller))
  /** Keys whose use must be recorded, with their tenants. This happens in the background, so that it delays no request. */
  readonly #used = new Map<string, string>()
  readonly #remembered = new Map<string, Holder>()
  readonly #recording = new Sweep(
    recordEveryMs,
    () => this.#record(),
    (err) => this.#log.warn({ err }, 'the use of keys could not be recorded'),
  )

  constructor({ database, tokens, log, clientOf, wrongKeys, registry }: AdmissionOptions) {
    this.#database = database
    this.#tokens = tokens
    this.#log = log
    this.#clientOf = clientOf
    this.#wrongKeys = wrongKeys
    this.#origins = new AllowedOrigins(database, clientOf)
    this.#requests = new Counter({
      name: 'chat_gateway_requests_total',
      help: 'Public chat requests by route and response status.',
      labelNames: ['route', 'status'],
      registers: [registry],
    })
    this.#duration = new Histogram({
      name: 'chat_gateway_request_duration_seconds',
      help: 'Time from request to the end of the response; of a stream, to its last frame.',
      labelNames: ['route'],
      buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120],
      registers: [registry],
    })
  }

  /** Counts and times every request of a scope, by route pattern. */
  observe(app: App): void {
    app.addHook('onResponse', (request, reply, done) => {
      const route = request.routeOptions.url ?? 'unknown'
      this.#requests.inc({ route, status: reply.statusCode })
      this.#duration.observe({ route }, reply.elapsedTime / 1_000)
      done()
    })
  }

  /** What callers hold open in the guarded scopes. */
  held(): Iterable<Held> {
    return this.#open.held()
  }
  /** Those of a tenant's keys that may still chat. */
  async alive(tenantId: string, keyIds: readonly string[]): Promise<string[]> {
    const found = await this.#database.unit<{ id: string }>(tenantId, { ...alive, values: [tenantId, keyIds] })
    return found.map(({ id }) => id)
  }

  /**
   * Gives every request of the scope a caller. With `database` the caller is read for each request, so that a revoked key fails on the very next
   * one. With `memory` it may be remembered, because the statement that starts the run checks the key and its agent again.
   */
  guard(app: App, from: 'database' | 'memory'): void {
    this.#open.watch(app)
    app.decorateRequest(caller, null)
    app.addHook('onRequest', async (request, reply) => {
      const shown = this.#shown(request)
      const remembered = from === 'memory' && shown ? this.#recall(request, shown) : undefined
      if (remembered && request.headers.origin !== undefined) allow(reply, request.headers.origin)
      const renew = async (maxAgeMs = 0): Promise<ChatCaller> => {
        const known = shown && this.#remembered.get(memoryKey(shown))
        const isFresh = known && Date.now() - known.readAt < maxAgeMs
        return { ...(isFresh ? known : await this.#read(request, reply, shown)), isRemembered: false, renew }
      }
      request.setDecorator(caller, remembered ? { ...remembered, isRemembered: true, renew } : await renew())
    })
    if (from === 'database') return
    // Before a caller from memory gets an error, it is read from the database: if its key was revoked, it must be told that. A 401 tells it already.
    app.setErrorHandler(async (error: AppError, request) => {
      const known = request.getDecorator<ChatCaller | null>(caller)
      const isTold = error.status === 401 || error.status >= 500
      if (known?.isRemembered && !isTold) await known.renew(isOverLimit(error) ? freshMs : 0)
      throw error
    })
  }

  /** The tenant, slug and key hash of a request. Undefined when its token cannot be a key of this server. */
  #shown(request: FastifyRequest): Shown | undefined {
    const { tenant: tenantId, agent: slug } = namesOf(request)
    const token = bearerForm.exec(request.headers.authorization ?? '')?.[1]
    if (token === undefined || !name.test(tenantId) || !this.#tokens.wellFormed(token)) return undefined
    return { tenantId, slug, hash: this.#tokens.hash('ao:pub-key:v1', token) }
  }

  /**
   * The remembered caller. Undefined leaves the decision to the database: for an origin or an address that memory does not allow, and for a request
   * with an idempotency key, which may join a run and so reach no statement that checks the key.
   */
  #recall(request: FastifyRequest, shown: Shown): Holder | undefined {
    const { origin, 'idempotency-key': repeatable } = request.headers
    const known = repeatable === undefined ? this.#remembered.get(memoryKey(shown)) : undefined
    if (!known || known.readAt + rememberMs < Date.now()) return undefined
    if (!this.#isHere(request, known)) return undefined
    return origin === undefined || known.agent.allowedOrigins.includes(origin) ? known : undefined
  }

  #isHere(request: FastifyRequest, { networks }: Holder): boolean {
    return networks === undefined || isWithinAny(this.#clientOf(request), networks)
  }

  async #read(request: FastifyRequest, reply: FastifyReply, shown: Shown | undefined): Promise<Holder> {
    const { origin } = request.headers
    const key = shown && memoryKey(shown)
    // A request without a token does not count as an attempt to guess a key.
    const tried = bearerForm.test(request.headers.authorization ?? '')
    const look = (): Promise<Holder | undefined> => {
      this.#remembered.delete(key!)
      return this.#find(request, shown!)
    }
    const found = tried ? await this.#wrongKeys.find(this.#clientOf(request), key, look) : undefined
    if (!found) {
      // Without these headers a browser would report a network failure instead of the 401.
      if (origin !== undefined && (await this.#origins.admits(request, origin))) allow(reply, origin)
      throw invalidKey()
    }
    if (origin !== undefined) {
      // Compare exactly, as browsers serialize it: `null`, a longer host or a user part is another origin.
      if (!found.agent.allowedOrigins.includes(origin)) throw chatErrors.originNotAllowed()
      allow(reply, origin)
    }
    if (!this.#isHere(request, found)) throw elsewhere(this.#clientOf(request))
    if (!found.agent.active) throw chatErrors.notPublished()
    this.#wrongKeys.worked(key!)
    this.#remembered.set(key!, found)
    if (this.#remembered.size > mostRemembered) this.#remembered.delete(this.#remembered.keys().next().value!)
    return found
  }

  async #find(request: FastifyRequest, { tenantId, slug, hash }: Shown): Promise<Holder | undefined> {
    try {
      const [found] = await this.#database.unit<KeyLookup>(tenantId, { ...byKey, values: [tenantId, hash] })
      if (found?.slug !== slug) return undefined
      if (found.unrecorded) this.#used.set(found.keyId, tenantId)
      const networks = found.addresses?.map((name) => networkOf(name)!)
      return { tenantId, keyId: found.keyId, networks, agent: found, readAt: Date.now() }
    } catch (err) {
      this.#log.error({ err, request_id: request.id }, 'auth.lookup_failed')
      throw err
    }
  }

  /** Lets scripts of other origins read answers, and answers their preflights. A preflight carries no key, so the agent in the URL decides. */
  crossOrigin(app: App): void {
    judgeOrigins(app)
    app.addHook('onRequest', (_request, reply, done) => {
      void reply.header('vary', 'Origin')
      done()
    })
    app.addHook('onSend', (request, reply, _payload, done) => {
      readableWhenAway(request, reply)
      done()
    })
    for (const url of ['/v1/chat/:tenant/:agent', '/v1/chat/:tenant/:agent/*']) {
      app.options(url, { ...access('public'), schema: { hide: true, params: ChatParams } }, async (request, reply) => {
        const { origin } = request.headers
        if (origin === undefined) return reply.code(204).header('allow', methods).send()
        // An unknown agent answers like an agent that does not list the origin.
        if (!(await this.#origins.admits(request, origin))) throw chatErrors.originNotAllowed()
        return allow(reply, origin).code(204).headers(preflight).send()
      })
    }
  }

  start(): void {
    this.#recording.start()
  }
  async stop(): Promise<void> {
    await this.#recording.stop()
    await this.#recording.now()
  }
  async #record(): Promise<void> {
    const noted = Map.groupBy(this.#used, ([, tenantId]) => tenantId)
    this.#used.clear()
    for (const [tenantId, keys] of noted)
      await this.#database.batch(tenantId, [{ ...used, values: [tenantId, keys.map(([keyId]) => keyId)] }])
  }
}

/** The limit of each key, as a hook for routes of a guarded scope. */
export async function createKeyLimit(app: App, hit: Kv['hit']) {
  const limit = await rateLimit(app, {
    name: 'key',
    keyOf: (request) => `ao:chat-key:${tenantOf(request)}:${callerOf(request).keyId}`,
    max: (request) => callerOf(request).agent.rateLimitRpm,
    hit,
    refused: chatErrors.rateLimited,
  })
  return async (request: FastifyRequest, reply: FastifyReply): Promise<void> => {
    const { isRemembered, renew, agent } = callerOf(request)
    try {
      await limit(request, reply)
    } catch (error) {
      if (!isRemembered) throw error
      // The limit of the agent may be another one than the remembered one.
      const current = await renew()
      request.setDecorator(caller, current)
      if (current.agent.rateLimitRpm === agent.rateLimitRpm) throw error
      await limit(request, reply)
    }
  }
}
