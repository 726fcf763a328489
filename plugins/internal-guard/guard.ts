import { Readable } from 'node:stream'
import type { FastifyRequest } from 'fastify'
import { accessOf, type App, forbidden, unauthorized } from '#kernel'
import { type Caller, type Guard, roleAtLeast, roles, type TenantRole } from '#contracts/auth'
import { signedHeaders, type Signer } from '#contracts/signing'
import type { Admission } from '#kit'
import { readBody } from './body.ts'

/** What the gateway may do: everything an admin of the signed tenant may. */
const serviceRole: TenantRole = 'admin'
const keyId = 'service:chat-gateway'
const nothing = new Uint8Array()

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
        callers.set(request, { tenantId: tenant, role: serviceRole, keyId })
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

/** The tenant of one exchange on a link, in the form that a signature has it. */
const tenantForm = /^[A-Za-z0-9_.-]{1,128}$/

/**
 * A link is signed for once, with a nonce of its own, and may then do what a signature may: each exchange says for which tenant
 * it is, as whoever has the key could sign for any.
 */
export const linkAdmission = (signer: Signer): Admission => ({
  async admit({ headers, method, url }) {
    await signer.verify(headers, { method: method ?? '', target: url ?? '', body: nothing })
  },
  callerOf(who, headers) {
    const needed = roleOf(who)
    const tenantId = headers[signedHeaders.tenant]
    if (needed === undefined || typeof tenantId !== 'string' || !tenantForm.test(tenantId)) throw unauthorized()
    if (!roleAtLeast(serviceRole, needed)) throw forbidden()
    return { tenantId, role: serviceRole, keyId }
  },
})

function neededRole(config: unknown): TenantRole | undefined {
  return roleOf(accessOf(config))
}

/** Undefined: not for the signed plane. */
const roleOf = (who: string | undefined): TenantRole | undefined =>
  who === 'service' ? serviceRole : roles.find((role) => role === who)
