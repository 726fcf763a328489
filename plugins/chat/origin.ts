import type { FastifyReply, FastifyRequest } from 'fastify'
import { access, type App } from '#kernel'
import type { Authenticator } from './authenticate.ts'
import { originNotAllowed } from './errors.ts'
import { ChatParams } from './schema.ts'

const exposed =
  'x-request-id, x-conversation-id, x-public-run-id, retry-after, ratelimit, ratelimit-policy, idempotency-replayed'
const methods = 'GET, POST, DELETE, OPTIONS'
const headers = 'authorization, content-type, last-event-id, idempotency-key'
/** Browsers ask again after ten minutes, so a withdrawn origin does not stay usable for long. Seconds. */
const maxAge = '600'

/** Lets a script of `origin` read this reply, its ids and its limits. */
export const allow = (reply: FastifyReply, origin: string): FastifyReply =>
  reply.header('access-control-allow-origin', origin).header('access-control-expose-headers', exposed)

/**
 * While the gateway stops, or its database is away, nobody can look which origins are allowed. The answer says nothing but that,
 * so any script may read it: otherwise a browser shows its user a network failure, and the script cannot see `Retry-After`.
 */
export function readableWhenAway({ headers: { origin } }: FastifyRequest, reply: FastifyReply): void {
  if (reply.statusCode !== 503 || origin === undefined || reply.hasHeader('access-control-allow-origin')) return
  allow(reply, origin)
}

/** Answers CORS preflights. They carry no key, so the agent of the URL decides. */
export function preflightRoutes(app: App, { admits }: Pick<Authenticator, 'admits'>): void {
  for (const url of ['/v1/chat/:tenant/:agent', '/v1/chat/:tenant/:agent/*']) {
    app.options(url, { ...access('public'), schema: { hide: true, params: ChatParams } }, async (request, reply) => {
      const { origin } = request.headers
      if (origin === undefined) return reply.code(204).header('allow', methods).send()
      // An unknown agent answers like one that does not list the origin.
      if (!(await admits(request, origin))) throw originNotAllowed()
      return allow(reply, origin)
        .code(204)
        .header('access-control-allow-methods', methods)
        .header('access-control-allow-headers', headers)
        .header('access-control-max-age', maxAge)
        .send()
    })
  }
}
