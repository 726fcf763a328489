import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js'
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js'
import { callIdMeta } from '#contracts/tools'

export interface ToolServer {
  /** The value for an envelope's `sessionMcpUrl`. */
  readonly url: string
  /** Tool calls in the order they arrived. */
  readonly calls: { readonly name: string; readonly arguments: unknown; readonly callId?: unknown }[]
  /** Authorization headers, one per request. */
  readonly tokens: (string | undefined)[]
  /** How often the catalogue was listed. */
  readonly lists: () => number
}

export type StandInTool = (input: Record<string, unknown>) => Promise<{ text: string; isError?: boolean }>

/** A real MCP server as a runner mounts it for a session: stateless, a new server and transport for each request. */
export async function startToolServer(
  t: { after(fn: () => Promise<void>): void },
  tools: Record<string, StandInTool>,
  host = '127.0.0.1',
): Promise<ToolServer> {
  const calls: ToolServer['calls'] = []
  const tokens: ToolServer['tokens'] = []
  let lists = 0
  const http = createServer(async (request, response) => {
    tokens.push(request.headers.authorization)
    const server = new Server({ name: 'test', version: '1' }, { capabilities: { tools: {} } })
    server.setRequestHandler(ListToolsRequestSchema, async () => {
      lists++
      return {
        tools: Object.keys(tools).map((name) => ({
          name,
          description: name,
          inputSchema: { type: 'object' as const },
        })),
      }
    })
    server.setRequestHandler(CallToolRequestSchema, async ({ params }) => {
      calls.push({ name: params.name, arguments: params.arguments, callId: params._meta?.[callIdMeta] })
      const { text, isError } = await tools[params.name]!(params.arguments ?? {})
      return { content: [{ type: 'text', text }], ...(isError ? { isError } : {}) }
    })
    const transport = new StreamableHTTPServerTransport({ enableJsonResponse: true })
    response.once('close', () => void server.close())
    await server.connect(transport as never)
    await transport.handleRequest(request, response)
  })
  await new Promise<void>((resolve) => http.listen(0, host, resolve))
  t.after(() => {
    http.closeAllConnections()
    return new Promise<void>((resolve) => http.close(() => resolve()))
  })
  return { url: `http://${host}:${(http.address() as AddressInfo).port}/mcp`, calls, tokens, lists: () => lists }
}
