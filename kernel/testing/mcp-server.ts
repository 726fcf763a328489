import { createHash, randomBytes, randomUUID } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'
import { SSEServerTransport } from '@modelcontextprotocol/sdk/server/sse.js'
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js'
import { CallToolRequestSchema, type CallToolResult, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js'

export type Content = CallToolResult['content']
/** Announces that the list has changed: on the call's own stream, or on the one for unsolicited messages. */
type Announce = (where: 'call' | 'stream') => Promise<void>
export interface ExternalTool {
  readonly description?: string
  /** Properties of its input. */
  readonly input?: Readonly<Record<string, object>>
  readonly run?: (input: Record<string, unknown>, announce: Announce, call: ExternalCall) => Promise<Content | string>
}
interface ExternalCall {
  /** Aborts when the client has cancelled the call. */
  readonly signal: AbortSignal
  progress(done: number, total: number): Promise<void>
}

/** An external MCP server with sessions, like those that other people run. */
export interface ExternalServer {
  readonly url: string
  readonly tools: Map<string, ExternalTool>
  /** Names of the executed tools, in order. */
  readonly calls: string[]
  readonly authorizations: (string | undefined)[]
  /** Sessions that were opened, and those that their clients ended. */
  readonly opened: string[]
  readonly left: string[]
  /** How many streams for unsolicited messages are open. */
  readonly listening: () => number
  /** Forgets every session, as a restart does. */
  forget(): void
  /** Called before anything else for each request. True: it has answered, or never will. */
  before: (request: IncomingMessage, response: ServerResponse, body: string) => boolean
}

interface ExternalOptions {
  /** True: the server declares that its list may change. */
  readonly listChanged?: boolean
  /** How many tools a page of the list has. */
  readonly pageSize?: number
  /** The status for an unknown session; 404 by default. */
  readonly forgotten?: number
}

export async function startExternalServer(
  t: Pick<TestContext, 'after'>,
  tools: Record<string, ExternalTool>,
  options: ExternalOptions = {},
): Promise<ExternalServer> {
  const { listChanged = false, pageSize = Infinity, forgotten = 404 } = options
  const sessions = new Map<string, { server: Server; transport: StreamableHTTPServerTransport }>()
  let listening = 0
  const catalogue = new Map(Object.entries(tools))
  const external: Omit<ExternalServer, 'url'> = {
    tools: catalogue,
    calls: [],
    authorizations: [],
    opened: [],
    left: [],
    listening: () => listening,
    forget: () => sessions.clear(),
    before: () => false,
  }
  const open = async (): Promise<StreamableHTTPServerTransport> => {
    const server = new Server({ name: 'external', version: '1' }, { capabilities: { tools: { listChanged } } })
    server.setRequestHandler(ListToolsRequestSchema, async ({ params }) => {
      const from = Number(params?.cursor ?? 0)
      const all = [...catalogue].map(([name, { description = name, input }]) => ({
        name,
        description,
        inputSchema: { type: 'object' as const, ...(input ? { properties: input } : {}) },
      }))
      const to = Math.min(from + pageSize, all.length)
      return { tools: all.slice(from, to), ...(to < all.length ? { nextCursor: String(to) } : {}) }
    })
    serveCalls(server, catalogue, external.calls)
    const transport: StreamableHTTPServerTransport = new StreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      onsessioninitialized(id) {
        sessions.set(id, { server, transport })
        external.opened.push(id)
      },
    })
    await server.connect(transport as never)
    return transport
  }
  const http = createServer(async (request, response) => {
    external.authorizations.push(request.headers.authorization)
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = Buffer.concat(chunks).toString('utf8')
    if (external.before(request, response, body)) return
    const id = request.headers['mcp-session-id']
    const known = typeof id === 'string' ? sessions.get(id) : undefined
    if (id !== undefined && !known) {
      response.writeHead(forgotten, { 'content-type': 'application/json' })
      const error = { code: -32_001, message: 'Bad Request: No valid session ID provided' }
      return void response.end(JSON.stringify({ jsonrpc: '2.0', error, id: null }))
    }
    if (request.method === 'DELETE') external.left.push(String(id))
    if (request.method === 'GET') {
      listening++
      response.once('close', () => listening--)
    }
    const transport = known?.transport ?? (await open())
    await transport.handleRequest(request, response, body === '' ? undefined : JSON.parse(body))
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    return new Promise<void>((resolve) => http.close(() => resolve()))
  })
  // The options are read at each request, so a test may change them.
  return Object.assign(external, { url: `http://127.0.0.1:${(http.address() as AddressInfo).port}/mcp` })
}

function serveCalls(server: Server, catalogue: ReadonlyMap<string, ExternalTool>, calls: string[]): void {
  server.setRequestHandler(CallToolRequestSchema, async ({ params }, { sendNotification, signal }) => {
    const announce: Announce = (where) =>
      where === 'stream'
        ? server.sendToolListChanged()
        : sendNotification({ method: 'notifications/tools/list_changed' })
    calls.push(params.name)
    const progressToken = params._meta?.progressToken
    const call: ExternalCall = {
      signal,
      async progress(progress, total) {
        if (progressToken === undefined) return
        await sendNotification({ method: 'notifications/progress', params: { progressToken, progress, total } })
      },
    }
    const { run } = catalogue.get(params.name) ?? {}
    const said = (await run?.(params.arguments ?? {}, announce, call)) ?? `${params.name} done`
    return { content: typeof said === 'string' ? [{ type: 'text', text: said }] : said }
  })
}

/** These servers of this machine as a setting that names hosts with ports and tenants, for all tenants. */
export const asOwnHosts = (urls: readonly string[]): string => urls.map((url) => `${new URL(url).host}=*`).join(',')

/** A server of the older transport with one tool, `look`; resolves to its URL. `looked` is called with the stream in which a call was answered. */
export async function startSseServer(
  t: Pick<TestContext, 'after'>,
  looked: (stream: ServerResponse) => void = () => {},
): Promise<string> {
  const streams = new Map<string, SSEServerTransport>()
  const http = createServer(async (request, response) => {
    const id = new URL(request.url!, 'http://x').searchParams.get('sessionId')
    if (request.method === 'POST')
      return void streams
        .get(id!)!
        .handlePostMessage(request, response)
        .catch(() => {})
    const transport = new SSEServerTransport('/messages', response)
    streams.set(transport.sessionId, transport)
    const server = new Server({ name: 'old', version: '1' }, { capabilities: { tools: {} } })
    const tools = [{ name: 'look', inputSchema: { type: 'object' as const } }]
    server.setRequestHandler(ListToolsRequestSchema, async () => ({ tools }))
    server.setRequestHandler(CallToolRequestSchema, async () => ({ content: [{ type: 'text', text: 'looked' }] }))
    await server.connect(transport)
    const send = transport.send.bind(transport)
    transport.send = async (message) => {
      await send(message)
      if ('result' in message && 'content' in message.result) looked(response)
    }
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    return new Promise<void>((resolve) => http.close(() => resolve()))
  })
  return `http://127.0.0.1:${(http.address() as AddressInfo).port}/sse`
}

/** A token request, as an authorization server reads it. */
export interface Asked {
  readonly grant: string
  readonly form: Readonly<Record<string, string>>
  readonly authorization: string | undefined
}

interface Code {
  readonly challenge: string
  readonly redirectUri: string
  readonly clientId: string
  readonly resource: string
}

export type AuthorizationServer = Awaited<ReturnType<typeof startAuthorizationServer>>

/**
 * An authorization server that follows the specifications strictly: it registers clients (RFC 7591), requires PKCE with S256, compares redirect
 * URIs exactly, accepts codes and refresh tokens once, and names itself in its answers (RFC 9207).
 */
export async function startAuthorizationServer(t: Pick<TestContext, 'after'>) {
  const codes = new Map<string, Code>()
  const refreshable = new Set<string>()
  const valid = new Set<string>()
  let made = 0
  const server = {
    url: '',
    /** Additional metadata; `undefined` removes a field. */
    metadata: {} as Record<string, unknown>,
    asked: [] as Asked[],
    registered: [] as Record<string, unknown>[],
    /** Fields of a client's registration besides its id. */
    clients: {} as Record<string, unknown>,
    revoked: [] as string[],
    /** The status of its answer to a token revocation. */
    revokes: 200,
    /** Fields of token answers besides the tokens; `refresh_token: undefined` gives none. */
    more: { expires_in: 3_600 } as Record<string, unknown>,
    /** Answers each token request with this status and error instead. */
    refusal: undefined as readonly [number, string] | undefined,
    /** Awaited before each answer with tokens. */
    gate: Promise.resolve(),
    isValid: (authorization: string | undefined) => valid.has((authorization ?? '').replace(/^Bearer /, '')),
    /** Makes all issued tokens invalid. */
    forget: () => valid.clear(),
    /** Does what a browser does with a link: the owner agrees, and is redirected to where the answer says. */
    agree(link: string, more: Record<string, string> = {}): string {
      const asked = new URL(link).searchParams
      const client = server.registered.find(({ client_id: id }) => id === asked.get('client_id'))
      const back = new URL(asked.get('redirect_uri')!)
      if (client && !(client['redirect_uris'] as string[]).includes(back.href)) throw new Error('unknown redirect_uri')
      if (asked.get('code_challenge_method') !== 'S256') throw new Error('no PKCE')
      const code = randomBytes(8).toString('hex')
      codes.set(code, {
        challenge: asked.get('code_challenge')!,
        redirectUri: back.href,
        clientId: asked.get('client_id')!,
        resource: asked.get('resource')!,
      })
      const answer = { code, state: asked.get('state')!, iss: server.url, ...more }
      for (const [name, value] of Object.entries(answer)) if (value !== '') back.searchParams.set(name, value)
      return back.pathname + back.search
    },
  }
  const tokens = (): Record<string, unknown> => {
    const n = ++made
    valid.add(`access-${n}`)
    refreshable.add(`refresh-${n}`)
    return { access_token: `access-${n}`, refresh_token: `refresh-${n}`, token_type: 'Bearer', ...server.more }
  }
  const exchange = (form: Record<string, string>): Record<string, unknown> | string => {
    if (form['grant_type'] === 'refresh_token') {
      return refreshable.delete(form['refresh_token']!) ? tokens() : 'invalid_grant'
    }
    if (form['grant_type'] === 'client_credentials') return tokens()
    const code = codes.get(form['code']!)
    codes.delete(form['code']!)
    const challenge = createHash('sha256').update(form['code_verifier']!).digest('base64url')
    const fits =
      code?.challenge === challenge && code.redirectUri === form['redirect_uri'] && code.resource === form['resource']
    return fits ? tokens() : 'invalid_grant'
  }
  const http = createServer(async (request, response) => {
    const text = await bodyOf(request)
    const [status, answer] = await answerOf(server, request, text, exchange)
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(answer))
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    return new Promise<void>((resolve) => http.close(() => resolve()))
  })
  server.url = `http://127.0.0.1:${(http.address() as AddressInfo).port}`
  return server
}

async function answerOf(
  server: AuthorizationServer,
  { url: path, headers }: IncomingMessage,
  text: string,
  exchange: (form: Record<string, string>) => Record<string, unknown> | string,
): Promise<[number, object]> {
  const { url, metadata, registered, revoked } = server
  if (path === '/.well-known/oauth-authorization-server') {
    const own = {
      issuer: url,
      authorization_endpoint: `${url}/authorize`,
      token_endpoint: `${url}/token`,
      registration_endpoint: `${url}/register`,
      revocation_endpoint: `${url}/revoke`,
      response_types_supported: ['code'],
      code_challenge_methods_supported: ['S256'],
      token_endpoint_auth_methods_supported: ['none', 'client_secret_basic'],
      authorization_response_iss_parameter_supported: true,
    }
    return [200, { ...own, ...metadata }]
  }
  if (path === '/register') {
    const client = { ...(JSON.parse(text) as object), ...server.clients, client_id: `client-${registered.length + 1}` }
    registered.push(client)
    return [201, client]
  }
  const form = Object.fromEntries(new URLSearchParams(text))
  if (path === '/revoke') {
    if (server.revokes === 200) revoked.push(form['token']!)
    return [server.revokes, {}]
  }
  if (path !== '/token') return [404, {}]
  server.asked.push({ grant: form['grant_type']!, form, authorization: headers.authorization })
  await server.gate
  if (server.refusal) return [server.refusal[0], { error: server.refusal[1], error_description: 'quoted' }]
  const given = exchange(form)
  return typeof given === 'string' ? [400, { error: given, error_description: 'quoted' }] : [200, given]
}

async function bodyOf(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks).toString()
}
