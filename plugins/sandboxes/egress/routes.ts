import type { IncomingHttpHeaders } from 'node:http'
import { Readable } from 'node:stream'
import { Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Agent, type Dispatcher } from 'undici'
import { access, type App, type AppError, failures, isAppError, stream } from '#kernel'
import { exchange } from '#kit'
import { whileCalled, type WorkerAuth } from '../hub/auth.ts'
import { refusals, tags, takeStreams } from '../hub/routes.ts'
import { onlyModel } from './model-guard.ts'
import type { ModelServer } from './model-servers.ts'
import type { RemoteWorker } from '../hub/worker.ts'
import { sandboxErrors } from '../errors.ts'

/** A model may think for minutes before its first byte; the run's own deadline ends it sooner. */
const firstByteMs = 300_000
const connectMs = 10_000

export interface Egress {
  /** In a scope of their own: their bodies are streams. */
  routes(app: App): Promise<void>
  close(): Promise<void>
}

/** Forwards requests out of sandboxes to model servers and external MCP servers, with credentials that only the runner has. */
export function createEgress(auth: WorkerAuth, servers: ReadonlyMap<string, ModelServer>): Egress {
  const agent = new Agent({
    // As many connections as there are open streams; an abort must close the socket, or the model goes on generating.
    connections: null,
    pipelining: 1,
    allowH2: false,
    connect: { timeout: connectMs },
    headersTimeout: firstByteMs,
    // An MCP stream may be silent for as long as its server has nothing to say.
    bodyTimeout: 0,
  })
  return {
    async routes(app) {
      takeStreams(app)
      auth.protect(app, credentialOf)
      modelRoutes(app, auth, agent, servers)
      mcpServerRoutes(app, auth, agent)
    },
    close: () => agent.destroy(),
  }
}

/** The worker's token. A vendor's process sends it as its API key, which is how it was given it. */
function credentialOf({ headers }: FastifyRequest): string | undefined {
  const key = headers['x-api-key']
  return headers.authorization ?? (typeof key === 'string' ? `Bearer ${key}` : undefined)
}

/** Headers that go on to a model server. Those that name an organization or a project do not: the key decides these. */
const modelRequestHeaders = [
  'accept',
  'accept-encoding',
  'anthropic-beta',
  'anthropic-version',
  'idempotency-key',
  'openai-beta',
  'user-agent',
] as const

const ModelParams = Type.Object({
  id: Type.String({ maxLength: 128 }),
  provider: Type.String({ maxLength: 64 }),
  '*': Type.String(),
})
/** `/runner/worker/{id}/models/{provider}`. */
const segmentsBefore = 5

/** Model calls of workers: a sandbox has neither keys nor a network. */
function modelRoutes(
  app: App,
  auth: WorkerAuth,
  dispatcher: Dispatcher,
  servers: ReadonlyMap<string, ModelServer>,
): void {
  const schema = {
    tags,
    summary: 'Call a model server',
    description:
      "Stands for the provider's API root. The runner adds the key; the worker's own token may come as `x-api-key`, too. The body is JSON and names the model of the run under way.",
    params: ModelParams,
    response: {
      200: { description: 'As the model server answers, streamed.', content: { '*/*': { schema: Type.Unknown() } } },
      ...failures(
        ...refusals,
        sandboxErrors.unknownModelProvider,
        sandboxErrors.unknownModelCall,
        sandboxErrors.modelNotAllowed,
        sandboxErrors.noRunUnderWay,
        sandboxErrors.bodyTooLarge,
        sandboxErrors.modelServerUnreachable,
        sandboxErrors.modelKeyRefused,
      ),
    },
  }
  const options = { ...access('worker'), exposeHeadRoute: false, schema }
  for (const method of ['GET', 'POST'] as const) {
    app.route({
      method,
      url: '/runner/worker/:id/models/:provider/*',
      ...options,
      async handler(request, reply) {
        const { worker } = auth.of(request)
        const server = servers.get(request.params.provider)
        if (!server?.tenants.allows(worker.tenantId)) throw sandboxErrors.unknownModelProvider()
        const below = pathBelow(request.raw.url ?? '', segmentsBefore)
        // One vendor's client is given the address without /v1 and adds that itself.
        const call = below?.path.replace(/^v1\//, '')
        if (!below || !call || !server.calls.test(`${request.method} ${call}`)) throw sandboxErrors.unknownModelCall()
        const model = method === 'POST' ? modelOf(worker, request.params.provider) : undefined
        const path = `${server.base.pathname.replace(/\/+$/, '')}/${call}${below.query}`
        return forward(request, reply, {
          dispatcher,
          origin: server.base.origin,
          path,
          headers: {
            ...pick(request.headers, modelRequestHeaders),
            ...(model === undefined ? {} : json),
            ...server.headers,
          },
          signal: whileCalled(reply, worker.closed),
          model,
          unreachable: sandboxErrors.modelServerUnreachable,
          refused: sandboxErrors.modelKeyRefused,
        })
      },
    })
  }
}

const json = { 'content-type': 'application/json' }

/** The model that a worker may call now, as its provider calls it. */
function modelOf({ model }: RemoteWorker, provider: string): string {
  if (model === undefined) throw sandboxErrors.noRunUnderWay()
  const slash = model.indexOf('/')
  if (model.slice(0, slash) === provider) return model.slice(slash + 1)
  throw sandboxErrors.modelNotAllowed({ message: `The run under way may call ${model} and no other model.` })
}

/** Segments that mean the same to everybody who reads them: nothing encoded, nothing that leads elsewhere. */
const segment = /^(?!\.{1,2}$)[\w.~:@!$&'()*+,=-]+$/
const query = /^(\?[\x21\x24-\x7e]*)?$/

/**
 * The rest of a request's target behind its first `skip` segments, with its query. Undefined when the rest could lead out of
 * the path that it is appended to.
 */
function pathBelow(target: string, skip: number): { readonly path: string; readonly query: string } | undefined {
  // An absolute-form target names a host of its own.
  if (!target.startsWith('/')) return undefined
  const mark = target.indexOf('?')
  const [path, rest] = mark < 0 ? [target, ''] : [target.slice(0, mark), target.slice(mark)]
  const segments = path.split('/').slice(skip + 1)
  if (segments.length === 0 || !segments.every((one) => segment.test(one)) || !query.test(rest)) return undefined
  return { path: segments.join('/'), query: rest }
}

/** Headers of the MCP streamable HTTP transport that go on to an MCP server. */
const mcpRequestHeaders = [
  'accept',
  'accept-encoding',
  'content-type',
  'last-event-id',
  'mcp-protocol-version',
  'mcp-session-id',
  'user-agent',
] as const

const McpParams = Type.Object({ id: Type.String({ maxLength: 128 }), name: Type.String({ maxLength: 64 }) })

/** The external MCP servers of the run under way, each with the headers that its entry has. */
function mcpServerRoutes(app: App, auth: WorkerAuth, dispatcher: Dispatcher): void {
  const schema = {
    tags,
    summary: 'Speak with an external MCP server of the run',
    description: 'Streamable HTTP of the Model Context Protocol. The runner adds the credentials.',
    params: McpParams,
    response: {
      200: { description: 'As the MCP server answers, streamed.', content: { '*/*': { schema: Type.Unknown() } } },
      ...failures(
        ...refusals,
        sandboxErrors.unknownMcpServer,
        sandboxErrors.bodyTooLarge,
        sandboxErrors.mcpServerUnreachable,
        sandboxErrors.mcpServerRefused,
      ),
    },
  }
  const options = { ...access('worker'), exposeHeadRoute: false, schema }
  for (const method of ['GET', 'POST', 'DELETE'] as const) {
    app.route({
      method,
      url: '/runner/worker/:id/mcp-servers/:name',
      ...options,
      async handler(request, reply) {
        const { worker } = auth.of(request)
        const server = worker.mcpServer(request.params.name)
        if (!server || !URL.canParse(server.url)) throw sandboxErrors.unknownMcpServer()
        const url = new URL(server.url)
        return forward(request, reply, {
          dispatcher,
          origin: url.origin,
          path: url.pathname + url.search,
          headers: { ...pick(request.headers, mcpRequestHeaders), ...lowerCased(server.headers) },
          signal: whileCalled(reply, worker.closed),
          unreachable: sandboxErrors.mcpServerUnreachable,
          refused: sandboxErrors.mcpServerRefused,
        })
      },
    })
  }
}

/** Names in lower case, so that a configured header replaces the worker's and is not sent beside it. */
const lowerCased = (headers: Readonly<Record<string, string>> = {}): Record<string, string> =>
  Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))

/** Room for a prompt with images and files; model servers take no more either. */
const maxRequestBytes = 32 * 1024 * 1024

interface Destination {
  readonly dispatcher: Dispatcher
  readonly origin: string
  /** With its query. */
  readonly path: string
  readonly headers: Readonly<Record<string, string>>
  readonly signal: AbortSignal
  /** The one model that the body may name; its form is JSON then, and not compressed. */
  readonly model?: string | undefined
  /** The error when it cannot be reached, or its answer is cut before it begins. */
  readonly unreachable: (options: { readonly cause: unknown }) => AppError
  /** The error when it refuses the runner's credentials. Its own answer about them is not shown to the worker. */
  readonly refused: () => AppError
}

/** Sends a worker's request on and its answer back, both as streams that wait for their readers. */
async function forward(request: FastifyRequest, reply: FastifyReply, to: Destination): Promise<void> {
  const left = new AbortController()
  const signal = AbortSignal.any([to.signal, left.signal])
  const upstream = await exchange(
    to.dispatcher,
    {
      origin: to.origin,
      path: to.path,
      method: request.method as Dispatcher.HttpMethod,
      headers: { ...to.headers, ...lengthOf(request) },
      body: bodyOf(request, to.model),
    },
    { signal, lost: (cause) => (isAppError(cause) ? cause : to.unreachable({ cause })) },
  )
  if (upstream.status === 401) {
    left.abort()
    throw to.refused()
  }
  const { 'content-type': type } = upstream.headers
  const contentType = typeof type === 'string' ? type : 'application/octet-stream'
  const headers = pick(upstream.headers, answerHeaders)
  return stream(request, reply, { status: upstream.status, contentType, headers }, () => upstream.body)
}

function lengthOf({ headers }: FastifyRequest): Record<string, string> {
  const length = headers['content-length']
  if (length === undefined) return {}
  if (Number(length) > maxRequestBytes) throw sandboxErrors.bodyTooLarge()
  return { 'content-length': length }
}

function bodyOf({ method, headers, raw }: FastifyRequest, model: string | undefined): Readable | null {
  const empty = headers['transfer-encoding'] === undefined && (headers['content-length'] ?? '0') === '0'
  if (method === 'GET' || empty) {
    if (model === undefined) return null
    throw sandboxErrors.modelNotAllowed({ message: `Name the model of the run, ${model}.` })
  }
  const body = bounded(raw.iterator({ destroyOnReturn: false }))
  return Readable.from(model === undefined ? body : onlyModel(body, model), { objectMode: false })
}

async function* bounded(body: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let size = 0
  for await (const chunk of body) {
    size += chunk.length
    if (size > maxRequestBytes) throw sandboxErrors.bodyTooLarge()
    yield chunk
  }
}

/** Headers of an answer that reach the worker. Cookies and the name of the account are not the worker's. */
const answerHeaders = [
  'allow',
  'content-encoding',
  'mcp-session-id',
  'request-id',
  'retry-after',
  'retry-after-ms',
] as const

/** The headers of these names that are set, once each. */
function pick(
  headers: IncomingHttpHeaders | Readonly<Record<string, string | string[] | undefined>>,
  names: readonly string[],
): Record<string, string> {
  const picked: Record<string, string> = {}
  for (const name of names) {
    const value = headers[name]
    if (typeof value === 'string') picked[name] = value
  }
  return picked
}
