import type { FastifyRequest, preHandlerHookHandler } from 'fastify'
import fp from 'fastify-plugin'
import type { AppError } from '../contracts/errors.ts'
import { httpErrors, invalidRequest, notFound, unavailable } from '../contracts/http-errors.ts'
import { isUpload } from './access.ts'
import { handleClientError } from './errors.ts'
import { streamsOf } from './streams.ts'

/** Names each request, and refuses some before any plugin sees them. One hook does it all, because every request pays for each hook. */
export const requestArrival = fp(
  async (app, { leaving }: { leaving: AbortSignal }) => {
    const streams = streamsOf(app)
    const deadlines = createDeadlines(app.server.requestTimeout)
    let uploads = false
    app.addHook('onRoute', (route) => {
      if (!isUpload(route.config)) return
      uploads = true
      // Node's limit is for a whole server; from here on each request has its own.
      app.server.requestTimeout = 0
      route.preHandler = [deadlines.lift, ...[route.preHandler ?? []].flat()]
    })
    app.addHook('onRequest', (request, reply, done) => {
      void reply.header('x-request-id', request.id)
      if (leaving.aborted) void reply.header('connection', 'close')
      if (streams.ending) return done(stopping())
      if (request.url.includes('%00')) return done(withNul(request.url))
      if (uploads) deadlines.set(request)
      done()
    })
  },
  { name: 'agent-orc-requests', dependencies: ['agent-orc-errors', 'agent-orc-streams'] },
)

/** One log line for each answered request. */
export const requestLog = fp(
  async (app) => {
    app.addHook(
      'onResponse',
      async ({ id, method, routeOptions: { url: route }, log }, { statusCode, elapsedTime }) => {
        const ms = Math.round(elapsedTime * 10) / 10
        log.info({ request_id: id, method, route, status: statusCode, ms }, 'request')
      },
    )
  },
  { name: 'agent-orc-request-log' },
)

/**
 * Refuses requests for other hosts than these, against DNS rebinding: a web page whose own name resolves to this machine can
 * make its visitor's browser send requests here and read the answers, but the browser names the page's host in them. Requests
 * over a link of peers are not checked, because no browser can open one.
 */
export const allowedHosts = fp(
  async (app, { hosts }: { hosts: readonly string[] | undefined }) => {
    if (!hosts) return
    const allowed = new Set(hosts.map((host) => host.toLowerCase()))
    app.addHook('onRequest', ({ hostname }, _reply, done) => {
      done(allowed.has(hostname.toLowerCase()) ? undefined : httpErrors.unknownHost())
    })
  },
  { name: 'agent-orc-hosts', dependencies: ['agent-orc-errors'] },
)

const stopping = (): AppError =>
  unavailable({ headers: { 'retry-after': '1' }, message: 'This server is stopping; try again.', retryable: true })

/** The same error as Node's own. */
const requestLate = (): Error => Object.assign(new Error('late'), { code: 'ERR_HTTP_REQUEST_TIMEOUT' })

/** PostgreSQL cannot store a NUL and no id holds one, so a URL with one is refused here. */
const withNul = (url: string): AppError =>
  /^[^?]*%00/.test(url) ? notFound() : invalidRequest({ message: 'The query holds a NUL character.' })

const hasBody = ({ headers }: FastifyRequest): boolean =>
  headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0'

/** Bounds the time in which the body of a request arrives. A client that is late gets 408, and its connection is closed. */
function createDeadlines(limitMs: number) {
  const limits = new WeakMap<FastifyRequest, NodeJS.Timeout>()
  const late = ({ raw }: FastifyRequest): void => handleClientError(requestLate(), raw.socket)
  return {
    set(request: FastifyRequest): void {
      if (!hasBody(request)) return
      // A request that was answered early closes without a word when its connection does: it may not hold the process.
      const limit = setTimeout(late, limitMs, request).unref()
      limits.set(request, limit)
      const arrived = (): void => clearTimeout(limit)
      request.raw.once('end', arrived).once('close', arrived)
    },
    lift: ((request, _reply, done) => {
      clearTimeout(limits.get(request))
      done()
    }) satisfies preHandlerHookHandler,
  }
}
