import type { Socket } from 'node:net'
import Fastify, { LogController, type FastifyBaseLogger } from 'fastify'
import type { Compilers } from '../kit/compilers.ts'
import { peerLinks } from '../kit/link/host.ts'
import { proofsOf, provenCallers } from '../kit/proof.ts'
import { slowReaders } from '../kit/slow-readers.ts'
import { type LiveTls, liveTls } from '../kit/tls.ts'
import { WebGuard } from '../kit/web-guard.ts'
import type { ErrorTable } from '../contracts/errors.ts'
import { unauthorized } from '../contracts/http-errors.ts'
import { remedy } from '../problems.ts'
import { declaredAccess } from './access.ts'
import type { App, TypeBox } from './app.ts'
import { errorAnswers, handleClientError, handleError } from './errors.ts'
import type { ListenerConfig } from './listener-config.ts'
import { openapiDocument } from './openapi.ts'
import { jsonBodies, requestArrival, requestLog, requestNames, sayStanding } from './requests.ts'
import { openStreams, quietConnections } from './streams.ts'

/** Larger headers are refused with 431. The limit is four times what any of our clients sends. */
const maxHeaderSize = 16 * 1024
/** The default limit of JSON bodies. Routes that accept more set their own `bodyLimit`. */
const bodyLimit = 1024 * 1024
/** Milliseconds for a request to arrive; Fastify's default has no limit. Streaming answers are not affected. */
const requestTimeout = 30_000

interface ListenerOptions {
  readonly log: FastifyBaseLogger
  readonly logRequests: boolean
  /** The errors for the OpenAPI document of the listener. */
  readonly errors: readonly ErrorTable[]
  readonly compilers: Compilers
  /** True when a plugin authenticates the callers of the listener. */
  readonly guarded: boolean
  /** The certificates, which the listener closes with itself. Undefined: plain HTTP. */
  readonly tls?: LiveTls | undefined
}

export interface Listener {
  readonly app: App
  /** Opens the port, and resolves to the base URL. */
  listen(): Promise<string>
  /**
   * From now on links begin nothing new, and each answer is the last on its connection. A client's next request then reaches a process that stays,
   * if one shares this address. Requests are answered until the listener closes.
   */
  leave(): void
}

/** Builds one listener with everything that all plugins share. It closes in the order of this list. */
export async function createListener(
  name: string,
  config: ListenerConfig,
  { log, logRequests, errors, guarded, tls, compilers }: ListenerOptions,
): Promise<Listener> {
  const requestCert = config.tls?.requestClientCert === true
  const app = fastifyOf(log, tls, requestCert, compilers)
  const leave = new AbortController()
  const leaving = leave.signal
  const connections = new Set<Socket>()
  app.addHook('preClose', async () => leave.abort())
  await app
    .register(errorAnswers)
    .register(provenCallers, { certificates: requestCert, guarded })
    .register(jsonBodies, compilers)
    .register(declaredAccess)
    .register(openapiDocument, { listener: name, errors })
    .register(quietConnections, { connections })
    .register(slowReaders, { connections })
    .register(liveTls, { tls })
    .register(openStreams)
    .register(peerLinks, { leaving, logRequests })
    .register(requestArrival, { leaving, guard: new WebGuard(config) })
  if (logRequests) await app.register(requestLog)
  return { app, listen: () => listen(app, config), leave: () => leave.abort() }
}

function fastifyOf(
  log: FastifyBaseLogger,
  tls: LiveTls | undefined,
  requestCert: boolean,
  { serializers }: Compilers,
): App {
  // Without this Node keeps the first of two Authorization headers, while another hop may use the second.
  const http = { maxHeaderSize, joinDuplicateHeaders: true }
  // A client without a certificate gets an HTTP answer that says so, because some requests need no certificate.
  const asked = { requestCert, rejectUnauthorized: false }
  const app: App = Fastify({
    loggerInstance: log,
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: 'request_id' }),
    bodyLimit,
    requestTimeout,
    ...((tls ? { https: { ...http, ...tls.files, ...asked } } : { http }) as { http: typeof http }),
    ...requestNames,
    routerOptions: { maxParamLength: 1024 },
    schemaController: { compilersFactory: { buildSerializer: serializers } },
    // The default bodies of the next three differ from the form of our errors.
    return503OnClosing: false,
    // No hook has seen these requests, so whatever all requests must prove was not asked for yet.
    frameworkErrors(error, request, reply) {
      sayStanding(request, reply)
      handleError(proofsOf(app).demanded ? unauthorized() : error, request, reply)
    },
    clientErrorHandler: handleClientError,
  }).withTypeProvider<TypeBox>()
  return app
}

async function listen(app: App, config: ListenerConfig): Promise<string> {
  const { host, port, orFree, origin } = config
  try {
    return await app.listen({ host, port: port!, backlog: 4096 })
  } catch (error) {
    if (orFree && port !== 0 && (error as NodeJS.ErrnoException).code === 'EADDRINUSE') {
      const url = await listen(app, { ...config, port: 0 })
      app.log.warn(`port ${port} is in use: listening on ${url}${remedy(origin)}`)
      return url
    }
    const reasons: Readonly<Record<string, string>> = {
      EADDRINUSE: 'is in use by another process',
      EACCES: 'is not open to this user',
      EADDRNOTAVAIL: 'is no address of this machine',
    }
    const reason = reasons[(error as NodeJS.ErrnoException).code ?? '']
    if (reason === undefined) throw error
    throw new Error(`${host}:${port} ${reason}${remedy(origin)}`, { cause: error })
  }
}
