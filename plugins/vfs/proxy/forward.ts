import type { IncomingHttpHeaders } from 'node:http'
import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Agent, type Dispatcher } from 'undici'
import type { Signer } from '#contracts/signing'
import { streamDigest, vfsErrors, vfsSessionHeader } from '#contracts/vfs'
import { lingerAfter, type PeersOptions } from '#kit'
import { dropWhenIdle } from '#kit/files'
import { proofHeaders } from '../client.ts'

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
/** The response headers that are passed on. Cookies and headers that change what a browser does are removed. */
const passedBack = [
  'accept-ranges',
  'cache-control',
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
  /** Limits the rate of the response to the tenant's rate. */
  paced(request: FastifyRequest, body: AsyncIterable<Uint8Array>): AsyncIterable<Uint8Array>
}

/** Forwards a request and streams its response back. */
export function forward(
  request: FastifyRequest,
  reply: FastifyReply,
  { base, target, tenantId, signer, paced }: Forward,
): FastifyReply {
  const gone = new AbortController()
  reply.raw.once('close', () => gone.abort())
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
      ...(signer ? proofOf(signer, request, sent, tenantId) : {}),
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
  { method, headers }: FastifyRequest,
  target: string,
  tenant: string,
): Record<string, string> {
  const session = headers[vfsSessionHeader]
  const hasBody = headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0'
  return proofHeaders(signer, {
    tenant,
    method,
    target,
    session: typeof session === 'string' ? session : '',
    digest: hasBody ? streamDigest : '',
  })
}
