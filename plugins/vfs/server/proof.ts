import type { IncomingMessage } from 'node:http'
import type { FastifyRequest } from 'fastify'
import { type App, unauthorized } from '#kernel'
import type { Caller, Guard } from '#contracts/auth'
import type { Signer } from '#contracts/signing'
import { signedForm, streamDigest, vfsDigestHeader, vfsSessionHeader } from '#contracts/vfs'
import { type Proof, proofsOf } from '#kit'

/** The form of a tenant's id. It is restricted because the id becomes part of paths here. */
const tenantForm = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$/
const digestForm = /^[0-9a-f]{64}$/

/** The callers that sign with one family of keys, and the header of their signatures. */
interface Signers {
  readonly signer: Signer
  readonly header: string
  /** They may decide about a tenant as a whole. Runners may not: each works for all tenants, and must not lift a legal hold. */
  readonly areConductors: boolean
}

interface Signed extends Pick<Signers, 'areConductors'> {
  readonly tenantId: string
}

/** Authenticates the callers of one listener. The signature of a request states the tenant. */
export class Callers implements Guard {
  readonly #signers: readonly Signers[]
  readonly #signed = new WeakMap<IncomingMessage, Signed>()
  /** For routes of conductors: everybody else is unauthorized. */
  readonly conductors: Guard = {
    protect: (app) => this.protect(app),
    callerOf: (request) => (this.#signed.get(request.raw)?.areConductors ? this.callerOf(request) : refuse()),
  }

  constructor(signers: readonly Signers[]) {
    this.#signers = signers
  }

  /** Verifies the signature over the head. Returns the SHA-256 that the body must have; undefined without a body and for a stream. */
  readonly #proof: Proof = async (request) => {
    const { headers, method = '', url: target = '' } = request
    const session = headers[vfsSessionHeader] ?? ''
    const digest = headers[vfsDigestHeader] ?? ''
    if (typeof session !== 'string' || typeof digest !== 'string') throw unauthorized()
    const hasBody = headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0'
    // A body without a signed digest could have been replaced by anybody.
    if (hasBody && digest === '') throw unauthorized()
    const by = this.#signers.find(({ header }) => headers[header] !== undefined)
    if (!by) throw unauthorized()
    const { tenant } = await by.signer.verify(headers, { method, target, body: signedForm(session, digest) })
    if (!tenantForm.test(tenant)) throw unauthorized()
    this.#signed.set(request, { tenantId: tenant, areConductors: by.areConductors })
    return digestForm.test(digest) ? digest : digest === '' || digest === streamDigest ? undefined : refuse()
  }

  /** Requires a signature for every request of the listener, also for unknown paths. */
  protect(app: App): void {
    proofsOf(app).demand(this.#proof)
  }
  callerOf({ raw }: FastifyRequest): Caller {
    const signed = this.#signed.get(raw)
    if (!signed) throw new Error(`${raw.url} reads the caller, but the request was not authenticated`)
    return { tenantId: signed.tenantId, role: 'admin', keyId: 'service:vfs' }
  }
}

const refuse = (): never => {
  throw unauthorized()
}
