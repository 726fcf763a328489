import { Readable } from 'node:stream'
import type { FastifyRequest } from 'fastify'
import { accessOf, type App, forbidden, invalidRequest, unauthorized } from '#kernel'
import { type Caller, type Guard, roleAtLeast, roles, type TenantRole, vfsService } from '#contracts/auth'
import { signedHeaders, type Signer } from '#contracts/signing'
import type { Admission } from '#kit'
import { authErrors } from './errors.ts'

/** Signing services have this role in the tenants that they sign for. */
const serviceRole: TenantRole = 'admin'

/** The services that sign with one family of keys. */
export interface Plane {
  readonly keyId: string
  /** The access names of routes. True: these services may use the route; false: they get 403. */
  readonly accesses: ReadonlyMap<string, boolean>
}
/** Gateways may do everything that an admin of the tenant in the signature may do. */
export const gateways: Plane = {
  keyId: 'service:chat-gateway',
  accesses: new Map([
    ['service', true],
    ...roles.map((role): [string, boolean] => [role, roleAtLeast(serviceRole, role)]),
  ]),
}
export const vfsServers: Plane = { keyId: 'service:vfs', accesses: new Map([[vfsService, true]]) }

const nothing = new Uint8Array()

/** Verifies the signature of every request in a scope, over the bytes as received. Without a signer it refuses all requests. */
export function createInternalGuard(signer: Signer | undefined, { keyId, accesses }: Plane): Guard {
  const callers = new WeakMap<FastifyRequest, Caller>()
  return {
    protect(app: App) {
      app.addHook('onRoute', ({ method, url, config }) => {
        if (!accesses.has(accessOf(config) ?? '')) {
          throw new Error(
            `route ${String(method)} ${url} is on the signed plane; give it access() with one of ${[...accesses.keys()].join(', ')}`,
          )
        }
      })
      // The signature covers the body as sent. So the body is read here, before any parser, and then passed on unchanged.
      app.addHook('preParsing', async (request, _reply, payload) => {
        const who = accessOf(request.routeOptions.config)
        if (!signer || who === undefined) throw unauthorized()
        const body = await readBody(payload)
        const { method, url } = request.raw
        const { tenant } = await signer.verify(request.headers, { method: method ?? '', target: url ?? '', body })
        check(who, accesses)
        callers.set(request, { tenantId: tenant, role: serviceRole, keyId })
        return Readable.from(body.length > 0 ? [body] : [])
      })
    },
    callerOf(request) {
      const caller = callers.get(request)
      if (!caller) throw new Error(`${request.routeOptions.url} reads the caller, but has no guard`)
      return caller
    },
  }
}

/** The form of a tenant's id in one exchange on a link, as in a signature. */
const tenantForm = /^[A-Za-z0-9_.-]{1,128}$/

/**
 * A link is signed only once, with its own nonce. After that, each exchange on it states its tenant unsigned. That is safe, because whoever has the
 * key could sign for any tenant.
 */
export const linkAdmission = (signer: Signer): Admission => ({
  async admit({ headers, method, url }) {
    await signer.verify(headers, { method: method ?? '', target: url ?? '', body: nothing })
  },
  callerOf(who, headers) {
    const tenantId = headers[signedHeaders.tenant]
    if (typeof tenantId !== 'string' || !tenantForm.test(tenantId)) throw unauthorized()
    check(who, gateways.accesses)
    return { tenantId, role: serviceRole, keyId: gateways.keyId }
  },
})

function check(who: string, accesses: Plane['accesses']): void {
  const granted = accesses.get(who)
  if (granted === undefined) throw unauthorized()
  if (!granted) throw forbidden()
}

/** The limit on a body in bytes, whatever a route's `bodyLimit` says. It is fixed, because unverified bytes are held in memory. */
const maxBytes = 1024 * 1024

/** The whole body. On a failure the stream stays open, since its socket must still carry the answer. */
function readBody(payload: Readable): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    let size = 0
    const finish = (settle: () => void): void => {
      payload.off('data', onData).off('end', onEnd).off('error', onCut).off('close', onCut)
      settle()
    }
    const onData = (chunk: Buffer): void => {
      size += chunk.length
      chunks.push(chunk)
      if (size <= maxBytes) return
      payload.pause()
      // The rest is not read, so the connection cannot be used again.
      finish(() => reject(authErrors.bodyTooLarge({ headers: { connection: 'close' } })))
    }
    const onEnd = (): void => finish(() => resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks, size)))
    const onCut = (): void => finish(() => reject(invalidRequest({ message: 'The request body ended early.' })))
    payload.on('data', onData).on('end', onEnd).on('error', onCut).on('close', onCut)
  })
}
