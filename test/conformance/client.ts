// Our MCP client as a program, for scenarios of the suite that test clients: the suite gives the URL of its server.
import { listTools, openMcp } from '#kit/mcp'
import { createModelConnections } from '#kit/models'
import { entryOf } from '../../plugins/mcp-catalog/entry.ts'
import { createOAuthClient } from '../../plugins/mcp-catalog/oauth.ts'

const { MCP_CONFORMANCE_SCENARIO: scenario, MCP_CONFORMANCE_CONTEXT: context = '{}' } = process.env
const url = process.argv.at(-1)!
const connections = createModelConnections()
const { signal } = new AbortController()

/** Headers with a token, where the scenario gives a secret to get it with. */
async function headers(): Promise<Record<string, string>> {
  const { client_id: clientId, client_secret: secret } = JSON.parse(context) as Record<string, string>
  if (clientId === undefined || secret === undefined) return {}
  const both = { public: connections, network: connections }
  const client = createOAuthClient({ connections: both, addressesOf: () => 'network' })
  const oauth = { grant: 'client_credentials' as const, clientId, clientSecret: 'secret://client' }
  const { token } = await client.grant(entryOf('server', { url, oauth }, true, 'user'), oauth, secret, signal)
  return { authorization: `Bearer ${token}` }
}

const session = await openMcp(connections.fetch, { url, headers: await headers() }, signal)
const call = (name: string, args: Record<string, unknown>) =>
  session.call({ name, input: args, signal, definition: tools.find((tool) => tool.name === name) })
const tools = await listTools(session, signal)

/** What the scenario wants called with what it has listed. */
const argumentsOf: Readonly<Record<string, () => Record<string, unknown>>> = {
  add_numbers: () => ({ a: 2, b: 3 }),
  json_schema_echo: () => ({ schema: tools.find(({ name }) => name === 'json_schema_2020_12_tool')!.inputSchema }),
}
/** What the scenario itself says is to be called. */
const { toolCalls = [] } = JSON.parse(context) as { toolCalls?: { name: string; arguments: Record<string, unknown> }[] }
for (const { name, arguments: args } of toolCalls) await call(name, args)
const all = ['sse-retry', 'http-invalid-tool-headers', 'http-standard-headers', 'request-metadata']
for (const { name } of tools) {
  const wanted = argumentsOf[name] ?? (all.includes(scenario ?? '') ? () => ({}) : undefined)
  if (wanted) await call(name, wanted())
}
await session.close()
await connections.close()
