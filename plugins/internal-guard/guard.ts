import { Readable } from 'node:stream'
import type { FastifyRequest } from 'fastify'
import { accessOf, type App, forbidden, unauthorized } from '#kernel'
import { type Caller, type Guard, roleAtLeast, roles, type TenantRole } from '#contracts/auth'
import type { Signer } from '#contracts/signing'
import { readBody } from './body.ts'

/** What the gateway may do: everything an admin of the signed tenant may. */
const serviceRole: TenantRole = 'admin'

/** Verifies the signature of every request in a scope over the bytes received. Without a signer it refuses them all. */
export function createInternalGuard(signer: Signer | undefined): Guard {
  const callers = new WeakMap<FastifyRequest, Caller>()
  return {
    protect(app: App) {
      app.addHook('onRoute', ({ method, url, config }) => {
        if (neededRole(config) === undefined) {
          throw new Error(`route ${String(method)} ${url} is on the signed plane; give it access('service') or a role`)
        }
      })
      // The signature covers the body as sent, so it is read here, before any parser, and handed on whole.
      app.addHook('preParsing', async (request, _reply, payload) => {
        const needed = neededRole(request.routeOptions.config)
        if (!signer || needed === undefined) throw unauthorized()
        const body = await readBody(payload)
        const { method, url } = request.raw
        const { tenant } = await signer.verify(request.headers, { method: method ?? '', target: url ?? '', body })
        if (!roleAtLeast(serviceRole, needed)) throw forbidden()
        callers.set(request, { tenantId: tenant, role: serviceRole, keyId: 'service:chat-gateway' })
        return Readable.from(body.length > 0 ? [body] : [])
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
  return who === 'service' ? serviceRole : roles.find((role) => role === who)
}
