import { randomUUID } from 'node:crypto'
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

/** A server of the older transport with one tool, `look`; resolves to its URL. */
export async function startSseServer(t: Pick<TestContext, 'after'>): Promise<string> {
  const streams = new Map<string, SSEServerTransport>()
  const http = createServer(async (request, response) => {
    const id = new URL(request.url!, 'http://x').searchParams.get('sessionId')
    if (request.method === 'POST') return void streams.get(id!)!.handlePostMessage(request, response)
    const transport = new SSEServerTransport('/messages', response)
    streams.set(transport.sessionId, transport)
    const server = new Server({ name: 'old', version: '1' }, { capabilities: { tools: {} } })
    const tools = [{ name: 'look', inputSchema: { type: 'object' as const } }]
    server.setRequestHandler(ListToolsRequestSchema, async () => ({ tools }))
    server.setRequestHandler(CallToolRequestSchema, async () => ({ content: [{ type: 'text', text: 'looked' }] }))
    await server.connect(transport)
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    return new Promise<void>((resolve) => http.close(() => resolve()))
  })
  return `http://127.0.0.1:${(http.address() as AddressInfo).port}/sse`
}
