import { createHmac, createSecretKey, randomBytes, timingSafeEqual } from 'node:crypto'
import type { FastifyRequest, RouteOptions } from 'fastify'
import { accessOf, type App, forbidden, isAppError, unauthorized } from '#kernel'
import type { TenantLimits } from '#contracts/limits'
import { type AuditEntry, type AuditTrail, declaredAction } from '#contracts/audit'
import {
  bearerForm,
  type Caller,
  type Guard,
  operator,
  roleAtLeast,
  roles,
  type TenantRole,
  type Tokens,
} from '#contracts/auth'

/** Finds the caller of a request by its Authorization header, or throws `unauthorized`. */
export type Authenticate = (authorization: string | undefined) => Promise<Caller>

/** Finds a live key by its hash; undefined when unknown, revoked, expired, or of a deleted tenant. */
export interface KeyLookup {
  find(hash: Buffer): Promise<Caller | undefined>
  /** False for a tenant that was deleted or never was: the bootstrap key, which has no row, is of no use to it either. */
  tenantLives(tenantId: string): Promise<boolean>
}

export interface AuthenticateOptions {
  readonly tokens: Tokens
  /** Undefined in a role without a database: then only the bootstrap key is a key. */
  readonly keys: KeyLookup | undefined
  readonly bootstrap: { readonly key: string; readonly tenantId: string } | undefined
}

export function createAuthenticate({ tokens, keys, bootstrap }: AuthenticateOptions): Authenticate {
  const isBootstrap = bootstrap && secretEqual(bootstrap.key)
  return async (authorization = '') => {
    const token = bearerForm.exec(authorization)?.[1]
    if (token === undefined) throw refused()
    if (bootstrap && isBootstrap?.(token)) {
      const { tenantId } = bootstrap
      if (keys && !(await keys.tenantLives(tenantId))) throw refused()
      return { tenantId, role: 'owner', keyId: 'bootstrap' }
    }
    if (!keys || !tokens.wellFormed(token)) throw refused()
    const caller = await keys.find(tokens.hash('ao:tenant-key:v1', token))
    if (!caller) throw refused()
    return caller
  }
}

const refused = () =>
  unauthorized({
    message: 'Send one valid API key of a tenant: `Authorization: Bearer ao_…`.',
    headers: { 'www-authenticate': 'Bearer' },
  })

/** Compares with a secret in constant time, whatever the lengths: both sides are hashed under a key nobody knows. */
function secretEqual(secret: string): (text: string) => boolean {
  const key = createSecretKey(randomBytes(32))
  const digest = (text: string): Buffer => createHmac('sha256', key).update(text).digest()
  const expected = digest(secret)
  return (text) => timingSafeEqual(digest(text), expected)
}

export interface GuardOptions {
  readonly authenticate: Authenticate
  /** The tenant whose admins operate the installation; undefined: nobody does. */
  readonly adminTenant: string | undefined
  /** Called when a scope is mounted, which is after every plugin was set up. */
  readonly trail: () => AuditTrail | undefined
  /** Undefined: nobody counts what a tenant asks. */
  readonly limits: Pick<TenantLimits, 'guard'> | undefined
}

/** Authenticates every request of a scope before its body is read, and holds it to the role its route declares. */
export function createApiGuard({ authenticate, adminTenant, trail, limits }: GuardOptions): Guard {
  const callers = new WeakMap<FastifyRequest, Caller>()

  /** The caller when it is an operator. For anybody else the routes of operators do not exist. */
  const operatorOf = async ({ headers }: FastifyRequest): Promise<Caller | undefined> => {
    if (adminTenant === undefined) return undefined
    try {
      const caller = await authenticate(headers.authorization)
      return caller.tenantId === adminTenant ? caller : undefined
    } catch (error) {
      if (isAppError(error) && error.status === 401) return undefined
      throw error
    }
  }
  return {
    protect(app: App) {
      const keeper = trail()
      const audit = keeper && auditScope(app, keeper)
      app.addHook('onRoute', ({ method, url, config }) => {
        if (neededRole(config) === undefined) {
          throw new Error(
            `route ${String(method)} ${url} is in a protected scope; give it access() with one of ${[...roles, operator].join(', ')}`,
          )
        }
      })
      app.addHook('onRequest', async (request, reply) => {
        const { config } = request.routeOptions
        const forOperators = accessOf(config) === operator
        const caller = forOperators ? await operatorOf(request) : await authenticate(request.headers.authorization)
        if (!caller) {
          // The client gets the very answer of a path that no route serves.
          reply.callNotFound()
          return reply
        }
        // The entry is written before the role is checked: a forbidden attempt is worth recording, too.
        await audit?.begin(request, caller)
        const needed = neededRole(config)
        if (needed === undefined || !roleAtLeast(caller.role, needed)) throw forbidden()
        callers.set(request, caller)
      })
      limits?.guard(app, {
        tenantOf: (request) => callers.get(request)!.tenantId,
        kindOf: ({ method }) => (method === 'GET' || method === 'HEAD' ? 'readsPerMinute' : 'writesPerMinute'),
      })
    },
    callerOf(request) {
      const caller = callers.get(request)
      if (!caller) throw new Error(`${request.routeOptions.url} asks who calls, but was never protected`)
      return caller
    },
  }
}

function neededRole(config: unknown): TenantRole | undefined {
  const who = accessOf(config)
  return who === operator ? 'admin' : roles.find((role) => role === who)
}

/** True for an administrative request: a write that members may not do, or a route that names its own audit action. */
const isAudited = (method: string, config: unknown): boolean =>
  !['GET', 'HEAD', 'OPTIONS'].includes(method) &&
  (accessOf(config) !== 'member' || declaredAction(config) !== undefined)

const verbs: Readonly<Record<string, string>> = { PUT: 'update', PATCH: 'update', DELETE: 'delete' }

/**
 * `POST /api/profiles` is `profiles.create`, `DELETE /api/profiles/:name/keys/:keyId` is `profiles.keys.delete`. A plural is a
 * collection; anything else that is posted to is the verb itself: `profiles.publish`.
 */
export function actionOf(method: string, url: string): string {
  const words = url.split('/').filter((word) => word !== '' && word !== 'api' && !/^[:*]/.test(word))
  const verb = method !== 'POST' ? verbs[method] : words.at(-1)?.endsWith('s') ? 'create' : undefined
  return (verb === undefined ? words : [...words, verb]).join('.')
}

/** Puts the administrative writes of one scope on record: before they are handled, and how they ended. */
function auditScope(app: App, trail: AuditTrail) {
  const open = new WeakMap<FastifyRequest, AuditEntry>()
  const created = new WeakMap<FastifyRequest, string>()
  // `/api/profiles/:name` says that what is created in `/api/profiles` is known by its `name`.
  const keys = new Map<string, string>()

  const outcome = async (request: FastifyRequest, reply: { readonly statusCode: number }): Promise<void> => {
    const entry = open.get(request)
    if (!entry) return
    open.delete(request)
    const target = created.get(request)
    await trail.end(entry, { status: reply.statusCode, ...(target === undefined ? {} : { target }) })
  }
  app.addHook('onRoute', (route: RouteOptions) => {
    const item = /^(.+)\/:(\w+)$/.exec(route.url)
    if (item) keys.set(item[1]!, item[2]!)
    // Only audited routes get the hooks, so the frequent requests of members cost nothing more.
    if (![route.method].flat().some((method) => isAudited(method, route.config))) return
    route.preSerialization = hooks(route.preSerialization, async (request: FastifyRequest, reply, payload: unknown) => {
      const id = reply.statusCode === 201 ? idOf(payload, keys.get(route.url)) : undefined
      if (id !== undefined) created.set(request, [targetOf(request), id].filter(Boolean).join('/'))
      return payload
    })
    // The end is recorded before the answer leaves, so that a client that has its answer also finds the entry.
    route.onSend = hooks(route.onSend, async (request: FastifyRequest, reply, payload: unknown) => {
      await outcome(request, reply)
      return payload
    })
  })
  return {
    /** Rejects when the write cannot be put on record: then nobody may do it. */
    async begin(request: FastifyRequest, caller: Caller): Promise<void> {
      const { method, ip, id } = request
      const { url, config } = request.routeOptions
      if (url === undefined || !isAudited(method, config)) return
      const target = targetOf(request)
      const entry = await trail.begin({
        tenantId: caller.tenantId,
        actor: { keyId: caller.keyId, role: caller.role },
        action: declaredAction(config) ?? actionOf(method, url),
        ...(target === '' ? {} : { target }),
        request: { method, path: request.url.split('?', 1)[0]!, id, remoteAddress: ip },
      })
      open.set(request, entry)
    },
  }
}

const hooks = <T>(before: T | T[] | undefined, own: T): T[] =>
  [...(before === undefined ? [] : [before].flat()), own] as T[]

const targetOf = ({ params }: FastifyRequest): string =>
  Object.values((params ?? {}) as Record<string, string>).join('/')

function idOf(payload: unknown, key: string | undefined): string | undefined {
  if (key === undefined) return undefined
  const fields = payload as Readonly<Record<string, unknown>> | null
  const id = fields?.[key] ?? fields?.['id']
  return typeof id === 'string' ? id : undefined
}
