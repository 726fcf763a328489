import type { FastifyRequest, RouteOptions } from 'fastify'
import { accessOf, type App, forbidden, isAppError } from '#kernel'
import { type Held, OpenExchanges } from '#kit'
import {
  type AuditedWrite,
  type AuditEntry,
  type AuditOutcome,
  type AuditTrail,
  declaredAction,
  isProof,
} from '#contracts/audit'
import type { RequestLimit, TenantLimits } from '#contracts/limits'
import { type Caller, type Guard, operator, roleAtLeast, roles, type TenantRole } from '#contracts/auth'
import type { Authenticate, TenantLately } from './authenticate.ts'

interface GuardOptions {
  readonly authenticate: Authenticate
  readonly tenantLately: TenantLately
  /** The tenant whose admins operate the installation; undefined: there are no operators. */
  readonly adminTenant: string | undefined
  /** Returns the audit trail. It is called when a scope is mounted, because only then every plugin is set up. */
  readonly trail: () => AuditTrail | undefined
  /** Undefined in a role without limits: requests of tenants are not counted. */
  readonly limits: Pick<TenantLimits, 'guard' | 'isSpent'> | undefined
  /** False: no key ends while the process lives, so nobody asks what is held. */
  readonly keysEnd: boolean
}

export interface ApiGuard extends Guard {
  /** What callers hold open in the scopes that it protects. */
  held(): Iterable<Held>
  /**
   * Records further targets of an audited request once it is done, with the same action, and `detail` with the outcome of the request itself. Never
   * rejects.
   */
  record(request: FastifyRequest, targets: readonly string[], detail?: AuditOutcome['detail']): Promise<void>
}

/**
 * The caller if it is an operator. Undefined for all other callers, so that they cannot tell that operators' routes exist. A key that lately worked
 * for another tenant is not looked up: no limit counts these requests, and they cost no round trip.
 */
async function operatorBy(
  { authenticate, tenantLately, adminTenant }: Pick<GuardOptions, 'authenticate' | 'tenantLately' | 'adminTenant'>,
  request: FastifyRequest,
): Promise<Caller | undefined> {
  if (adminTenant === undefined || (tenantLately(request) ?? adminTenant) !== adminTenant) return undefined
  try {
    const caller = await authenticate(request)
    return caller.tenantId === adminTenant ? caller : undefined
  } catch (error) {
    if (isAppError(error) && error.status < 500) return undefined
    throw error
  }
}

/** The limit for which requests count that do more than read. */
const writes: RequestLimit = 'writesPerMinute'

/** Authenticates every request of a scope before its body is read, and requires the role that its route declares. */
export function createApiGuard(options: GuardOptions): ApiGuard {
  const { authenticate, tenantLately, trail, limits, keysEnd } = options
  const callers = new WeakMap<FastifyRequest, Caller>()
  /** The tenants of requests that their limits will refuse. The keys of these requests are not looked up. */
  const spent = new WeakMap<FastifyRequest, string>()
  const told: Told = new WeakMap()
  const open = new OpenExchanges((request) => callers.get(request), 'handlers')

  /** The tenant of a request that its limit refuses in any case. A client that goes on at its limit then costs no round trips. */
  const spentTenantOf = (request: FastifyRequest): string | undefined => {
    const tenantId = limits && tenantLately(request)
    return tenantId !== undefined && limits?.isSpent(tenantId, request.method, writes) ? tenantId : undefined
  }
  return {
    protect(app: App) {
      if (keysEnd) open.watch(app)
      const keeper = trail()
      const audit = keeper && auditScope(app, keeper, told)
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
        const spentTenant = forOperators ? undefined : spentTenantOf(request)
        if (spentTenant !== undefined) return void spent.set(request, spentTenant)
        const caller = forOperators ? await operatorBy(options, request) : await authenticate(request)
        if (!caller) {
          // The client gets the same answer as for a path that no route serves.
          reply.callNotFound()
          return reply
        }
        callers.set(request, caller)
      })
      limits?.guard(app, { tenantOf: (request) => callers.get(request)?.tenantId ?? spent.get(request)!, writes })
      // Behind the limits, which bound how many entries a tenant can cause.
      app.addHook('onRequest', async (request) => {
        // The limit had room again in the meantime.
        const caller = callers.get(request) ?? (await authenticate(request))
        callers.set(request, caller)
        // The entry is written before the role is checked: a forbidden attempt is worth recording, too.
        await audit?.begin(request, caller)
        const needed = neededRole(request.routeOptions.config)
        if (needed === undefined || !roleAtLeast(caller.role, needed)) throw forbidden()
      })
    },
    callerOf(request) {
      const caller = callers.get(request)
      if (!caller) throw new Error(`${request.routeOptions.url} reads the caller, but has no guard`)
      return caller
    },
    async record(request, targets, detail) {
      if (detail) told.set(request, { ...told.get(request), detail })
      const keeper = trail()
      if (!keeper) return
      const write = writeOf(request, callers.get(request)!)
      const recorded = async (target: string): Promise<void> =>
        keeper.end(await keeper.begin({ ...write, target }), { status: 204 })
      // Units of work share round trips, so all targets are recorded at once. The request is already done, so the client gets its answer even if a
      // record fails.
      await Promise.all(targets.map(recorded)).catch((err: unknown) =>
        request.log.warn({ err, targets }, 'further effects of an audited request could not be recorded'),
      )
    },
    held: () => open.held(),
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
 * The audit action of a route. `POST /api/profiles` is `profiles.create`, `DELETE /api/profiles/:name/keys/:keyId` is `profiles.keys.delete`. A
 * POST to a plural creates an item of that collection; any other POST ends with its own verb: `profiles.publish`.
 */
export function actionOf(method: string, url: string): string {
  const words = url.split('/').filter((word) => word !== '' && word !== 'api' && !/^[:*]/.test(word))
  const verb = method !== 'POST' ? verbs[method] : words.at(-1)?.endsWith('s') ? 'create' : undefined
  return (verb === undefined ? words : [...words, verb]).join('.')
}

/** What the outcome of a request has besides its status. */
type Told = WeakMap<FastifyRequest, Omit<AuditOutcome, 'status'>>

/** Records the administrative writes of one scope: an entry before a write is handled, and its outcome afterwards. */
function auditScope(app: App, trail: AuditTrail, told: Told) {
  const open = new WeakMap<FastifyRequest, AuditEntry>()
  // The field that identifies an item of a collection. A route `/api/profiles/:name` shows that an item created in `/api/profiles` is identified by
  // its `name`.
  const keys = new Map<string, string>()

  const outcome = async (request: FastifyRequest, reply: { readonly statusCode: number }): Promise<void> => {
    const entry = open.get(request)
    if (!entry) return
    open.delete(request)
    await trail.end(entry, { status: reply.statusCode, ...told.get(request) })
  }
  app.addHook('onRoute', (route: RouteOptions) => {
    const item = /^(.+)\/:(\w+)$/.exec(route.url)
    if (item) keys.set(item[1]!, item[2]!)
    // Only audited routes get the hooks, so the frequent requests of members cost nothing more.
    if (![route.method].flat().some((method) => isAudited(method, route.config))) return
    route.preSerialization = hooks(route.preSerialization, async (request: FastifyRequest, reply, payload: unknown) => {
      const id = reply.statusCode === 201 ? idOf(payload, keys.get(route.url)) : undefined
      if (id !== undefined)
        told.set(request, { ...told.get(request), target: [targetOf(request), id].filter(Boolean).join('/') })
      if (reply.statusCode === 200 && isProof(request.routeOptions.config))
        told.set(request, { detail: { ...(payload as object) } })
      return payload
    })
    // The outcome is recorded before the answer is sent, so that a client with an answer also finds the entry.
    route.onSend = hooks(route.onSend, async (request: FastifyRequest, reply, payload: unknown) => {
      await outcome(request, reply)
      return payload
    })
  })
  return {
    /** Records the beginning of a write. Rejects if that fails, because a write that is not recorded must not be done. */
    async begin(request: FastifyRequest, caller: Caller): Promise<void> {
      const { url, config } = request.routeOptions
      if (url === undefined || !isAudited(request.method, config)) return
      const target = targetOf(request)
      const entry = await trail.begin({ ...writeOf(request, caller), ...(target === '' ? {} : { target }) })
      open.set(request, entry)
    },
  }
}

/** The audit entry of a request, without its target. */
function writeOf(request: FastifyRequest, { tenantId, keyId, role }: Caller): AuditedWrite {
  const { method, ip, id, routeOptions } = request
  return {
    tenantId,
    actor: { keyId, role },
    action: declaredAction(routeOptions.config) ?? actionOf(method, routeOptions.url!),
    request: { method, path: request.url.split('?', 1)[0]!, id, remoteAddress: ip },
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
