import type { FastifyRequest } from 'fastify'
import { accessOf, type App, forbidden } from '#kernel'
import { type Caller, type Guard, roleAtLeast, roles, type TenantRole } from '#contracts/auth'
import type { Authenticate } from './authenticate.ts'

/** Authenticates every request of a scope before its body is read, and holds it to the role its route declares. */
export function createApiGuard(authenticate: Authenticate): Guard {
  const callers = new WeakMap<FastifyRequest, Caller>()
  return {
    protect(app: App) {
      app.addHook('onRoute', ({ method, url, config }) => {
        if (neededRole(config) === undefined) {
          throw new Error(
            `route ${String(method)} ${url} is in a protected scope; give it access() with one of ${roles.join(', ')}`,
          )
        }
      })
      app.addHook('onRequest', async (request) => {
        const caller = await authenticate(request.raw.rawHeaders)
        const needed = neededRole(request.routeOptions.config)
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

const neededRole = (config: unknown): TenantRole | undefined => roles.find((role) => role === accessOf(config))
