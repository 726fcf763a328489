import type { McpServer } from '#contracts/mcp-servers'
import { sandboxErrors } from '../errors.ts'

/**
 * The messages of one request to an MCP server, when they call no other tools than these. What is sent on is written anew: two
 * readers of the worker's own bytes could find two names in them.
 */
export async function onlyTools(body: AsyncIterable<Buffer>, tools: NonNullable<McpServer['tools']>): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of body) chunks.push(chunk)
  const messages = parse(Buffer.concat(chunks).toString())
  const allowed = new Set(tools.map(({ name }) => name))
  for (const message of [messages].flat()) {
    const { method, params } = (message ?? {}) as { method?: unknown; params?: { name?: unknown } }
    if (method === 'tools/call' && !allowed.has(String(params?.name))) throw sandboxErrors.toolNotAllowed()
  }
  return Buffer.from(JSON.stringify(messages))
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch (cause) {
    throw sandboxErrors.toolNotAllowed({ cause, message: 'What is sent to this MCP server has to be JSON.' })
  }
}
