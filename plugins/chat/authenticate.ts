import { bearerOf } from '#kernel'
import type { FastifyBaseLogger, FastifyReply, FastifyRequest } from 'fastify'
import type { Tokens } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { type Agent, allowedOrigins, findByKey, keysUsed } from './agents.store.ts'
import { invalidKey, notPublished, originNotAllowed } from './errors.ts'
import { allow } from './origin.ts'

/** Who chats: found by the key, within the tenant and agent that the URL names. */
export interface Caller {
  readonly tenantId: string
  readonly keyId: string
  readonly agent: Agent
}

export interface Authenticator {
  authenticate(request: FastifyRequest, reply: FastifyReply): Promise<void>
  /** The caller of a request that passed `authenticate`; throws when the route was never protected. */
  callerOf(request: FastifyRequest): Caller
  /** True when the agent of the URL exists and lists `origin`: for preflights, which carry no key. */
  admits(request: FastifyRequest, origin: string): Promise<boolean>
}

// Nothing else can name a tenant or a slug, and PostgreSQL refuses some texts outright.
const name = /^[A-Za-z0-9_.-]{1,128}$/

interface Dependencies {
  readonly database: Database
  readonly tokens: Tokens
  readonly log: FastifyBaseLogger
  readonly keyUse: KeyUse
}

export function createAuthenticator({ database, tokens, log, keyUse }: Dependencies): Authenticator {
  const callers = new WeakMap<FastifyRequest, Caller>()

  const find = async (request: FastifyRequest): Promise<Caller | undefined> => {
    const { tenant: tenantId, agent: slug } = request.params as { tenant: string; agent: string }
    const token = bearerOf(request.raw.rawHeaders)
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

  const admits = async (request: FastifyRequest, origin: string): Promise<boolean> => {
    const { tenant: tenantId, agent: slug } = request.params as { tenant: string; agent: string }
    if (!name.test(tenantId) || !name.test(slug)) return false
    return (await allowedOrigins(database, tenantId, slug)).includes(origin)
  }

  return {
    admits,
    async authenticate(request, reply) {
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
    callerOf(request) {
      const caller = callers.get(request)
      if (!caller) throw new Error(`route ${request.routeOptions.url ?? request.url} is not behind authenticate`)
      return caller
    },
  }
}

/** When keys were last used: it may reach the database a second late, and so costs no request anything. */
export interface KeyUse {
  note(tenantId: string, keyId: string): void
  start(): void
  stop(): Promise<void>
}

const recordEveryMs = 1_000

export function createKeyUse(database: Database, log: FastifyBaseLogger): KeyUse {
  const keys = new Map<string, Set<string>>()
  let timer: NodeJS.Timeout | undefined
  let recording: Promise<void> | undefined
  const record = async (): Promise<void> => {
    const used = [...keys]
    keys.clear()
    for (const [tenantId, ids] of used) await keysUsed(database, tenantId, [...ids])
  }
  const flush = (): Promise<void> =>
    (recording ??= record()
      .catch((err: unknown) => log.warn({ err }, 'the use of keys could not be recorded'))
      .finally(() => {
        recording = undefined
      }))
  return {
    note(tenantId, keyId) {
      const used = keys.get(tenantId)
      if (used) used.add(keyId)
      else keys.set(tenantId, new Set([keyId]))
    },
    start() {
      timer = setInterval(() => void flush(), recordEveryMs).unref()
    },
    async stop() {
      clearInterval(timer)
      await recording
      await flush()
    },
  }
}
