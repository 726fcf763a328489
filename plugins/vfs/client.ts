import { createHash } from 'node:crypto'
import { type Signer, type SigningKey, signedHeaders } from '#contracts/signing'
import {
  signedForm,
  streamDigest,
  type VfsClient,
  vfsDigestHeader,
  type VfsEntry,
  vfsErrors,
  vfsSessionHeader,
  type VfsView,
} from '#contracts/vfs'
import { vfsWire } from '#contracts/wire/vfs'
import { createPeers, type Identity, type Peer, type PeersOptions, type SignedRequest, SingleFlight } from '#kit'

const connectMs = 2_000
/** Timeout in milliseconds of a whole answer, and of the headers of a file. */
const answerMs = 30_000
/** Timeout in milliseconds between two chunks of a file. */
const silentMs = 60_000

interface ClientOptions extends Pick<PeersOptions, 'tls'> {
  /** The URL of the server. Read at the first request, because in a single process the port is known only then. */
  readonly baseUrl: string | (() => string)
  readonly signer: Signer
}

interface SigningClient extends VfsClient {
  /**
   * The key to sign with for the server. While keys are rotated the server may not know the current one yet, or the previous one any more, and what is
   * streamed cannot be sent a second time: so a small request finds it out first. What a tenant sends meanwhile waits for the same answer; an older one is
   * not used, because the server may have been replaced since.
   */
  knownKey(tenantId: string): Promise<SigningKey>
}

/** What a request about a tenant's files is sent with. */
const of = ({ tenantId: tenant, sessionId }: VfsView, signal: AbortSignal | undefined) => ({
  tenant,
  signal,
  headers: sessionId === undefined ? {} : { [vfsSessionHeader]: sessionId },
})

/** The URL of the VirtualFS listener of this process. AppError 502 when it is not open, or not yet. */
export function ownUrl(urlOf: (listener: string) => string): string {
  try {
    return urlOf('vfs')
  } catch (cause) {
    throw vfsErrors.vfsUpstreamUnavailable({ cause })
  }
}

/** The client of the VirtualFS server at a URL. Specification 4.18. */
export function createVfsClient({ baseUrl, signer, tls }: ClientOptions): SigningClient {
  const identity = identityOf(signer)
  const peers = createPeers({
    connectMs,
    silentMs,
    timeoutMs: answerMs,
    links: false,
    tls,
    identity,
    faults,
  })
  let peer: Peer | undefined
  const server = (): Peer => (peer ??= peers.at(typeof baseUrl === 'string' ? baseUrl : baseUrl()))
  const asking = new SingleFlight<unknown>()
  const knownKey: SigningClient['knownKey'] = async (tenant) => {
    // Whatever else is wrong, the request that follows finds it as well, and says it.
    if (signer.hasPreviousKey)
      await asking.run(tenant, () =>
        server()
          .ask(vfsWire.usage, { tenant })
          .catch(() => {}),
      )
    return identity.known
  }

  return {
    knownKey,
    open: (tenant, id, lease, { signal } = {}) =>
      server().ask(vfsWire.openSession, { tenant, params: { id }, body: lease, signal }),
    async close(tenant, id, { signal } = {}) {
      await server().ask(vfsWire.closeSession, { tenant, params: { id }, signal })
    },
    session: (tenant, id, { signal } = {}) => server().ask(vfsWire.session, { tenant, params: { id }, signal }),
    mounts: async (view, { signal } = {}) => found(await server().ask(vfsWire.mounts, of(view, signal))),
    list: async (view, mount, path, { signal, ...query } = {}) =>
      server().ask(vfsWire.list, { ...of(view, signal), params: { mount, '*': path }, query }),
    async read(view, mount, path, { signal, range } = {}) {
      const { headers, ...asked } = of(view, signal)
      const ranged = range ? { range: `bytes=${range.from}-${range.to ?? ''}` } : {}
      const answer = await server().ask(vfsWire.read, {
        ...asked,
        headers: { ...headers, ...ranged },
        params: { mount, '*': path },
      })
      return answer && { entry: entryOf(path, answer), body: answer.body }
    },
    write: async (view, mount, path, { body, contentType, ifMatch, ifNoneMatch }, { signal } = {}) => {
      if (!(body instanceof Uint8Array)) await knownKey(view.tenantId)
      const { headers, ...asked } = of(view, signal)
      const condition = {
        ...(ifMatch === undefined ? {} : { 'if-match': ifMatch === '*' ? '*' : `"${ifMatch}"` }),
        ...(ifNoneMatch === undefined ? {} : { 'if-none-match': ifNoneMatch }),
      }
      return server().ask(vfsWire.write, {
        ...asked,
        headers: { ...headers, ...condition, 'content-type': contentType ?? 'application/octet-stream' },
        params: { mount, '*': path },
        body,
        endless: true,
      })
    },
    async remove(view, mount, path, { signal, ifMatch } = {}) {
      const { headers, ...asked } = of(view, signal)
      const condition = ifMatch === undefined ? {} : { 'if-match': ifMatch === '*' ? '*' : `"${ifMatch}"` }
      const request = { ...asked, headers: { ...headers, ...condition }, params: { mount, '*': path } }
      return (await server().ask(vfsWire.remove, request)) !== undefined
    },
    removeFolder: async (view, mount, path, { signal } = {}) => {
      const request = { ...of(view, signal), params: { mount, '*': `${path}/` } }
      return (await server().ask(vfsWire.remove, request)) ?? { deleted: 0, more: false }
    },
    search: async (view, query, { signal } = {}) => server().ask(vfsWire.search, { ...of(view, signal), query }),
    usage: (tenant, { signal } = {}) => server().ask(vfsWire.usage, { tenant, signal }),
    async hold(tenant, held, { signal } = {}) {
      await server().ask(vfsWire.hold, { tenant, body: { held }, signal })
    },
    erase: (tenant, { signal } = {}) => server().ask(vfsWire.erase, { tenant, signal }),
    dispose: () => peers.close(),
  }
}

const unavailable = vfsErrors.vfsUpstreamUnavailable
const keysMismatched =
  'The VirtualFS server refuses our signature: VFS_INTERNAL_SIGNING_KEY_CURRENT must be the same on both, and their clocks within a minute.'
const faults: PeersOptions['faults'] = {
  lost: ({ cause, asked }) => unavailable({ cause, retryable: !asked }),
  unproven: () => unavailable({ message: keysMismatched }),
  failed: ({ message, detail }) =>
    unavailable({ message: message ?? `The VirtualFS server answered ${String(detail?.['status'])}.` }),
}

function found<T>(answer: T | undefined): T {
  if (answer === undefined) throw vfsErrors.noVfsSession()
  return answer
}

/** The metadata of a file from the headers of a response. */
function entryOf(
  path: string,
  { status: code, headers }: { status: number; headers: Readonly<Record<string, string | string[] | undefined>> },
): VfsEntry {
  const text = (name: string): string | undefined => (typeof headers[name] === 'string' ? headers[name] : undefined)
  const whole = code === 206 ? /\/(\d+)$/.exec(text('content-range') ?? '')?.[1] : text('content-length')
  const modified = text('last-modified')
  return {
    path,
    kind: 'file',
    ...(whole === undefined ? {} : { bytes: Number(whole) }),
    contentType: text('content-type') ?? 'application/octet-stream',
    etag: (text('etag') ?? '').replaceAll('"', ''),
    ...(modified === undefined ? {} : { updatedAt: new Date(modified).toISOString() }),
  }
}

/** The headers that sign a request to a VirtualFS server; `digest` is '' without a body. */
export function proofHeaders(
  signer: Signer,
  request: {
    readonly tenant: string
    readonly method: string
    readonly target: string
    readonly session: string
    readonly digest: string
  },
  key?: SigningKey,
): Record<string, string> {
  const { tenant, method, target, session, digest } = request
  return {
    ...signer.sign({ tenant, method, target, body: signedForm(session, digest) }, key),
    ...(digest === '' ? {} : { [vfsDigestHeader]: digest }),
  }
}

/** Signs the session and the digest of the body. It tries the key first that the server last accepted. */
function identityOf(signer: Signer): Identity & { readonly known: SigningKey } {
  let known: SigningKey = 'CURRENT'
  const keys: readonly SigningKey[] = signer.hasPreviousKey ? ['CURRENT', 'PREVIOUS'] : ['CURRENT']
  const signatures = keys.map((key) => ({
    sign({ tenant, method, target, headers, body, isStream }: SignedRequest) {
      const digest = isStream ? streamDigest : body.length === 0 ? '' : sha256(body)
      return proofHeaders(signer, { tenant, method, target, session: headers[vfsSessionHeader] ?? '', digest }, key)
    },
    taken() {
      known = key
    },
  }))
  return {
    get known() {
      return known
    },
    tenantHeader: signedHeaders.tenant,
    signatures: () => (known === 'CURRENT' ? signatures : signatures.toReversed()),
  }
}

const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex')
