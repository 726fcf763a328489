// Our MCP client as a program, for scenarios of the suite that test clients: the suite gives the URL of its server.
import { CallToolResultSchema } from '@modelcontextprotocol/sdk/types.js'
import { listTools, openMcp } from '#kit/mcp'
import { createModelConnections } from '#kit/models'

const scenario = process.env['MCP_CONFORMANCE_SCENARIO']
const connections = createModelConnections()
const { signal } = new AbortController()
const session = await openMcp(connections.fetch, { url: process.argv.at(-1)! }, signal)
const call = (name: string, args: Record<string, unknown>) =>
  session.client.request({ method: 'tools/call' as const, params: { name, arguments: args } }, CallToolResultSchema)
const tools = await listTools(session, signal)

/** What the scenario wants called with what it has listed. */
const argumentsOf: Readonly<Record<string, () => Record<string, unknown>>> = {
  add_numbers: () => ({ a: 2, b: 3 }),
  json_schema_echo: () => ({ schema: tools.find(({ name }) => name === 'json_schema_2020_12_tool')!.inputSchema }),
}
for (const { name } of tools) {
  const wanted = argumentsOf[name] ?? (scenario === 'sse-retry' ? () => ({}) : undefined)
  if (wanted) await call(name, wanted())
}
await session.close()
await connections.close()
