import Fastify, { type FastifyBaseLogger, LogController } from 'fastify'
import type { ErrorTable } from '../contracts/errors.ts'
import { peerLinks } from '../kit/link/host.ts'
import { provenCallers } from '../kit/proof.ts'
import { followTls, liveTls, type LiveTls } from '../kit/tls.ts'
import { WebGuard } from '../kit/web-guard.ts'
import { remedy } from '../problems.ts'
import { declaredAccess } from './access.ts'
import type { App, TypeBox } from './app.ts'
import { errorAnswers, handleClientError, handleError } from './errors.ts'
import type { ListenerConfig } from './listener-config.ts'
import { openapiDocument } from './openapi.ts'
import { jsonBodies, requestArrival, requestLog, requestNames, standingHeaders } from './requests.ts'
import { openStreams, quietConnections } from './streams.ts'

/** The listener that alone shows metrics and documents, in a role that declares it and switches it on. */
export const operationsListener = 'operations'

/** The listeners of a role that are switched on, in the order in which it declares them: outermost first. */
export class Listeners {
  readonly urls: Record<string, string> = {}
  readonly #declared: Readonly<Record<string, ListenerConfig>>
  readonly #errors: readonly ErrorTable[]
  readonly #on = new Map<string, Listener>()
  readonly #closings: { readonly name: string; readonly fn: () => Promise<void> }[] = []

  /** `errors`: whatever the role's plugins may answer. */
  constructor(declared: Readonly<Record<string, ListenerConfig>>, errors: readonly ErrorTable[]) {
    this.#declared = declared
    this.#errors = errors
  }

  /** `guarded`: those whose callers a plugin has show who they are. */
  async create(log: FastifyBaseLogger, logRequests: boolean, guarded: ReadonlySet<string>): Promise<void> {
    for (const [name, config] of Object.entries(this.#declared)) {
      if (config.port === undefined) continue
      // Loaded on demand: it is half of what the kernel loads, and a role that opens no port does not need it.
      const { createListener } = await import('./listener.ts')
      const named = { log: log.child({ listener: name }), guarded: guarded.has(name) }
      const tls = config.tls?.cert ? followTls(config.tls, named.log) : undefined
      const options = { ...named, logRequests, errors: this.#errors, tls }
      this.#on.set(name, await createListener(name, config, options))
    }
    if (this.#on.size > 0) await this.#document()
  }

  /** Each listener shows its own document, unless the role has one for its operators: that shows them all. */
  async #document(): Promise<void> {
    const { serveDocument } = await import('./openapi.ts')
    const { [operationsListener]: operations, ...others } = this.apps
    if (operations) serveDocument(operations, '/openapi.json', operations)
    for (const [name, app] of Object.entries(others)) {
      if (operations) serveDocument(operations, `/openapi/${name}.json`, app)
      else serveDocument(app, '/openapi.json', app)
    }
  }

  get names(): string[] {
    return [...this.#on.keys()]
  }
  get apps(): Record<string, App> {
    return Object.fromEntries([...this.#on].map(([name, { app }]) => [name, app]))
  }
  /** The one that closes last. */
  get innermost(): App | undefined {
    return [...this.#on.values()].at(-1)?.app
  }
  /** Undefined when it is switched off; throws when nobody declared it. */
  find(name: string): App | undefined {
    if (!(name in this.#declared)) throw new Error(`this role declares no listener '${name}'; add it under listeners`)
    return this.#on.get(name)?.app
  }
  urlOf(name: string): string {
    const url = this.urls[name]
    if (url === undefined) throw new Error(`listener '${name}' is not listening (yet)`)
    return url
  }
  beforeClose(name: string, fn: () => Promise<void>): void {
    this.#closings.push({ name, fn })
  }

  async ready(): Promise<void> {
    for (const { app } of this.#on.values()) await app.ready()
  }
  async listen(name: string): Promise<void> {
    this.urls[name] = await this.#on.get(name)!.listen()
  }
  async close(failed: (error: unknown) => void): Promise<void> {
    // All leave before any of them closes: clients then stop asking a process that may refuse new work for a long time.
    for (const { leave } of this.#on.values()) leave()
    // One after the other: a request under way in one may still need the next to finish.
    for (const [name, { app }] of this.#on) {
      const closings = this.#closings.filter((closing) => closing.name === name)
      await Promise.all(closings.map(({ fn }) => fn().catch(failed)))
      await app.close().then(undefined, failed)
    }
  }
}

/** Headers larger than this are refused with 431: four times what any client of ours sends. */
const maxHeaderSize = 16 * 1024
/** Default for JSON bodies; routes that take more say so with their own `bodyLimit`. */
const bodyLimit = 1024 * 1024
/** Fastify waits for ever by default. Streaming answers are not affected: this bounds the arrival of the request. */
const requestTimeout = 30_000

export interface ListenerOptions {
  readonly log: FastifyBaseLogger
  readonly logRequests: boolean
  /** For its OpenAPI document. */
  readonly errors: readonly ErrorTable[]
  /** A plugin has its callers show who they are. */
  readonly guarded: boolean
  /** Its certificates, which it closes with itself. Without them it speaks plain HTTP. */
  readonly tls?: LiveTls | undefined
}

export interface Listener {
  readonly app: App
  /** Opens the port, and resolves to the base URL. */
  listen(): Promise<string>
  /**
   * From now on nothing new is begun on links, and each answer is the last on its connection, so that the next request of a
   * client reaches a process that stays, if there is one behind this address. Requests are answered until the listener closes.
   */
  leave(): void
}

/** Builds one listener with everything that all plugins share. It closes in the order of this list. */
export async function createListener(
  name: string,
  config: ListenerConfig,
  { log, logRequests, errors, guarded, tls }: ListenerOptions,
): Promise<Listener> {
  const requestCert = config.tls?.requestClientCert === true
  const app = fastifyOf(log, tls, requestCert)
  const leave = new AbortController()
  const leaving = leave.signal
  app.addHook('preClose', async () => leave.abort())
  await app
    .register(errorAnswers)
    .register(provenCallers, { certificates: requestCert, guarded })
    .register(jsonBodies)
    .register(declaredAccess)
    .register(openapiDocument, { listener: name, errors })
    .register(quietConnections)
    .register(liveTls, { tls })
    .register(openStreams)
    .register(peerLinks, { leaving, logRequests })
    .register(requestArrival, { leaving, guard: new WebGuard(config) })
  if (logRequests) await app.register(requestLog)
  return { app, listen: () => listen(app, config), leave: () => leave.abort() }
}

function fastifyOf(log: FastifyBaseLogger, tls: LiveTls | undefined, requestCert: boolean): App {
  // By itself Node keeps the first of two Authorization headers, and another hop may go by the second.
  const http = { maxHeaderSize, joinDuplicateHeaders: true }
  // A client without a certificate is told so, by an answer: what it may have without one is answered, too.
  const asked = { requestCert, rejectUnauthorized: false }
  return Fastify({
    loggerInstance: log,
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: 'request_id' }),
    bodyLimit,
    requestTimeout,
    ...((tls ? { https: { ...http, ...tls.files, ...asked } } : { http }) as { http: typeof http }),
    ...requestNames,
    routerOptions: { maxParamLength: 1024 },
    // The default bodies of the next three have another shape than our errors.
    return503OnClosing: false,
    frameworkErrors: (error, request, reply) => handleError(error, request, reply.headers(standingHeaders)),
    clientErrorHandler: handleClientError,
  }).withTypeProvider<TypeBox>()
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
