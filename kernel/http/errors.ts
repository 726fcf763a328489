import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import type {
  FastifyBaseLogger,
  FastifyError,
  FastifyReply,
  FastifyRequest,
  FastifySchemaValidationError,
} from 'fastify'
import fp from 'fastify-plugin'
import { AppError, isAppError } from '../contracts/errors.ts'
import { httpErrors, invalidRequest, notFound } from '../contracts/http-errors.ts'
import { lingerAfter } from '../kit/last-answer.ts'

// Not imported: an import reads all exports of the module, and so loads Node's fetch, which costs 40 ms of every start.
const { STATUS_CODES } = process.getBuiltinModule('node:http')
// Fastify's own failures by their codes, each with our code and a sentence that tells the caller what to do.
const known: Readonly<Record<string, () => AppError>> = {
  FST_ERR_CTP_BODY_TOO_LARGE: () => httpErrors.bodyTooLarge(),
  FST_ERR_CTP_INVALID_MEDIA_TYPE: () => httpErrors.unsupportedMediaType(),
  FST_ERR_CTP_INVALID_JSON_BODY: () => invalidRequest({ message: 'The body is not valid JSON.' }),
  FST_ERR_BAD_URL: () => invalidRequest({ message: 'The path is not valid percent-encoding.' }),
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: () => invalidRequest({ message: 'Content-Length does not match the body.' }),
}

function asAppError(error: FastifyError | AppError): AppError | undefined {
  if (isAppError(error)) return error
  if (error.validation) {
    const issues = issuesOf(error.validation, error.validationContext)
    const first = issues[0]
    return invalidRequest({ detail: { issues }, ...(first ? { message: `${first.path} ${first.message}` } : {}) })
  }
  const entry = known[error.code]
  if (entry) return entry()
  const { statusCode: status = 500 } = error
  // Every other 4xx of Fastify is the caller's mistake, and keeps Fastify's status.
  return status >= 400 && status < 500 ? new AppError(invalidRequest.row.code, status) : undefined
}

/** The body of every failure: first the contract's `error` string, then fields that help people. */
export function errorBody(error: AppError, requestId: string): Record<string, unknown> {
  return {
    error: error.code,
    request_id: requestId,
    ...(error.sentence === undefined ? {} : { message: error.sentence }),
    ...(error.retryable ? { retryable: true } : {}),
    ...error.detail,
  }
}

/** The request that failed. */
export interface Failed {
  readonly requestId: string
  readonly route: string | undefined
  readonly log: Pick<FastifyBaseLogger, 'warn' | 'error'>
}

/**
 * The error for the caller. Anything that is no AppError is a bug: it is logged completely and answered as `internal`. A 502, 503 or 504 of a
 * plugin is about another system: its cause is logged, because the cause tells more than our stack.
 */
export function failureOf(error: unknown, { requestId, route, log }: Failed): AppError {
  const raised = error instanceof Error ? error : new Error(`a thrown ${typeof error}`, { cause: error })
  const app = asAppError(raised as FastifyError) ?? httpErrors.internal()
  const told = { request_id: requestId, route }
  if (app === raised && app.status > 500) {
    const { cause: err, code, sentence } = app
    log.warn({ ...told, ...(err === undefined ? {} : { err }), sentence }, `request failed: ${code}`)
  } else if (app.status >= 500) log.error({ ...told, err: error }, `request failed: ${app.code}`)
  return app
}

/** Answers every failure in one form. The options of the listener handle failures before a request has a route. */
export const errorAnswers = fp(
  async (app) => {
    app.setErrorHandler(handleError)
    app.setNotFoundHandler(handleNotFound)
  },
  { name: 'agent-orc-errors' },
)

/** The one error handler of every listener. */
export function handleError(error: unknown, request: FastifyRequest, reply: FastifyReply): void {
  const app = failureOf(error, { requestId: request.id, route: request.routeOptions.url, log: request.log })
  void reply.code(app.status).headers(app.headers)
  send(request, reply, app)
}

/** Answers a path that no route serves, in the same shape. */
function handleNotFound(request: FastifyRequest, reply: FastifyReply): void {
  void reply.code(404)
  send(request, reply, notFound({ message: `No route answers ${request.method} ${request.url.split('?')[0]}.` }))
}

// Refusals of the HTTP parser, before there is a request.
const refused: Readonly<Record<string, () => AppError>> = {
  HPE_HEADER_OVERFLOW: () => httpErrors.headersTooLarge(),
  ERR_HTTP_REQUEST_TIMEOUT: () => httpErrors.requestTimeout(),
}

/** Answers on the raw socket when the bytes never became a request, in the same shape as every other error. */
export function handleClientError(error: Error & { code?: string }, socket: Socket, overTls?: boolean): void {
  // A reset peer cannot be answered, nor can a response that has already begun.
  if (error.code === 'ECONNRESET' || !socket.writable || socket.bytesWritten > 0) {
    socket.destroy(error)
    return
  }
  const told = refused[error.code ?? '']?.() ?? invalidRequest({ message: 'This is not valid HTTP.' })
  refuseRaw(socket, told.status, { error: told.code, message: told.sentence }, overTls)
}

const standing = { 'x-content-type-options': 'nosniff', 'cache-control': 'no-store' }
/** The headers of every answer: browsers must neither guess its content type nor cache it, and ask over TLS again if they did. */
export const standingHeaders: Readonly<Record<'plain' | 'tls', Readonly<Record<string, string>>>> = {
  plain: standing,
  tls: { ...standing, 'strict-transport-security': `max-age=${365 * 24 * 60 * 60}` },
}

/** Answers where there is no reply of Fastify, and closes the connection. */
export function refuseRaw(socket: Duplex, status: number, body: object, overTls = 'encrypted' in socket): void {
  const text = JSON.stringify(body)
  const length = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text), connection: 'close' }
  const headers = Object.entries({ ...standingHeaders[overTls ? 'tls' : 'plain'], ...length }).map(
    ([name, value]) => `${name}: ${value}\r\n`,
  )
  socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${headers.join('')}\r\n${text}`)
}

function send(request: FastifyRequest, reply: FastifyReply, error: AppError): void {
  const { status, sentence: detail } = error
  const body = errorBody(error, request.id)
  const problem = { type: 'about:blank', title: STATUS_CODES[status] ?? error.code, status, detail, ...body }
  const asked = request.headers.accept?.includes('application/problem+json') === true
  lingerAfter(request.raw)
  void reply.type(`application/${asked ? 'problem+' : ''}json`).send(JSON.stringify(asked ? problem : body))
}

interface Issue {
  readonly path: string
  readonly message: string
}

/** An answer repeats at most so many characters of a name that the sender chose. */
const longestName = 100

/** Says what is wrong with a request and where, in words for its sender. Ajv's own messages describe the schema instead. */
function issuesOf(errors: readonly FastifySchemaValidationError[], context = 'body'): Issue[] {
  // The errors of a union's branches come before the union's own error, and are unclear on their own.
  const unions = errors.filter(({ keyword }) => keyword === 'anyOf')
  const inside = (one: FastifySchemaValidationError, union: FastifySchemaValidationError): boolean =>
    one !== union && one.schemaPath.startsWith(`${union.schemaPath}/`)
  return errors
    .filter((one) => !unions.some((union) => inside(one, union)))
    .map((one) => {
      if (one.keyword !== 'anyOf') return issueOf(one, context)
      const branches = errors.filter((other) => inside(other, one) && other.keyword !== 'anyOf')
      // Report the branch that matched the value most deeply, because the sender most likely meant that branch.
      const deeper = branches.find(({ instancePath }) => instancePath.length > one.instancePath.length)
      return deeper ? issueOf(deeper, context) : { path: context + one.instancePath, message: either(branches) }
    })
}

function issueOf(error: FastifySchemaValidationError, context: string): Issue {
  const { keyword, params, message = 'is invalid' } = error
  const at = (name: unknown): string =>
    `${context}${error.instancePath}${typeof name === 'string' ? `/${name.slice(0, longestName)}` : ''}`
  switch (keyword) {
    case 'required':
      return { path: at(params['missingProperty']), message: 'is required' }
    case 'additionalProperties':
      return { path: at(params['additionalProperty']), message: 'is not a field of this request' }
    case 'const':
    case 'enum':
      return { path: at(undefined), message: either([error]) }
    default:
      return { path: at(undefined), message }
  }
}

/** Joins the requirements of a union's branches: `must be one of: reject, enqueue`, `must be string or must be null`. */
function either(branches: readonly FastifySchemaValidationError[]): string {
  const values = branches.flatMap(({ keyword, params }): unknown[] =>
    keyword === 'const' ? [params['allowedValue']] : keyword === 'enum' ? (params['allowedValues'] as unknown[]) : [],
  )
  const others = branches.filter(({ keyword }) => keyword !== 'const' && keyword !== 'enum')
  const words = [
    ...(values.length > 0 ? [`must be ${values.length > 1 ? 'one of: ' : ''}${values.join(', ')}`] : []),
    ...new Set(others.map(({ message = 'is invalid' }) => message)),
  ]
  return words.join(' or ') || 'is invalid'
}
