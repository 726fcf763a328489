import type { IncomingHttpHeaders } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Dispatcher } from 'undici'
import { isAppError, stream } from '#kernel'
import { connectionHeaders } from '#contracts/egress'
import { exchange, type Reply } from '#kit'
import { ForbiddenAddressError } from '#kit/outbound'
import { workerPaths } from '#contracts/wire/worker'
import { sandboxErrors } from '../errors.ts'
import { whileCalled } from '../hub/auth.ts'
import { bodyOf, lengthOf } from './forward.ts'
import { addressRefused, type Admitted, type RunEgress } from './run-egress.ts'
import { authorityOf, type Target } from './target.ts'

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
export async function askHost(request: FastifyRequest, reply: FastifyReply, asked: HostRequest): Promise<void> {
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
