import { createHash } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { Readable } from 'node:stream'
import type { TLSSocket } from 'node:tls'
import fp from 'fastify-plugin'
import { unauthorized } from '../contracts/http-errors.ts'
import { accessOf } from '../http/access.ts'
import { sayStanding } from '../http/requests.ts'
import type { App } from '../http/app.ts'
import { guardedIn } from '../plan.ts'
import type { Role } from '../plugin.ts'
import type { SignedParts, Signer, SigningFamily, SigningKey } from '#contracts/signing'
import type { Identity, Signature } from './peer-types.ts'
import { loopbackNames } from './web-guard.ts'

/**
 * Checks the head of a request, or of the opening of a link, for a proof of its sender. Rejects with an AppError. Resolves to the SHA-256 in hex
 * that the body must have, or to undefined when the body does not matter.
 */
export type Proof = (request: IncomingMessage) => Promise<string | undefined>

/** What callers of one listener must prove, whatever they request. */
class Proofs {
  /** True if a proof is required. Every request is refused until the required proof is known. */
  readonly demanded: boolean
  readonly #all: Proof[] = []

  constructor(demanded: boolean) {
    this.demanded = demanded
  }
  /** Adds a required proof. Only for a listener that the plugin has named in its `guards`. */
  demand(proof: Proof): void {
    if (!this.demanded) throw new Error('a plugin authenticates requests on a listener that its `guards` does not name')
    this.#all.push(proof)
  }
  /** Resolves to the digests that the body must have. Rejects with an AppError. */
  async check(request: IncomingMessage): Promise<readonly string[]> {
    if (this.demanded && this.#all.length === 0) throw unauthorized()
    const digests: string[] = []
    for (const proof of this.#all) {
      const digest = await proof(request)
      if (digest !== undefined) digests.push(digest)
    }
    return digests
  }
}

const key = Symbol('agent-orc.proofs')

/** The proofs that a listener requires; `app` may be any of its scopes. */
export const proofsOf = (app: App): Proofs => app.getDecorator<Proofs>(key)

/**
 * A client certificate that an authority of the listener has signed. The certificate itself is looked at as well: some versions of Node call a
 * resumed session authorized although no certificate was ever sent in it.
 */
const clientCertificate: Proof = async ({ socket }) => {
  const tls = socket as Partial<TLSSocket>
  if (tls.authorized === true && tls.getPeerX509Certificate?.() !== undefined) return undefined
  throw unauthorized({ message: 'Connect with a client certificate that this listener accepts.' })
}

/** Access values whose routes do not use the listener's proof: each request has a token of its own, which they check before they read its body. */
const withToken: ReadonlySet<string | undefined> = new Set(['worker', 'session', 'egress-key'])

/**
 * Requires the proofs of a listener from every request before anything is answered, including unknown paths and documents. `/healthz` is exempt:
 * probes cannot prove anything, and the route only says that the process lives.
 */
export const provenCallers = fp(
  async (app, { certificates, guarded }: { certificates: boolean; guarded: boolean }) => {
    const proofs = new Proofs(certificates || guarded)
    app.decorate(key, proofs)
    // Return early, because every request pays for each hook.
    if (!proofs.demanded) return
    if (certificates) proofs.demand(clientCertificate)
    const digests = new WeakMap<IncomingMessage, readonly string[]>()
    app.addHook('onRequest', async (request, reply) => {
      // A refusal is sent before the hook that normally sets these headers.
      sayStanding(request, reply)
      const { raw, routeOptions } = request
      const { url, config } = routeOptions
      if (url === '/healthz' || withToken.has(accessOf(config))) return
      const all = await proofs.check(raw)
      if (!hasBody(raw) && all.some((digest) => digest !== ofNothing)) throw unauthorized()
      digests.set(raw, all)
    })
    app.addHook('preParsing', (request, _reply, payload, done) => {
      const expected = digests.get(request.raw) ?? []
      const body = payload as Readable
      done(null, expected.length > 0 && hasBody(request.raw) ? Readable.from(checked(body, expected)) : body)
    })
  },
  { name: 'agent-orc-proofs', dependencies: ['agent-orc-errors'] },
)

const ofNothing = createHash('sha256').digest('hex')

const hasBody = ({ headers }: IncomingMessage): boolean =>
  headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0'

/** Passes the body on as it arrives, and fails at its end when the digest differs: nothing is handled before the body is complete. */
async function* checked(body: Readable, expected: readonly string[]): AsyncGenerator<Buffer> {
  const hash = createHash('sha256')
  // On a failure the stream stays open, since its socket must still carry the answer.
  for await (const chunk of body.iterator({ destroyOnReturn: false })) {
    hash.update(chunk as Buffer)
    yield chunk as Buffer
  }
  const found = hash.digest('hex')
  if (expected.some((digest) => digest !== found)) throw unauthorized()
}

type Listeners = Pick<Role, 'listeners' | 'plugins'>

/** True for a listener that is switched on and reachable from outside, that is, not only under this machine's own address and names. */
export function isReachable({ listeners }: Listeners, name: string): boolean {
  const { port, host = '', hosts } = listeners[name] ?? {}
  const local = loopbackNames.has(host) && hosts?.every((one) => loopbackNames.has(one)) === true
  return port !== undefined && !local
}

/** True for a reachable listener without authentication, according to the role file. */
export const isOpen = (role: Listeners, name: string): boolean =>
  isReachable(role, name) && !role.listeners[name]?.tls?.requestClientCert && !guardedIn(role.plugins).has(name)

/** True for an open listener beyond loopback that answers under any host name: a web page can be led to it. */
export function answersAnyName(role: Listeners, name: string): boolean {
  const { host = '', hosts } = role.listeners[name] ?? {}
  return hosts === undefined && !loopbackNames.has(host) && isOpen(role, name)
}

/** Whether a role signs its requests of a family, according to the role file. */
export const hasKey = ({ plugins }: Pick<Role, 'plugins'>, family: SigningFamily): boolean =>
  plugins.some(({ plugin, config }) => {
    const given = (config ?? {}) as { readonly family?: unknown; readonly current?: unknown }
    return plugin.name === 'signing' && given.family === family && given.current !== undefined
  })

/** Signs requests with a family of keys. Without a signer only the tenant's header is sent. `tenantHeader` is the header of the wire. */
export function signedBy(signer: Signer | undefined, tenantHeader: string): Identity {
  if (!signer) return { tenantHeader }
  // Begin with the key that the peer was last seen to know: during a rotation the peer may not have been restarted yet.
  let known: SigningKey = 'CURRENT'
  const keys: readonly SigningKey[] = signer.hasPreviousKey ? ['CURRENT', 'PREVIOUS'] : ['CURRENT']
  const signatures = keys.map((key): Signature => ({
    sign: (request: SignedParts) => signer.sign(request, key),
    taken() {
      known = key
    },
  }))
  return { tenantHeader, signatures: () => (known === 'CURRENT' ? signatures : signatures.toReversed()) }
}
