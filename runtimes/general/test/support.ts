import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js'
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js'
import { fake, runtimeOf, startModelServer, type ModelServer, type ModelServerOptions } from '#testing'
import { createModelConnections } from '#contracts/model-fetch'
import { type ModelProvider, Models } from '#contracts/model'
import type { Runtime } from '#contracts/runtime'
import { callIdMeta } from '#contracts/tools'
import general from '../index.ts'

/** A provider `stand-in` on the stand-in model server, through the provider package and connections of production. */
export function standIn(t: Pick<TestContext, 'after'>, url: string): ModelProvider {
  const { fetch, close } = createModelConnections()
  t.after(close)
  const provider = createOpenAICompatible({ name: 'stand-in', baseURL: url, includeUsage: true, fetch })
  return { contract: 'model/1', model: (modelId) => provider.chatModel(modelId) }
}

export const model = { profile: { model: 'stand-in/m' } }

export async function generalWith(
  t: Pick<TestContext, 'after'>,
  models: Record<string, ModelProvider>,
): Promise<Runtime> {
  return runtimeOf(t, 'general', [general, fake(Models, models)])
}

export async function generalOnStandIn(
  t: Pick<TestContext, 'after'>,
  options: ModelServerOptions = {},
): Promise<{ runtime: Runtime; server: ModelServer }> {
  const server = await startModelServer(t, options)
  return { server, runtime: await generalWith(t, { 'stand-in': standIn(t, server.url) }) }
}

export interface ToolServer {
  readonly url: string
  /** Tool calls in the order they arrived. */
  readonly calls: { readonly name: string; readonly arguments: unknown; readonly callId?: unknown }[]
  /** Authorization headers, one per request. */
  readonly tokens: (string | undefined)[]
  /** How often the catalogue was listed. */
  readonly lists: () => number
}

type Tool = (input: Record<string, unknown>) => Promise<{ text: string; isError?: boolean }>

/** A real MCP server as a runner mounts it: stateless, a new server and transport for each request. */
export async function startToolServer(t: Pick<TestContext, 'after'>, tools: Record<string, Tool>): Promise<ToolServer> {
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
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    return new Promise<void>((resolve) => http.close(() => resolve()))
  })
  return { url: `http://127.0.0.1:${(http.address() as AddressInfo).port}/mcp`, calls, tokens, lists: () => lists }
}

/** What the model server was last sent, as `role: text` lines: easy to compare. */
export function conversation(server: ModelServer): string[] {
  return server.requests.at(-1)!.body.messages.map(({ role, content, tool_calls: calls }) => {
    const called = Array.isArray(calls)
      ? calls.map((c) => `${c.id}=${c.function.name}(${c.function.arguments})`).join(' ')
      : ''
    return `${role}: ${[content ?? '', called].filter((part) => part !== '').join(' ')}`
  })
}
