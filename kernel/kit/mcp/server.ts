// The server side of the Model Context Protocol, for endpoints that have tools and may pass on what else a server offers. It supports both kinds of
// revisions: that of 2026-07-28, whose requests are self-contained, and the earlier ones, which begin with `initialize`. It loads the library, so
// import it with the first request.
import { hash, randomUUID } from 'node:crypto'
import type { FastifyReply, FastifyRequest } from 'fastify'
import {
  type CallToolResult,
  classifyInboundRequest,
  createMcpHandler,
  type ListToolsResult,
  type McpHttpHandler,
  ProtocolError,
  ProtocolErrorCode,
  Server,
  WebStandardStreamableHTTPServerTransport,
} from '@modelcontextprotocol/server'
import type { Kv } from '#contracts/kv'
import { invalidRequest } from '../../contracts/http-errors.ts'
import { ping, stream } from '../../http/streams.ts'
import * as rehearsal from './rehearsal.ts'

/** Requests that a server behind the endpoint answers in its own words. */
const passedMethods = [
  'resources/list',
  'resources/templates/list',
  'resources/read',
  'prompts/list',
  'prompts/get',
  'completion/complete',
] as const
export type PassedMethod = (typeof passedMethods)[number]

/** The tools that one request's caller may use. */
export interface ServedTools {
  list(cursor: string | undefined): ListToolsResult | Promise<ListToolsResult>
  /** Rejects with `protocolError` for an error that the model must not take for a result. */
  call(call: ToolCall): Promise<CallToolResult>
  /** Resolves to the answer of the server behind. Absent: the endpoint offers only tools. */
  readonly pass?: (method: PassedMethod, params: object | undefined, signal: AbortSignal) => Promise<object>
}
export interface ToolCall {
  readonly name: string
  readonly input: Readonly<Record<string, unknown>>
  readonly meta: Readonly<Record<string, unknown>>
  /** Aborts when the client disconnected, or cancelled the call. */
  readonly signal: AbortSignal
  /** Reports the progress of the call to the client. Absent when the client did not request it. */
  readonly progress?: (progress: Progress) => void
}
interface Progress {
  readonly progress: number
  readonly total?: number | undefined
  readonly message?: string | undefined
}
export type { CallToolResult, ListToolsResult }

/** A JSON-RPC error. Clients show it to people; models do not see it. */
export const protocolError = (code: number, message: string, data?: unknown): Error =>
  new ProtocolError(code, message, data)
/** The call names an unknown tool, or has invalid arguments. */
export const invalidParams = (message: string): Error => protocolError(ProtocolErrorCode.InvalidParams, message)
/** The caller must wait. The library has no code for that, and this range is free for servers to use. */
export const limited = (message: string): Error => protocolError(-32_000, message)
export const internalError = (message: string): Error => protocolError(ProtocolErrorCode.InternalError, message)

export interface EndpointOptions {
  /** The name of the endpoint in its answers. */
  readonly name: string
  /** Milliseconds that clients may cache a list of tools. */
  readonly listMs: number
  /** How conductors tell each other about cancelled calls. Without it, only closing its connection cancels a call. */
  readonly kv?: Pick<Kv, 'publish' | 'subscribe'>
}

/** One MCP endpoint. It answers requests, and keeps nothing between them except the calls under way. */
export class McpEndpoint {
  readonly #options: EndpointOptions
  readonly #modern: McpHttpHandler
  readonly #cancellable = new Map<string, AbortController>()
  readonly #unsubscribe: (() => void) | undefined

  constructor(options: EndpointOptions) {
    this.#options = options
    const serve = ({ authInfo }: { authInfo?: { extra?: Record<string, unknown> } }): Server =>
      this.#serverOf(authInfo!.extra!['tools'] as ServedTools)
    this.#modern = createMcpHandler(serve, { legacy: 'reject', keepAliveMs: 0 })
    this.#unsubscribe = options.kv?.subscribe(cancelled, (key) => this.#cancel(key))
  }

  /** Answers one request. `who` is the caller; callers cannot cancel the calls of others. */
  async answer(request: FastifyRequest, reply: FastifyReply, tools: ServedTools, who = ''): Promise<FastifyReply> {
    const body = messagesIn(request.body)
    const isEmpty = Array.isArray(body) && body.length === 0
    // Who has left already cannot cancel what is begun now: its close was told before.
    if (isEmpty || reply.raw.destroyed) return reply.code(202).send()
    const headers = new Headers(
      Object.entries(request.headers).filter((entry): entry is [string, string] => typeof entry[1] === 'string'),
    )
    const { raw } = reply
    const abort = new AbortController()
    raw.once('close', () => {
      // A closed connection cancels the call.
      if (!raw.writableFinished) abort.abort(new Error('the client has left'))
    })
    const asked = { url: request.url, headers, body, closing: raw, signal: abort.signal, who }
    const response = await this.#respond(asked, guarded(tools, request))
    const { status } = response
    if (response.body && response.headers.get('content-type')?.startsWith('text/event-stream')) {
      const frames = response.body
      await stream(
        request,
        reply,
        { contentType: 'text/event-stream', status, heartbeat: ping, abort },
        () => frames as AsyncIterable<Uint8Array>,
      )
      return reply
    }
    return reply
      .code(status)
      .headers(Object.fromEntries(response.headers))
      .send(await response.text())
  }

  /** Answers one message of each kind, so that no caller has to wait for what the library does at the first one. */
  async rehearse(): Promise<void> {
    const tools: ServedTools = {
      list: () => ({ tools: [rehearsal.tool] }),
      call: async () => ({ content: [] }),
    }
    const closing = { once: () => {}, writableFinished: true }
    const { signal } = new AbortController()
    for (const request of rehearsal.requests) {
      const response = await this.#respond({ ...request, url: '/', closing, signal, who: '' }, tools)
      const { error } = (await response.json()) as { error?: { message: string } }
      if (error) throw new Error(`the rehearsal of ${request.body.method} failed: ${error.message}`)
    }
  }

  async close(): Promise<void> {
    this.#unsubscribe?.()
    await this.#modern.close()
  }

  #serverOf(tools: ServedTools, cancel?: AbortSignal): Server {
    const { name, listMs } = this.#options
    const server = new Server(
      { name, version: '1' },
      {
        capabilities: { tools: {}, ...(tools.pass ? { resources: {}, prompts: {}, completions: {} } : {}) },
        // Callers see different tools, and passed-on lists carry no caching hints.
        cacheHints: {
          'tools/list': { ttlMs: listMs, cacheScope: 'private' },
          ...Object.fromEntries(passedHints.map((method) => [method, { ttlMs: 0, cacheScope: 'private' as const }])),
        },
        // The validator would check users' answers, and we ask users nothing; creating the usual one costs milliseconds per call.
        jsonSchemaValidator: { getValidator: () => refuse },
      },
    )
    server.setRequestHandler('tools/list', async ({ params }) => tools.list(params?.cursor))
    server.setRequestHandler('tools/call', async ({ params }, { mcpReq }) => {
      const meta = mcpReq._meta ?? {}
      const { progressToken } = meta
      return tools.call({
        name: params.name,
        input: params.arguments ?? {},
        meta,
        signal: cancel ? AbortSignal.any([mcpReq.signal, cancel]) : mcpReq.signal,
        ...(progressToken === undefined
          ? {}
          : {
              progress: (progress) =>
                void mcpReq
                  .notify({ method: 'notifications/progress', params: { progressToken, ...progress } })
                  .catch(() => {}),
            }),
      })
    })
    const { pass } = tools
    if (!pass) return server
    for (const method of passedMethods) {
      server.setRequestHandler(method, (async (
        { params }: { params?: object },
        { mcpReq }: { mcpReq: { signal: AbortSignal } },
      ) => pass(method, params, mcpReq.signal)) as never)
    }
    return server
  }

  async #respond(asked: Asked, tools: ServedTools): Promise<Response> {
    const { url, headers, body, signal } = asked
    if (isLegacy(asked)) return this.#legacy(asked, tools)
    if (isListening(body)) return notFound(body)
    const request = new Request(`http://mcp${url}`, { method: 'POST', headers, signal })
    return this.#modern.fetch(request, { parsedBody: body, authInfo: authInfoOf(tools) })
  }

  /** Serves the revisions before 2026-07-28. A session has only a name here, which says whose calls a client may cancel. */
  async #legacy({ headers, body, closing, who }: Asked, tools: ServedTools): Promise<Response> {
    const message = (Array.isArray(body) ? undefined : body) as JsonRpc | null | undefined
    const { kv } = this.#options
    const session = kv && headers.get('mcp-session-id')
    const keyOf = (id: unknown): string => {
      const text = JSON.stringify([who, session, id])
      return text.length <= longestKey ? text : hash('sha256', text)
    }
    if (session && message?.method === 'notifications/cancelled') {
      const key = keyOf(message.params?.requestId)
      if (!this.#cancel(key)) kv.publish([cancelled], key)
    }
    const key = session && message?.method === 'tools/call' ? keyOf(message.id) : undefined
    const cancel = key === undefined ? undefined : new AbortController()
    if (key !== undefined) this.#cancellable.set(key, cancel!)
    const asksProgress = message?.params?._meta?.progressToken !== undefined
    const transport = new WebStandardStreamableHTTPServerTransport({
      enableJsonResponse: !asksProgress,
      keepAliveMs: 0,
    })
    const server = this.#serverOf(tools, cancel?.signal)
    closing.once('close', () => {
      if (key !== undefined && this.#cancellable.get(key) === cancel) this.#cancellable.delete(key)
      // After a complete answer there is nothing to close; closing anyway would cost every call an error.
      if (!closing.writableFinished) void server.close()
    })
    await server.connect(transport)
    // The only fields that are read of a request whose body is present. A complete Request costs more than answering a small one.
    const request = { method: 'POST', headers } as Request
    const response = await transport.handleRequest(request, { parsedBody: body })
    if (kv && message?.method === 'initialize' && response.ok) response.headers.set('mcp-session-id', randomUUID())
    return response
  }

  #cancel(key: string): boolean {
    const call = this.#cancellable.get(key)
    call?.abort(new Error('the client has cancelled the call'))
    return call !== undefined
  }
}

/** Methods whose answers carry caching hints. */
const passedHints = ['resources/list', 'resources/templates/list', 'resources/read', 'prompts/list'] as const

/** Any other error goes only to the log, because the text of an unknown exception may hold secrets. */
function guarded(tools: ServedTools, { log, id }: FastifyRequest): ServedTools {
  const told = (err: unknown): never => {
    if (err instanceof ProtocolError) throw err
    log.warn({ err, request_id: id }, 'an MCP request failed')
    throw internalError('The request could not be answered; try again.')
  }
  return {
    list: async (cursor) => Promise.resolve(tools.list(cursor)).catch(told),
    call: async (call) => tools.call(call).catch(told),
    ...(tools.pass ? { pass: (...asked) => tools.pass!(...asked).catch(told) } : {}),
  }
}

/** The most characters of a call's key, unless a client chose a longer id. */
const longestKey = 200
/** The channel on which conductors tell each other of cancelled calls. */
const cancelled = 'mcp-cancelled'

/** One request, as the endpoint reads it. */
interface Asked {
  readonly url: string
  readonly headers: Headers
  readonly body: unknown
  readonly closing: { once(event: 'close', then: () => void): unknown; readonly writableFinished: boolean }
  /** Aborts when the client has left. */
  readonly signal: AbortSignal
  readonly who: string
}

interface JsonRpc {
  readonly id?: unknown
  readonly method?: unknown
  readonly params?: { readonly requestId?: unknown; readonly _meta?: { readonly progressToken?: unknown } }
}

/** Whether a request is of a revision before 2026-07-28. */
function isLegacy({ headers, body }: Asked): boolean {
  if (body === undefined || body === null) return true
  const outcome = classifyInboundRequest({
    httpMethod: 'POST',
    body,
    ...optional('protocolVersionHeader', headers.get('mcp-protocol-version')),
    ...optional('mcpMethodHeader', headers.get('mcp-method')),
    ...optional('mcpNameHeader', headers.get('mcp-name')),
  })
  return outcome.kind === 'legacy'
}

const optional = (name: string, value: string | null) => (value === null ? {} : { [name]: value })

/** We announce nothing, so listening would only cost a connection. */
const isListening = (body: unknown): boolean => (body as JsonRpc).method === 'subscriptions/listen'
const notFound = (body: unknown): Response =>
  Response.json(
    { jsonrpc: '2.0', id: (body as JsonRpc).id ?? null, error: { code: -32_601, message: 'Method not found' } },
    { status: 404 },
  )

/** The library passes this to the function that makes the server of a request. */
const authInfoOf = (tools: ServedTools) => ({ token: '', clientId: '', scopes: [], extra: { tools } })

/** Requests whose answers may have megabytes. */
const answeredAtLength: ReadonlySet<unknown> = new Set(['tools/list', 'tools/call', ...passedMethods])

/**
 * The messages of a request. Those of one batch cannot cancel each other, because the transport would wait for ever for the answer of a cancelled
 * request. And a batch has one large answer: the library keeps all of them until the last one is there, when no limit of calls counts them any
 * more, and writes them in one step.
 */
function messagesIn(body: unknown): unknown {
  if (!Array.isArray(body)) return body
  if (body.length === 0) throw invalidRequest({ message: 'The batch is empty.' })
  if (body.filter((message: JsonRpc | null) => answeredAtLength.has(message?.method)).length > 1) throw tooMuchAtOnce()
  return body.filter((message: JsonRpc | null) => message?.method !== 'notifications/cancelled')
}
const tooMuchAtOnce = (): Error =>
  invalidRequest({
    message:
      'The batch requests more than one list, content or call; send each in a request of its own. Only the MCP revision 2025-03-26 has batches.',
  })

const refuse = (): never => {
  throw new Error('not used')
}
