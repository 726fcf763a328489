// The yardstick of `bench:mcp`: an MCP server with fifty tools, as the library makes it, with sessions and answers as JSON.
import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js'
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js'
import { announce } from '../processes.ts'

const tools = Array.from({ length: 50 }, (_, n) => ({
  name: `tool_${n}`,
  description: `What tool ${n} is for, in about as many words as people take to say such a thing to a model.`,
  inputSchema: {
    type: 'object' as const,
    properties: Object.fromEntries(
      ['path', 'query', 'limit'].map((name) => [name, { type: 'string', description: `The ${name} that is meant.` }]),
    ),
    required: ['path'],
  },
}))
const sessions = new Map<string, StreamableHTTPServerTransport>()

async function open(): Promise<StreamableHTTPServerTransport> {
  const server = new Server({ name: 'bare', version: '1' }, { capabilities: { tools: {} } })
  server.setRequestHandler(ListToolsRequestSchema, () => ({ tools }))
  server.setRequestHandler(CallToolRequestSchema, ({ params }) => ({
    content: [{ type: 'text', text: `${params.name}: ${JSON.stringify(params.arguments)}` }],
  }))
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: () => randomUUID(),
    enableJsonResponse: true,
    onsessioninitialized: (id) => void sessions.set(id, transport),
    onsessionclosed: (id) => void sessions.delete(id),
  })
  await server.connect(transport as never)
  return transport
}

/** The authorization server of those who ask below `/account/`. */
const issuer = process.argv[2]

const http = createServer(async (request, response) => {
  const { host, authorization } = request.headers
  const resource = `http://${host}/account/mcp`
  if (request.url === '/who') {
    response.setHeader('content-type', 'application/json')
    return void response.end(JSON.stringify({ resource, authorization_servers: [issuer] }))
  }
  if (request.url === '/account/mcp' && authorization === undefined)
    return void response.writeHead(401, { 'www-authenticate': `Bearer resource_metadata="http://${host}/who"` }).end()
  const known = sessions.get(String(request.headers['mcp-session-id']))
  await (known ?? (await open())).handleRequest(request, response)
})
http.listen(0, '127.0.0.1', () => announce(http))
