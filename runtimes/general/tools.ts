import type { LanguageModelV4FunctionTool } from '@ai-sdk/provider'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { type CallToolResult, CallToolResultSchema, ListToolsResultSchema } from '@modelcontextprotocol/sdk/types.js'
import type { ModelFetch } from '#contracts/model-fetch'
import { callIdMeta } from '#contracts/tools'
import { toolServerUnavailable } from './errors.ts'

export interface ToolOutcome {
  readonly ok: boolean
  readonly content: string
}

/** The tools of one session for the length of one run. */
export interface SessionTools {
  readonly specs: LanguageModelV4FunctionTool[]
  /** Never rejects for a tool's own failure: the model is told and may go on. */
  call(name: string, input: Readonly<Record<string, unknown>>, callId: string): Promise<ToolOutcome>
  close(): Promise<void>
}

/** Longer results are cut: they would fill the model's context and this process. */
const maxResultChars = 200_000
/** Pages of a catalogue; a server that never stops paging is broken. */
const maxPages = 50
/** The run's own deadline ends a call; the library's default of 60 s would end long tools early. */
const noTimeout = 2_147_483_647

/** Connects to the session's MCP endpoint and lists its tools. Throws AppError `tool_server_unavailable`. */
export async function connectTools(
  fetch: ModelFetch,
  url: string,
  token: string | undefined,
  signal: AbortSignal,
): Promise<SessionTools> {
  const client = new Client({ name: 'agent-orc', version: '1' })
  const options = { signal, timeout: noTimeout }
  try {
    const transport = new StreamableHTTPClientTransport(new URL(url), {
      // The stream for unasked messages of the server has no use here, and opening it costs a request per run.
      fetch: async (input, init) => (init?.method === 'GET' ? new Response(null, { status: 405 }) : fetch(input, init)),
      ...(token === undefined ? {} : { requestInit: { headers: { authorization: `Bearer ${token}` } } }),
    })
    await client.connect(transport, options)
    const specs = await list(client, options)
    return {
      specs,
      close: () => client.close(),
      async call(name, input, callId) {
        if (!specs.some((spec) => spec.name === name)) return failed(`There is no tool '${name}'.`)
        try {
          // Not callTool(): it compiles a validator for each output schema of the catalogue, every run.
          const params = { name, arguments: input, _meta: { [callIdMeta]: callId } }
          const request = { method: 'tools/call' as const, params }
          return outcome(await client.request(request, CallToolResultSchema, options))
        } catch {
          return failed(`The tool '${name}' could not be called.`)
        }
      },
    }
  } catch (cause) {
    await client.close().catch(() => {})
    throw toolServerUnavailable({ cause, retryable: true })
  }
}

const failed = (content: string): ToolOutcome => ({ ok: false, content })

async function list(client: Client, options: { signal: AbortSignal }): Promise<LanguageModelV4FunctionTool[]> {
  const specs: LanguageModelV4FunctionTool[] = []
  let cursor: string | undefined
  for (let page = 0; page < maxPages; page++) {
    const params = cursor === undefined ? {} : { cursor }
    const { tools, nextCursor } = await client.request({ method: 'tools/list', params }, ListToolsResultSchema, options)
    for (const { name, description, inputSchema } of tools) {
      const schema = inputSchema as LanguageModelV4FunctionTool['inputSchema']
      specs.push({ type: 'function', name, inputSchema: schema, ...(description === undefined ? {} : { description }) })
    }
    if (nextCursor === undefined) break
    cursor = nextCursor
  }
  return specs
}

function outcome(result: CallToolResult): ToolOutcome {
  const text = result.content.map((part) => (part.type === 'text' ? part.text : `[${part.type}]`)).join('\n')
  const content =
    text.length > maxResultChars ? `${text.slice(0, maxResultChars)}\n[cut after ${maxResultChars} characters]` : text
  return { ok: result.isError !== true, content }
}
