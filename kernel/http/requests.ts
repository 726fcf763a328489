import { randomUUID } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { Socket } from 'node:net'
import type {
  FastifyBaseLogger,
  FastifyReply,
  FastifyRequest,
  FastifySchemaCompiler,
  preHandlerHookHandler,
} from 'fastify'
import fp from 'fastify-plugin'
import type { AppError } from '../contracts/errors.ts'
import { invalidRequest, notFound, unavailable } from '../contracts/http-errors.ts'
import { bodyOf, giveBack, parseJson, parseOwnJson } from '../kit/bodies.ts'
import type { Validators } from '../kit/compilers.ts'
import type { WebGuard } from '../kit/web-guard.ts'
import { accessOf, isUpload, judgesOrigins, type RouteConfig } from './access.ts'
import { handleClientError, standingHeaders } from './errors.ts'
import { streamsOf } from './streams.ts'

/** For Fastify: the id of a request, which clients cannot choose, and its logger. */
export const requestNames = {
  genReqId: () => `req_${randomUUID().slice(24)}`,
  requestIdHeader: false,
  // A logger per request costs more than most requests log, so log lines name the request themselves.
  childLoggerFactory: (logger: FastifyBaseLogger) => logger,
} as const

/** A proxy in front says whether the request used TLS. A client that lies about this affects only its own answers. */
const overTls = ({ raw, headers }: FastifyRequest): boolean =>
  'encrypted' in raw.socket || String(headers['x-forwarded-proto']).startsWith('https')

/** Sets the headers that every answer has. */
export function sayStanding(request: FastifyRequest, reply: FastifyReply): void {
  void reply.header('x-request-id', request.id).headers(standingHeaders[overTls(request) ? 'tls' : 'plain'])
}

/** Names each request, and refuses some before any plugin sees them. One hook does it all, because every request pays for each hook. */
export const requestArrival = fp(
  async (app, { leaving, guard }: { leaving: AbortSignal; guard: WebGuard }) => {
    const streams = streamsOf(app)
    const deadlines = createDeadlines(app.server.requestTimeout)
    let uploads = false
    app.addHook('onRoute', (route) => {
      if (accessOf(route.config) === 'network') guard.withoutProof()
      if (!isUpload(route.config)) return
      uploads = true
      // Node's limit applies to a whole server, so it is replaced by a limit per request.
      app.server.requestTimeout = 0
      route.preHandler = [deadlines.lift, ...[route.preHandler ?? []].flat()]
    })
    app.addHook('onRequest', (request, reply, done) => {
      sayStanding(request, reply)
      if (!guard.anyHost || request.headers.origin !== undefined) {
        const refusal = guard.refusal(request, judgesOrigins(request.routeOptions.config))
        if (refusal) return done(refusal)
      }
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

const stopping = (): AppError =>
  unavailable({ headers: { 'retry-after': '1' }, message: 'This server is stopping; try again.', retryable: true })

/** An error equal to Node's own. */
const requestLate = (): Error => Object.assign(new Error('late'), { code: 'ERR_HTTP_REQUEST_TIMEOUT' })

/** PostgreSQL cannot store a NUL and no id contains one, so a URL with a NUL is refused here. */
const withNul = (url: string): AppError =>
  /^[^?]*%00/.test(url) ? notFound() : invalidRequest({ message: 'The query holds a NUL character.' })

const hasBody = ({ headers }: FastifyRequest): boolean =>
  headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0'

/** Limits the time in which a request's body arrives. A late client gets 408, and its connection is closed. */
function createDeadlines(limitMs: number) {
  const limits = new WeakMap<FastifyRequest, NodeJS.Timeout>()
  const late = (request: FastifyRequest): void => handleClientError(requestLate(), request.raw.socket, overTls(request))
  return {
    set(request: FastifyRequest): void {
      // An injected request has neither a connection nor a deadline.
      if (!hasBody(request) || !(request.raw.socket instanceof Socket)) return
      // If a request was answered early, its connection closes without a further answer. The timer must not keep the process alive.
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

/** Request bodies are JSON within limits, and are checked against their schemas without conversion. */
export const jsonBodies = fp(
  async (app, { validators }: { readonly validators: Validators }) => {
    app.setValidatorCompiler(whenNeeded(validators))
    // Routes accept no text unless they add a parser for it; other content types answer 415.
    app.removeContentTypeParser(['application/json', 'text/plain'])
    app.addContentTypeParser('application/json', async (request: FastifyRequest, payload: IncomingMessage) => {
      const body = await bodyOf(request, payload)
      try {
        const { access } = request.routeOptions.config as RouteConfig
        return access === 'network' ? parseOwnJson(body) : parseJson(body)
      } finally {
        giveBack(body)
      }
    })
  },
  { name: 'agent-orc-bodies' },
)

/** Compiles a schema for the first request that needs it: compiling all of them would be a tenth of a start, and most are never used. */
function whenNeeded({ check, compile }: Validators): FastifySchemaCompiler<unknown> {
  return ({ schema, httpPart }) => {
    check(schema as object)
    let compiled: ReturnType<typeof compile> | undefined
    const fits: ReturnType<FastifySchemaCompiler<unknown>> = (data: unknown) => {
      compiled ??= compile(schema as object, httpPart)
      const result = compiled(data)
      fits.errors = compiled.errors ?? null
      return result
    }
    return fits
  }
}
