import { randomUUID } from 'node:crypto'
import { STATUS_CODES } from 'node:http'
import type { Duplex } from 'node:stream'
import { Type } from '@sinclair/typebox'
import type { FastifyBaseLogger, FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, type AppError, errorBody, failures, isAppError } from '#kernel'
import { takeProxied, takeStreams } from '#kit'
import { egressMethods } from '#contracts/egress'
import { sandboxErrors } from '../errors.ts'
import { tags } from '../hub/routes.ts'
import { askHost } from './host-request.ts'
import type { EgressRuns, RunEgress } from './run-egress.ts'
import { authorityOf, type Target, targetBelow, targetOf } from './target.ts'

export interface HostCounts {
  /** Counts a request. `place` is `unlisted` for a host that no profile names; `status` is that of the host or of the refusal. */
  asked(place: 'own' | 'public' | 'unlisted', status: number): void
}

interface HostRoutesOptions {
  readonly runs: EgressRuns
  readonly counts: HostCounts
  readonly log: FastifyBaseLogger
}

const HostParams = Type.Object({
  id: Type.String({ maxLength: 128 }),
  host: Type.String({ maxLength: 300 }),
  '*': Type.String(),
})
const proxyPath = '/runner/egress'
/** The segments before the host in `/runner/worker/{id}/egress`. */
const segmentsBefore = 4

const refusals = [
  sandboxErrors.invalidTarget,
  sandboxErrors.noRunUnderWay,
  sandboxErrors.egressNotAllowed,
  sandboxErrors.egressAddressNotAllowed,
  sandboxErrors.tooManyEgressRequests,
  sandboxErrors.bodyTooLarge,
  sandboxErrors.egressHostUnreachable,
  sandboxErrors.egressTooLate,
  sandboxErrors.egressAnswerTooLarge,
  sandboxErrors.egressAnswerEncoded,
  sandboxErrors.noWebSockets,
] as const
const answers = {
  200: { description: 'The answer of the host, streamed.', content: { '*/*': { schema: Type.Unknown() } } },
}

/**
 * Routes to the hosts that the profile of a run allows: as a proxy, and as paths for programs without proxy support. They need a scope of their own,
 * because bodies are streams.
 */
export function hostRoutes({ runs, counts, log }: HostRoutesOptions) {
  const handle = async (
    request: FastifyRequest,
    reply: FastifyReply,
    { run, target, below }: { run: RunEgress; target: Target; below: boolean },
  ): Promise<void> => {
    let place: Parameters<HostCounts['asked']>[0] = 'unlisted'
    const tell = (status: number): void => {
      counts.asked(place, status)
      log.info({ sessionId: run.sessionId, host: authorityOf(target), status }, 'egress')
    }
    try {
      if (request.headers.upgrade?.toLowerCase() === 'websocket') throw sandboxErrors.noWebSockets()
      const admitted = run.admit(target, request.method)
      place = admitted.place
      // The caller has left already, so `close` will not come again and the request would never end.
      if (reply.raw.destroyed) throw sandboxErrors.callerLeft()
      reply.raw.once('close', run.begin())
      await askHost(request, reply, { run, target, admitted, below, answered: tell })
    } catch (error) {
      if (isAppError(error)) tell(error.status)
      throw error
    }
  }
  return async (app: App): Promise<void> => {
    takeStreams(app)
    takeProxied(app, proxyPath)
    refuseTunnels(app)
    for (const method of egressMethods) {
      app.route({
        method,
        url: proxyPath,
        ...access('egress-key', { upload: true }),
        exposeHeadRoute: false,
        schema: {
          tags,
          summary: 'Reach a host, as a proxy',
          description:
            "Requests in absolute form (`http_proxy`) arrive here. They leave over TLS, with the headers that `egress` of the run's profile has for the host.",
          response: { ...answers, ...failures(sandboxErrors.proxyKeyRefused, ...refusals) },
        },
        async handler(request, reply) {
          const run = runs.find(keyIn(request.headers['proxy-authorization']))
          if (!run) throw sandboxErrors.proxyKeyRefused({ headers: { 'proxy-authenticate': 'Basic realm="egress"' } })
          const target = targetOf(request.originalUrl)
          if (!target) throw sandboxErrors.invalidTarget()
          return handle(request, reply, { run, target, below: false })
        },
      })
      app.route({
        method,
        url: '/runner/worker/:id/egress/:host/*',
        ...access('egress-key', { upload: true }),
        exposeHeadRoute: false,
        schema: {
          tags,
          summary: 'Reach a host, below a path',
          description:
            "Like the proxy, for programs without proxy support: it stands for `https://{host}/`. Send the key of the run as the host's own credential: a bearer token, a password, `x-api-key`.",
          params: HostParams,
          response: { ...answers, ...failures(sandboxErrors.egressKeyRefused, ...refusals) },
        },
        async handler(request, reply) {
          const { authorization, 'x-api-key': apiKey, 'proxy-authorization': proxy } = request.headers
          const run = [keyIn(authorization), String(apiKey), keyIn(proxy)].map((key) => runs.find(key)).find(Boolean)
          if (run?.sessionId !== request.params.id) throw sandboxErrors.egressKeyRefused()
          const target = targetBelow(request.raw.url ?? '', segmentsBefore)
          if (!target) throw sandboxErrors.invalidTarget()
          return handle(request, reply, { run, target, below: true })
        },
      })
    }
  }
}

/** The key in a header: the token of any scheme, or the password of Basic. */
function keyIn(text: string | undefined): string | undefined {
  const [, scheme, rest] = /^(\w+) +(\S+)$/.exec(text ?? '') ?? []
  if (scheme?.toLowerCase() !== 'basic' || rest === undefined) return rest
  const [user, password] = Buffer.from(rest, 'base64').toString().split(':')
  return password || user
}

/** Refuses CONNECT, because a tunnel would hide its traffic and no header could be added. The reason is in the status line, which programs show. */
function refuseTunnels(app: App): void {
  app.server.on('connect', (_request: unknown, socket: Duplex) => {
    const error: AppError = sandboxErrors.noTunnels()
    const body = JSON.stringify(errorBody(error, `req_${randomUUID().slice(24)}`))
    socket.on('error', () => {})
    socket.end(
      `HTTP/1.1 ${error.status} ${STATUS_CODES[error.status]}: use http:// in place of https://\r\n` +
        `Content-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
    )
  })
}
