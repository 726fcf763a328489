import { setImmediate as turn } from 'node:timers/promises'
import { Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Agent, type Dispatcher } from 'undici'
import { access, type App, failures } from '#kernel'
import type { McpServer } from '#contracts/mcp-servers'
import { guardedLookup, outboundUrl, permittedAddresses, systemResolve } from '#kit/outbound'
import { createAtOnce, whileCalled, type WorkerAuth } from '../hub/auth.ts'
import { Gathered, parseJson, takeStreams } from '#kit'
import { refusals, tags } from '../hub/routes.ts'
import { forward, pick } from './forward.ts'
import type { ModelCalls } from './calls.ts'
import type { ModelServer } from './model-servers.ts'
import type { RemoteWorker } from '../hub/worker.ts'
import { sandboxErrors } from '../errors.ts'

/** A model may think for minutes before its first byte; the run's own deadline ends it sooner. */
const firstByteMs = 300_000
const connectMs = 10_000

export interface Egress {
  /** Needs a scope of its own, because bodies are streams. */
  routes(app: App): Promise<void>
  close(): Promise<void>
}

/** Forwards requests from sandboxes to model servers and external MCP servers, with credentials that only the runner has. */
export function createEgress(auth: WorkerAuth, servers: ReadonlyMap<string, ModelServer>): Egress {
  const connecting = (permits?: (address: string) => boolean): Agent =>
    new Agent({
      // One connection per open stream. An aborted call must close its socket, because otherwise the model would continue to generate.
      connections: null,
      pipelining: 1,
      allowH2: false,
      connect: { timeout: connectMs, ...(permits ? { lookup: guardedLookup(systemResolve, permits) } : {}) },
      headersTimeout: firstByteMs,
      // An MCP stream may be silent for a long time.
      bodyTimeout: 0,
    })
  const agent = connecting()
  const guarded = { public: connecting(permittedAddresses.public), network: connecting(permittedAddresses.network) }
  const holding = createHolding()
  // Both listeners have these routes, and count together.
  const countList = createAtOnce(listsAtOnce, sandboxErrors.tooManyModelLists)
  const countRequest = createAtOnce(mcpRequestsAtOnce, sandboxErrors.tooManyMcpRequests)
  return {
    async routes(app) {
      takeStreams(app)
      auth.protect(app, credentialOf)
      modelRoutes(app, auth, { dispatcher: agent, servers, countList })
      const dispatcherFor = ({ addresses }: McpServer): Dispatcher => (addresses ? guarded[addresses] : agent)
      mcpServerRoutes(app, auth, { holding, countRequest, dispatcherFor })
    },
    async close() {
      await Promise.all([agent, guarded.public, guarded.network].map((one) => one.destroy()))
    },
  }
}

/** Finds the worker's token. The process of a vendor was given the token as its API key, so it sends it in that header. */
function credentialOf({ headers }: FastifyRequest): string | undefined {
  const key = headers['x-api-key']
  return headers.authorization ?? (typeof key === 'string' ? `Bearer ${key}` : undefined)
}

/** The headers that reach a model server. Those of an organization or project are left out, because the runner's key decides them. */
const modelRequestHeaders = [
  'accept',
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
/** How many lists of models a worker may ask for at once. Calls are counted by the run. */
const listsAtOnce = 16
/** The segments of `/runner/worker/{id}/models/{provider}`. */
const segmentsBefore = 5

interface ModelServices {
  readonly dispatcher: Dispatcher
  readonly servers: ReadonlyMap<string, ModelServer>
  readonly countList: ReturnType<typeof createAtOnce>
}

/** Routes for the model calls of workers, because a sandbox has neither keys nor a network. */
function modelRoutes(app: App, auth: WorkerAuth, { dispatcher, servers, countList }: ModelServices): void {
  const schema = {
    tags,
    summary: 'Call a model server',
    description:
      "Acts as the provider's API root. The runner adds the key; the worker's own token may also be sent as `x-api-key`. The body is JSON and names the model of the run under way.",
    params: ModelParams,
    response: {
      200: { description: 'The answer of the model server, streamed.', content: { '*/*': { schema: Type.Unknown() } } },
      ...failures(
        ...refusals,
        sandboxErrors.unknownModelProvider,
        sandboxErrors.unknownModelCall,
        sandboxErrors.modelNotAllowed,
        sandboxErrors.modelCallInBackground,
        sandboxErrors.noRunUnderWay,
        sandboxErrors.runBudgetSpent,
        sandboxErrors.tooManyModelCalls,
        sandboxErrors.tooManyModelLists,
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
        // One vendor's client adds /v1 to the address itself.
        const name = below?.path.replace(/^v1\//, '')
        if (!below || !name || !server.calls.test(`${method} ${name}`)) throw sandboxErrors.unknownModelCall()
        const path = `${server.base.pathname.replace(/\/+$/, '')}/${name}${below.query}`
        const calls = method === 'POST' ? callsOf(worker) : undefined
        if (!calls) countList(worker, reply)
        const model = calls?.modelAt(request.params.provider)
        // The caller has left already, so `close` will not come again and the request would never end.
        if (reply.raw.destroyed) throw sandboxErrors.callerLeft()
        const call = server.free.test(`${method} ${name}`) ? undefined : calls?.begin(server.usageOf)
        if (call) reply.raw.once('close', () => call.over())
        return forward(request, reply, {
          dispatcher,
          origin: server.base.origin,
          path,
          headers: {
            ...pick(request.headers, modelRequestHeaders),
            ...(model === undefined ? {} : json),
            ...server.headers,
          },
          signal: whileCalled(reply, worker.closed, ...(calls ? [calls.signal] : [])),
          model,
          call,
          unreachable: sandboxErrors.modelServerUnreachable,
          refused: sandboxErrors.modelKeyRefused,
        })
      },
    })
  }
}

/** The runner reads the usage from the answer, so the answer must not be compressed. */
const json = { 'content-type': 'application/json', 'accept-encoding': 'identity' }

/** The model calls of the worker's present run. AppError 409 `no_run_under_way`. */
function callsOf({ calls }: RemoteWorker): ModelCalls {
  if (!calls) throw sandboxErrors.noRunUnderWay()
  return calls
}

/** A path segment that every server reads alike: no encoded characters, no `.` or `..`. */
const segment = /^(?!\.{1,2}$)[\w.~:@!$&'()*+,=-]+$/
const query = /^(\?[\x21\x24-\x7e]*)?$/

/**
 * The rest of a request's target behind its first `skip` segments, with its query. Undefined when the rest could lead out of
 * the path that it is appended to.
 */
function pathBelow(target: string, skip: number): { readonly path: string; readonly query: string } | undefined {
  // A target in absolute form names a host of its own.
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

/** Of a worker to one server of its run: one is the stream of the server, the others are parallel calls of tools. */
const mcpRequestsAtOnce = 32

const McpParams = Type.Object({ id: Type.String({ maxLength: 128 }), name: Type.String({ maxLength: 64 }) })

interface McpServices {
  readonly holding: ReturnType<typeof createHolding>
  readonly countRequest: ReturnType<typeof createAtOnce>
  readonly dispatcherFor: (server: McpServer) => Dispatcher
}

/** Routes to the external MCP servers of the present run. Each request gets the headers of the server's entry. */
function mcpServerRoutes(app: App, auth: WorkerAuth, { holding, countRequest, dispatcherFor }: McpServices): void {
  const schema = {
    tags,
    summary: 'Speak with an external MCP server of the run',
    description: 'Streamable HTTP of the Model Context Protocol. The runner adds the credentials.',
    params: McpParams,
    response: {
      200: { description: 'The answer of the MCP server, streamed.', content: { '*/*': { schema: Type.Unknown() } } },
      ...failures(
        ...refusals,
        sandboxErrors.unknownMcpServer,
        sandboxErrors.toolNotAllowed,
        sandboxErrors.mcpRequestTooLarge,
        sandboxErrors.tooManyMcpRequests,
        sandboxErrors.noRunUnderWay,
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
        const reached = worker.mcpServer(request.params.name)
        if (!reached || !URL.canParse(reached.server.url)) throw sandboxErrors.unknownMcpServer()
        const { server, signal } = reached
        const url = new URL(server.url)
        if (!mayBeAsked(server)) throw sandboxErrors.mcpServerUnreachable()
        countRequest(server, reply)
        const { tools } = server
        return forward(request, reply, {
          dispatcher: dispatcherFor(server),
          origin: url.origin,
          path: url.pathname + url.search,
          headers: { ...pick(request.headers, mcpRequestHeaders), ...lowerCased(server.headers) },
          signal: whileCalled(reply, worker.closed, signal),
          look: tools && ((body) => onlyTools(body, tools, holding(worker, reply))),
          unreachable: sandboxErrors.mcpServerUnreachable,
          refused: sandboxErrors.mcpServerRefused,
        })
      },
    })
  }
}

/** A literal address needs no DNS look-up, so the guard in the look-up would not check it. */
const mayBeAsked = ({ url, addresses }: McpServer): boolean =>
  !addresses ||
  typeof outboundUrl(url, { permits: permittedAddresses[addresses], schemes: ['http', 'https'] }) !== 'string'

/** Lower-case names, so that a configured header replaces the worker's instead of being sent beside it. */
const lowerCased = (headers: Readonly<Record<string, string>> = {}): Record<string, string> =>
  Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))

/** A request that is looked into is parsed in one go, while nothing else happens in this process. */
const maxLookedInto = 1024 * 1024
/** Of a worker, until they are answered. */
const maxHeldBytes = 4 * maxLookedInto

/** Counts the bytes of each worker's requests that are looked into. AppError 429 `too_many_mcp_requests`. */
function createHolding() {
  const held = new WeakMap<RemoteWorker, number>()
  return (worker: RemoteWorker, { raw }: FastifyReply): ((bytes: number) => void) => {
    let own = 0
    raw.once('close', () => held.set(worker, (held.get(worker) ?? 0) - own))
    return (bytes) => {
      if (raw.destroyed) throw sandboxErrors.callerLeft()
      const all = (held.get(worker) ?? 0) + bytes
      if (all > maxHeldBytes) throw sandboxErrors.tooManyMcpRequests({ headers: { 'retry-after': '1' } })
      held.set(worker, all)
      own += bytes
    }
  }
}

/**
 * The messages of a request to an MCP server, if they call only these tools. They are serialized again, because two JSON parsers could find two
 * different tool names in the worker's own bytes.
 */
async function onlyTools(
  body: AsyncIterable<Buffer>,
  tools: NonNullable<McpServer['tools']>,
  hold: (bytes: number) => void,
): Promise<Buffer> {
  const whole = new Gathered()
  for await (const chunk of body) {
    if (whole.size + chunk.length > maxLookedInto) throw sandboxErrors.mcpRequestTooLarge()
    hold(chunk.length)
    whole.add(chunk)
  }
  const messages = messagesIn(whole.bytes)
  const allowed = new Set(tools.map(({ name }) => name))
  for (const message of Array.isArray(messages) ? (messages as unknown[]) : [messages]) {
    const { method, params } = (message ?? {}) as { method?: unknown; params?: { name?: unknown } }
    if (method === 'tools/call' && !allowed.has(String(params?.name))) throw sandboxErrors.toolNotAllowed()
  }
  // Each takes tens of milliseconds at worst, so others have a turn between them.
  await turn()
  return Buffer.from(JSON.stringify(messages))
}

function messagesIn(body: Buffer): unknown {
  if (body.length === 0) throw notJson()
  try {
    return parseJson(body)
  } catch (cause) {
    throw notJson(cause)
  }
}

const notJson = (cause?: unknown): Error =>
  sandboxErrors.toolNotAllowed({
    cause,
    message:
      'A request to this MCP server must be JSON, nested at most 64 levels deep and of at most 200,000 values and names.',
  })
