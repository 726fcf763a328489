import { randomUUID } from 'node:crypto'
import type { Server } from 'node:http'
import type { Socket } from 'node:net'
import Fastify, { LogController, type FastifyBaseLogger, type FastifySchemaCompiler } from 'fastify'
import swagger from '@fastify/swagger'
import { Ajv } from 'ajv'
import formats from 'ajv-formats'
import { access, accessOf } from './access.ts'
import type { App, TypeBox } from './app.ts'
import { createArrivals } from './arrival.ts'
import { AppError, notFound, unavailable } from '../errors.ts'
import { createLinkHost, linkHostKey } from '../kit/link/host.ts'
import { handleClientError, handleError, handleNotFound } from './errors.ts'
import { openapi } from './openapi.ts'
import { createStreamRegistry, streamRegistryKey, type StreamRegistry } from './streams.ts'

/** Headers larger than this are refused with 431: four times what any client of ours sends. */
const maxHeaderSize = 16 * 1024
/** Default for JSON bodies; routes that take more say so with their own `bodyLimit`. */
const bodyLimit = 1024 * 1024
/** Fastify waits for ever by default. Streaming answers are not affected: this bounds the arrival of the request. */
const requestTimeout = 30_000

export interface Listener {
  readonly app: App
  readonly streams: StreamRegistry
  /**
   * From now on nothing new is begun on links, and each answer is the last on its connection: whoever asks again is led to a
   * process that stays, if there is one behind this address. Until the listener closes it answers whatever comes all the same.
   */
  leave(): void
}

const stopping = (): AppError =>
  unavailable({ headers: { 'retry-after': '1' }, message: 'This server is stopping; try again.', retryable: true })

/** As Node's own. */
const requestLate = (): Error => Object.assign(new Error('late'), { code: 'ERR_HTTP_REQUEST_TIMEOUT' })

/** No id and no text of ours holds a NUL, and PostgreSQL has no form for one: it never gets further than here. */
const withNul = (url: string): AppError =>
  /^[^?]*%00/.test(url)
    ? notFound()
    : new AppError('invalid_request', 400, { message: 'The query holds a NUL character.' })

/** Builds one listener with everything that cuts across plugins: ids, limits, parsing, errors, OpenAPI, open streams. */
export async function createListener(name: string, log: FastifyBaseLogger, logRequests: boolean): Promise<Listener> {
  const compile = validators()
  const streams = createStreamRegistry()
  const links = createLinkHost({ log, streams, compile, parse: parseJson, logRequests, bodyLimit })
  const app = Fastify({
    loggerInstance: log,
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: 'request_id' }),
    bodyLimit,
    requestTimeout,
    // Whatever else asks for another protocol is answered as if it had not.
    // By itself Node keeps the first of two Authorization headers, and another hop may go by the second.
    http: { maxHeaderSize, joinDuplicateHeaders: true, shouldUpgradeCallback: (request) => links.wants(request) },
    // A logger of its own for every request costs more than what most requests log: whoever logs names the request.
    childLoggerFactory: (logger) => logger,
    genReqId: () => `req_${randomUUID().slice(24)}`,
    requestIdHeader: false,
    routerOptions: { maxParamLength: 1024 },
    // Their default bodies have another shape than every other error of ours.
    return503OnClosing: false,
    frameworkErrors: handleError,
    clientErrorHandler: handleClientError,
  }).withTypeProvider<TypeBox>()
  app.decorate(streamRegistryKey, streams)
  app.decorate(linkHostKey, links)
  let leaving = false
  const leave = (): void => {
    leaving = true
    links.leave()
  }
  let uploads = false
  const arrivals = createArrivals(requestTimeout, ({ raw }) => handleClientError(requestLate(), raw.socket))
  app.setValidatorCompiler(compile)
  app.setErrorHandler(handleError)
  app.setNotFoundHandler(handleNotFound)
  // Text is no body of ours: a route that takes one says so with a parser of its own, any other answers 415.
  app.removeContentTypeParser(['application/json', 'text/plain'])
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, async (_request: unknown, body: Buffer) =>
    parseJson(body),
  )
  await app.register(swagger, openapi(name))
  app.addHook('onRoute', (route) => {
    if (route.method === 'HEAD' || (Array.isArray(route.method) && route.method.every((m) => m === 'HEAD'))) return
    const who = accessOf(route.config)
    if (who === undefined) {
      throw new Error(`route ${String(route.method)} ${route.url} does not say who may call it; add access('...')`)
    }
    if (!arrivals.add(route)) return
    uploads = true
    app.server.requestTimeout = 0
  })
  app.addHook('onRequest', (request, reply, done) => {
    void reply.header('x-request-id', request.id)
    if (leaving) void reply.header('connection', 'close')
    if (streams.ending) return done(stopping())
    if (request.url.includes('%00')) return done(withNul(request.url))
    if (uploads) arrivals.begin(request)
    done()
  })
  if (logRequests) {
    app.addHook('onResponse', async (request, reply) => {
      const ms = Math.round(reply.elapsedTime * 10) / 10
      request.log.info(
        {
          request_id: request.id,
          method: request.method,
          route: request.routeOptions.url,
          status: reply.statusCode,
          ms,
        },
        'request',
      )
    })
  }
  const endQuietConnections = watchConnections(app.server)
  app.server.on('upgrade', links.upgrade)
  // close() waits for open responses, so streams are ended first, each with the terminal bytes its owner writes.
  app.addHook('preClose', async () => {
    leave()
    endQuietConnections()
    await streams.end()
    await links.end()
  })
  app.get('/openapi.json', { ...access('public'), schema: { hide: true } }, async () => app.swagger())
  return { app, streams, leave }
}

/**
 * Ends connections that carry no request once the server is closing: kept-alive ones, and those that never sent a whole
 * request, which Node counts as busy for up to 72 s.
 */
function watchConnections(server: Server): () => void {
  const quiet = new Set<Socket>()
  server.on('connection', (socket: Socket) => {
    quiet.add(socket)
    socket.once('close', () => quiet.delete(socket))
  })
  // It is somebody else's from now on, who ends it.
  server.on('upgrade', ({ socket }) => quiet.delete(socket))
  server.on('request', ({ socket }, response) => {
    quiet.delete(socket)
    response.once('close', () => {
      if (!socket.destroyed) quiet.add(socket)
    })
  })
  return () => {
    const end = (): void => quiet.forEach((socket) => socket.destroy())
    end()
    const sweep = setInterval(end, 50)
    server.once('close', () => clearInterval(sweep))
    if (!server.listening) clearInterval(sweep)
  }
}

/** Bodies are taken literally (`"60"` is not 60, unknown fields are errors); text from the URL and headers is coerced. */
function validators(): FastifySchemaCompiler<unknown> {
  const options = { useDefaults: true, allowUnionTypes: true, strict: false } as const
  const literal = new Ajv(options)
  const coercing = new Ajv({ ...options, coerceTypes: 'array' })
  for (const ajv of [literal, coercing]) formats.default(ajv)
  return ({ schema, httpPart }) => (httpPart === 'body' ? literal : coercing).compile(schema as object)
}

/** Deeper JSON parses but overflows the stack when it is written again. */
const maxJsonDepth = 64

/** Parses a JSON body. An empty one is `undefined`: the contract has routes whose body is optional. */
function parseJson(body: Buffer): unknown {
  if (body.length === 0) return undefined
  // Each level takes a byte to open it and one to close it.
  if (body.length > 2 * maxJsonDepth && jsonDepth(body) > maxJsonDepth) {
    throw new AppError('invalid_request', 400, { message: `The body nests deeper than ${maxJsonDepth} levels.` })
  }
  try {
    return JSON.parse(body.toString('utf8'), guardPrototype(body))
  } catch {
    throw new AppError('invalid_request', 400, { message: 'The body is not valid JSON.' })
  }
}

// The reviver costs a call per key, so it is only used when the bytes mention the dangerous name at all.
function guardPrototype(body: Buffer): ((key: string, value: unknown) => unknown) | undefined {
  if (!body.includes('__proto__') && !body.includes('\\u005')) return undefined
  return (key, value) => (key === '__proto__' ? undefined : value)
}

/** Nesting depth of JSON text, counted without parsing it. */
function jsonDepth(body: Buffer): number {
  let depth = 0
  let deepest = 0
  let inString = false
  for (let i = 0; i < body.length; i++) {
    const c = body[i]
    if (inString) {
      if (c === 0x5c) i++
      else if (c === 0x22) inString = false
    } else if (c === 0x22) inString = true
    else if (c === 0x7b || c === 0x5b) deepest = Math.max(deepest, ++depth)
    else if (c === 0x7d || c === 0x5d) depth--
  }
  return deepest
}
