import type { FastifyRequest, RouteOptions } from 'fastify'
import fp from 'fastify-plugin'
import { AppError, notFound, unavailable } from '../errors.ts'
import { isUpload } from './access.ts'
import { handleClientError } from './errors.ts'
import { streamsOf } from './streams.ts'

/** Its id, and what is refused before anybody looks at it. One hook for all of it: every request pays for each. */
export const requestArrival = fp(
  async (app, { leaving }: { leaving: AbortSignal }) => {
    const streams = streamsOf(app)
    const deadlines = createDeadlines(app.server.requestTimeout, ({ raw }) => {
      handleClientError(requestLate(), raw.socket)
    })
    let uploads = false
    app.addHook('onRoute', (route) => {
      if (!deadlines.add(route)) return
      uploads = true
      // Node's own limit holds for a whole server; from here on there is one for each request.
      app.server.requestTimeout = 0
    })
    app.addHook('onRequest', (request, reply, done) => {
      void reply.header('x-request-id', request.id)
      if (leaving.aborted) void reply.header('connection', 'close')
      if (streams.ending) return done(stopping())
      if (request.url.includes('%00')) return done(withNul(request.url))
      if (uploads) deadlines.begin(request)
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

/** As Node's own. */
const requestLate = (): Error => Object.assign(new Error('late'), { code: 'ERR_HTTP_REQUEST_TIMEOUT' })

/** No id and no text of ours holds a NUL, and PostgreSQL has no form for one: it never gets further than here. */
const withNul = (url: string): AppError =>
  /^[^?]*%00/.test(url)
    ? notFound()
    : new AppError('invalid_request', 400, { message: 'The query holds a NUL character.' })

const hasBody = ({ headers }: FastifyRequest): boolean =>
  headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0'

/** By when the body of each request has to be there; an upload is let go when its handler begins. */
export interface Deadlines {
  /** For each new route. True once there is an upload: from then on, and not before, every request is given to `begin`. */
  add(route: RouteOptions): boolean
  begin(request: FastifyRequest): void
}

/** `onLate` answers on the socket and closes it. */
export function createDeadlines(limitMs: number, onLate: (request: FastifyRequest) => void): Deadlines {
  const limits = new WeakMap<FastifyRequest, NodeJS.Timeout>()
  let watched = false
  return {
    add(route) {
      if (isUpload(route.config)) {
        watched = true
        const others = route.preHandler === undefined ? [] : [route.preHandler].flat()
        route.preHandler = [(request, _reply, done) => (clearTimeout(limits.get(request)), done()), ...others]
      }
      return watched
    },
    begin(request) {
      if (!hasBody(request)) return
      const { raw } = request
      // A request that was answered early closes without a word when its connection does: it may not hold the process.
      const limit = setTimeout(onLate, limitMs, request).unref()
      limits.set(request, limit)
      const arrived = (): void => clearTimeout(limit)
      raw.once('end', arrived).once('close', arrived)
    },
  }
}
