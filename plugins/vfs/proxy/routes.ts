import { Readable } from 'node:stream'
import type { IncomingHttpHeaders } from 'node:http'
import { Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Agent, type Dispatcher } from 'undici'
import { access, type App, failures, notFound, onceClosed } from '#kernel'
import { limitErrors } from '#contracts/limits'
import { mostEntriesAtOnce, streamDigest, vfsErrors, vfsSessionHeader } from '#contracts/vfs'
import type { Signer, SigningKey } from '#contracts/signing'
import { lingerAfter, type PeersOptions } from '#kit'
import { dropWhenIdle } from '#kit/files'
import { proofHeaders } from '../client.ts'

type Paced = (request: FastifyRequest, body: AsyncIterable<Uint8Array>) => AsyncIterable<Uint8Array>
type PassOn = (request: FastifyRequest, reply: FastifyReply, target: string) => Promise<FastifyReply>

const about =
  'Passes the request to [the VirtualFS server](vfs.json), under the path without `/api`, for the tenant of the key. `X-VFS-Session` selects the view of a session.'

const methods = {
  GET: { who: 'member', summary: 'Read from the VirtualFS' },
  PUT: { who: 'admin', summary: 'Write to the VirtualFS' },
  DELETE: { who: 'admin', summary: 'Delete from the VirtualFS' },
} as const

/** Forwards every path below `/api/vfs/` that has no route of its own here. `paced` limits the rate of a tenant's bytes. */
export function proxyRoutes(app: App, paced: Paced, passOn: PassOn): void {
  // Bodies are streamed on. An upstream that answers before it has read the whole body destroys the stream. `destroyOnReturn: false` keeps the
  // client's connection open, so that the client gets the answer.
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', async (request: FastifyRequest, body: Readable) =>
    Readable.from(paced(request, body.iterator({ destroyOnReturn: false })), { objectMode: false }),
  )
  for (const [method, { who, summary }] of Object.entries(methods)) {
    app.route({
      method: method as keyof typeof methods,
      url: '/api/vfs/*',
      ...access(who, method === 'GET' ? {} : { upload: true }),
      schema: {
        tags: ['vfs'],
        summary,
        description: about,
        params: Type.Object({
          '*': Type.String({ description: 'Path on the VirtualFS server, e.g. `mounts` or `files/{mount}/{path}`.' }),
        }),
        response: {
          '2xx': { description: 'The answer of the VirtualFS server, as it is.' },
          ...failures(notFound, vfsErrors.invalidPath, limitErrors.limitReached, vfsErrors.vfsUpstreamUnavailable),
        },
      },
      // Paths must be checked in the form in which they were sent, and bodies are not read here. So no schema is validated.
      validatorCompiler: () => () => true,
      async handler(request, reply) {
        const target = targetOf(request.raw.url ?? '')
        if (target === undefined) throw vfsErrors.invalidPath()
        if (isOurs(target) || opensSession(method, target)) throw notFound()
        return passOn(request, reply, target)
      },
    })
  }
}

/** Routes that the proxy does not forward: only runners open leases, and only retention erases and holds. */
const ours = /^\/vfs\/(leases|tenant)(\/|$)/
const publicPrefix = '/api'
/** The deepest nesting of percent-encodings; a path with deeper ones is refused. */
const deepest = 4

/**
 * The target of `/api/vfs/…` on the VirtualFS server: path and query as the client wrote them, without `/api`. Undefined for a path that any server
 * on the way to the files could read as a different path.
 */
export function targetOf(url: string): string | undefined {
  const [, path = '', query = ''] = /^([^?#]*)(\?[^#]*)?$/.exec(url) ?? []
  if (!path.startsWith(`${publicPrefix}/vfs/`) || !/^[\x21-\x7e]*$/.test(url)) return undefined
  const rest = path.slice(publicPrefix.length)
  const segments = rest.split('/').slice(1)
  // Only the path of a folder may end with an empty segment.
  const plain = segments.every((one, i) => (one === '' ? i === segments.length - 1 : isPlain(one)))
  return plain ? rest + query : undefined
}

/** True for routes that the proxy must not forward. */
const isOurs = (target: string): boolean => ours.test(decodeURIComponent(target.split('?')[0]!))

/** The cost of a request beyond the first turn of the rate limit: a search reads up to 64 MiB, and a list looks at each file that it shows. */
const turnsOfSearch = 60
const entriesOfTurn = 100
export function turnsOf(target: string): number {
  const [path = '', query = ''] = target.split('?')
  const [, , what] = decodeURIComponent(path).split('/')
  if (what === 'search') return turnsOfSearch
  const limit = what === 'list' ? Number(new URLSearchParams(query).get('limit') ?? 0) : 0
  return limit > 0 ? Math.floor(Math.min(limit, mostEntriesAtOnce) / entriesOfTurn) : 0
}

/** True for requests that open a lease. Only runners may open leases, because an admin of a tenant could raise the tenant's own limits with a lease. */
const opensSession = (method: string, target: string): boolean =>
  !['GET', 'HEAD', 'DELETE'].includes(method) &&
  /^\/vfs\/sessions(\/|$)/.test(decodeURIComponent(target.split('?')[0]!))

/**
 * True if a segment stays one name however often it is decoded: no step up, no slash of any kind, no NUL. Two dots at its beginning or end are
 * refused as well, as @fastify/reply-from does.
 */
function isPlain(segment: string): boolean {
  let text = segment
  for (let depth = 0; depth <= deepest; depth++) {
    // Some file systems normalize names, so the compatible forms of dots and slashes are checked as well.
    const forms = [text, text.normalize('NFKC')]
    if (forms.some((one) => /[\\/\p{Cc}]/u.test(one) || /^\.(;|$)|^\.\.|\.\.$/.test(one))) return false
    const decoded = decodedOf(text)
    if (decoded === text) return true
    // Decoding failed. At depth 0 the segment is not UTF-8 (e.g. an overlong form) and is refused. Deeper, the decoded text is a name with a
    // percent sign.
    if (decoded === undefined) return depth > 0
    text = decoded
  }
  return false
}

function decodedOf(text: string): string | undefined {
  try {
    return decodeURIComponent(text)
  } catch {
    return undefined
  }
}

/** Timeouts in milliseconds: to connect, and while the upstream sends nothing. */
const connectMs = 2_000
const silentMs = 60_000

/** Request headers that are passed on. All others are removed: keys, cookies, signatures, tenants, hop-by-hop headers. */
const passedOn = [
  'accept',
  'accept-language',
  'content-length',
  'content-type',
  'if-match',
  'if-modified-since',
  'if-none-match',
  'if-range',
  'if-unmodified-since',
  'range',
  'traceparent',
  'tracestate',
  vfsSessionHeader,
]
/** The response headers that are passed on. Cookies and headers that change what a browser does or keeps are removed. */
const passedBack = [
  'accept-ranges',
  'content-encoding',
  'content-length',
  'content-range',
  'content-type',
  'etag',
  'last-modified',
  'link',
  'retry-after',
  'vary',
  'x-next-cursor',
  'x-total-count',
]

const some = (headers: IncomingHttpHeaders, names: readonly string[]): IncomingHttpHeaders =>
  Object.fromEntries(names.flatMap((name) => (headers[name] === undefined ? [] : [[name, headers[name]]])))

/** reply-from passes only headers to the request, so its abort signal travels as a header. The signal is removed before the headers are sent. */
const ending = Symbol('ends the request')

/** The connections to the server. When certificates change, open connections close after their current requests. */
export class Upstream {
  #agent: Agent

  constructor(tls: PeersOptions['tls']) {
    const opened = (): Agent =>
      new Agent({
        connections: null,
        pipelining: 1,
        headersTimeout: silentMs,
        bodyTimeout: silentMs,
        keepAliveTimeout: 30_000,
        connect: { timeout: connectMs, ...tls?.files },
      })
    this.#agent = opened()
    tls?.onChange(() => {
      void this.#agent.close().catch(() => {})
      this.#agent = opened()
    })
  }

  /** The interface that @fastify/reply-from calls. */
  readonly request = (
    { headers, ...options }: Dispatcher.RequestOptions & { headers: Record<string | symbol, unknown> },
    callback: (error: Error | null, data: Dispatcher.ResponseData) => void,
  ): void => {
    const { [ending]: signal, ...plain } = headers
    const asked = { ...options, headers: plain as Record<string, string>, signal: signal as AbortSignal }
    this.#agent.request(asked, callback as never)
  }

  close(): Promise<void> {
    return this.#agent.destroy()
  }
}

interface Forward {
  /** The URL of the server, with the path below which it answers. */
  readonly base: URL
  readonly target: string
  readonly tenantId: string
  readonly signer: Signer | undefined
  /** The key that the server knows; the current one by default. */
  readonly key: SigningKey | undefined
  /** Limits the rate of the response to the tenant's rate. */
  paced(request: FastifyRequest, body: AsyncIterable<Uint8Array>): AsyncIterable<Uint8Array>
}

/** Forwards a request and streams its response back. */
export function forward(
  request: FastifyRequest,
  reply: FastifyReply,
  { base, target, tenantId, signer, key, paced }: Forward,
): FastifyReply {
  const gone = new AbortController()
  onceClosed(reply.raw, () => gone.abort())
  dropWhenIdle(reply)
  const [path = '', query = ''] = /^([^?]*)\??(.*)$/.exec(target)!.slice(1)
  const { pathname } = new URL(base.pathname.replace(/\/+$/, '') + path, base)
  const sent = query === '' ? pathname : `${pathname}?${query}`
  return reply.from(pathname, {
    getUpstream: () => base.origin,
    // The query is passed apart from the path. @fastify/reply-from decodes the path and refuses `..` in it, but a search text may contain `..`.
    queryString: () => query,
    retryDelay: () => null,
    rewriteRequestHeaders: (_, headers) => ({
      ...some(headers, passedOn),
      host: base.host,
      ...(signer ? proofOf(signer, key, request, sent, tenantId) : {}),
      [ending]: gone.signal,
    }),
    rewriteHeaders: (headers) => ({
      ...some(headers, passedBack),
      // Agents wrote these files, so a browser must not render them as a page of this server.
      'content-disposition': 'attachment',
      'content-security-policy': "sandbox; default-src 'none'",
    }),
    onResponse(_, answered, { stream }) {
      lingerAfter(request.raw)
      void answered.send(Readable.from(paced(request, stream as unknown as Readable), { objectMode: false }))
    },
    onError: (failed, { error: cause }) => void failed.send(vfsErrors.vfsUpstreamUnavailable({ cause })),
  })
}

function proofOf(
  signer: Signer,
  key: SigningKey | undefined,
  { method, headers }: FastifyRequest,
  target: string,
  tenant: string,
): Record<string, string> {
  const session = headers[vfsSessionHeader]
  const hasBody = headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0'
  const signed = {
    tenant,
    method,
    target,
    session: typeof session === 'string' ? session : '',
    digest: hasBody ? streamDigest : '',
  }
  return proofHeaders(signer, signed, key)
}
