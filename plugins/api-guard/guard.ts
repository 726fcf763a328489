import type { FastifyRequest } from 'fastify'
import { accessOf, type App, forbidden, isAppError } from '#kernel'
import type { AuditTrail } from '#contracts/audit'
import { type Caller, type Guard, operator, roleAtLeast, roles, type TenantRole } from '#contracts/auth'
import { auditScope } from './audited.ts'
import type { Authenticate } from './authenticate.ts'

export interface GuardOptions {
  readonly authenticate: Authenticate
  /** The tenant whose admins operate the installation; undefined: nobody does. */
  readonly adminTenant: string | undefined
  /** Asked when a scope is mounted, after every plugin was set up. */
  readonly trail: () => AuditTrail | undefined
}

/** Authenticates every request of a scope before its body is read, and holds it to the role its route declares. */
export function createApiGuard({ authenticate, adminTenant, trail }: GuardOptions): Guard {
  const callers = new WeakMap<FastifyRequest, Caller>()

  /** Undefined for everybody to whom routes of operators do not exist. */
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
          // The answer of a path that no route serves, by the handler that gives it.
          reply.callNotFound()
          return reply
        }
        // Before the role is looked at: an attempt to do what one may not is worth knowing.
        await audit?.begin(request, caller)
        const needed = neededRole(config)
        if (needed === undefined || !roleAtLeast(caller.role, needed)) throw forbidden()
        callers.set(request, caller)
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
