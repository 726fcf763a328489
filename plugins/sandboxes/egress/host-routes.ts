import { randomUUID } from 'node:crypto'
import { type IncomingHttpHeaders, STATUS_CODES } from 'node:http'
import type { Duplex } from 'node:stream'
import { Type } from '@sinclair/typebox'
import type { FastifyBaseLogger, FastifyReply, FastifyRequest } from 'fastify'
import type { Dispatcher } from 'undici'
import { access, type App, type AppError, errorBody, failures, isAppError, stream } from '#kernel'
import { exchange, type Reply, takeProxied, takeStreams } from '#kit'
import { connectionHeaders, egressMethods } from '#contracts/egress'
import { ForbiddenAddressError } from '#kit/outbound'
import { workerPaths } from '#contracts/wire/worker'
import { sandboxErrors } from '../errors.ts'
import { tags } from '../hub/routes.ts'
import { addressRefused, type Admitted, type EgressRuns, type RunEgress } from './run-egress.ts'
import { authorityOf, type Target, targetBelow, targetOf } from './target.ts'
import { whileCalled } from '../hub/auth.ts'
import { bodyOf, lengthOf } from './forward.ts'

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

const maxAnswerBytes = 64 * 1024 * 1024

interface HostRequest {
  readonly run: RunEgress
  readonly target: Target
  readonly admitted: Admitted
  /** True for a program without proxy support. Redirects are rewritten for it. */
  readonly below: boolean
  /** Called once with the status that the program gets. */
  answered(status: number): void
}

/** Forwards a program's request to its host with the profile's headers added. The values of secrets are masked in the answer. */
async function askHost(request: FastifyRequest, reply: FastifyReply, asked: HostRequest): Promise<void> {
  const { run, target, admitted } = asked
  const late = new AbortController()
  const timer = setTimeout(() => late.abort(sandboxErrors.egressTooLate()), run.requestMs)
  reply.raw.once('close', () => clearTimeout(timer))
  const body = bodyOf(request, {})
  const {
    status,
    headers,
    body: answer,
  } = await exchange(
    admitted.dispatcher,
    {
      origin: admitted.origin,
      path: target.path + target.query,
      method: request.method as Dispatcher.HttpMethod,
      headers: {
        ...requestHeaders(request.headers, run.key),
        ...(body ? lengthOf(request) : {}),
        // Secrets cannot be found in a compressed answer, so the request asks for none.
        'accept-encoding': 'identity',
        ...admitted.headers,
      },
      body,
    },
    { signal: whileCalled(reply, run.signal, late.signal), lost: (cause) => lostTo(target, cause) },
  )
  const passed = answerHeaders(headers, asked)
  const encoding = headers['content-encoding'] ?? 'identity'
  const refusal =
    Number(headers['content-length'] ?? 0) > maxAnswerBytes && request.method !== 'HEAD'
      ? sandboxErrors.egressAnswerTooLarge()
      : encoding !== 'identity' && !admitted.mask.empty
        ? sandboxErrors.egressAnswerEncoded()
        : undefined
  if (refusal) {
    await answer.return?.()
    throw refusal
  }
  asked.answered(status)
  const contentType = passed['content-type'] ?? 'application/octet-stream'
  return stream(request, reply, { status, contentType, headers: passed }, () => admitted.mask.stream(bounded(answer)))
}

async function* bounded(body: Reply['body']): AsyncGenerator<Buffer> {
  let size = 0
  for await (const chunk of body) {
    size += chunk.length
    if (size > maxAnswerBytes) throw sandboxErrors.egressAnswerTooLarge()
    yield chunk
  }
}

const namedBy = ({ connection }: { readonly connection?: string | string[] | undefined }): ReadonlySet<string> =>
  new Set(
    String(connection ?? '')
      .toLowerCase()
      .split(/\s*,\s*/),
  )

/** Headers that the runner writes itself. */
const ownHeaders: ReadonlySet<string> = new Set(['host', 'content-length', 'expect', 'accept-encoding'])

/** The headers of a request to pass on. A header with the key of the run is left out, because the key is only for the runner. */
function requestHeaders(headers: IncomingHttpHeaders, key: string): Record<string, string> {
  const named = namedBy(headers)
  const passed = Object.entries(headers).flatMap(([name, value]) => {
    const text = [value ?? []].flat().join(', ')
    const stays = connectionHeaders.has(name) || named.has(name) || ownHeaders.has(name) || holds(text, key)
    return stays ? [] : [[name, text]]
  })
  return Object.fromEntries(passed) as Record<string, string>
}

const holds = (text: string, key: string): boolean =>
  text.includes(key) || text.split(/[\s,]+/).some((word) => Buffer.from(word, 'base64').includes(key))

/**
 * Cookies are credentials that were obtained with the secret. The last two headers would make a program use TLS with the host directly, which is not
 * possible.
 */
const notAnswered: ReadonlySet<string> = new Set(['set-cookie', 'strict-transport-security', 'alt-svc'])

function answerHeaders(
  headers: Reply['headers'],
  { run, target, admitted, below }: HostRequest,
): Record<string, string> {
  const named = namedBy(headers)
  const passed: Record<string, string> = {}
  for (const [name, value] of Object.entries(headers)) {
    if (value === undefined || connectionHeaders.has(name) || named.has(name) || notAnswered.has(name)) continue
    passed[name] = admitted.mask.text([value].flat().join(', '))
  }
  const { location } = passed
  return location === undefined
    ? passed
    : { ...passed, location: locationFor(location, target, below && run.sessionId) }
}

/** The target of a redirect in the form in which the program must request it. That request is checked like any other. */
function locationFor(location: string, target: Target, sessionId: string | false): string {
  const from = `https://${authorityOf(target)}${target.path}`
  const relative = !/^([a-z][a-z0-9+.-]*:|\/\/)/i.test(location)
  if (!URL.canParse(location, from) || (relative && sessionId === false)) return location
  const { protocol, host, pathname, search, hash } = new URL(location, from)
  if (protocol !== 'https:') return location
  const rest = pathname + search + hash
  return sessionId === false ? `http://${host}${rest}` : `${workerPaths(sessionId).egress}/${host}${rest}`
}

function lostTo(target: Target, cause: Error): Error {
  if (isAppError(cause)) return cause
  if (cause instanceof ForbiddenAddressError) return addressRefused(target)
  const code = String((cause as { code?: unknown }).code)
  if (code === 'UND_ERR_HEADERS_TIMEOUT' || code === 'UND_ERR_BODY_TIMEOUT')
    return sandboxErrors.egressTooLate({ cause })
  const why = /CERT|SIGNATURE|SSL|TLS/.test(code) ? 'shows a certificate that is not trusted' : 'cannot be reached'
  return sandboxErrors.egressHostUnreachable({ cause, message: `${authorityOf(target)} ${why}.` })
}
