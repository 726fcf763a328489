// Our MCP client as a program, for scenarios of the suite that test clients: the suite gives the URL of its server.
import { randomUUID } from 'node:crypto'
import { listTools, openMcp, reasonOf } from '#kit/mcp'
import { createModelConnections } from '#kit/models'
import { AuthorizationCodes, tokenOf } from '../../plugins/mcp-catalog/authorization-code.ts'
import { entryOf } from '../../plugins/mcp-catalog/entry.ts'
import { createOAuthClient } from '../../plugins/mcp-catalog/oauth.ts'

const { MCP_CONFORMANCE_SCENARIO: scenario, MCP_CONFORMANCE_CONTEXT: context = '{}' } = process.env
const url = process.argv.at(-1)!
const connections = createModelConnections()
const { signal } = new AbortController()

/** What the scenario says itself: a client that is registered, calls that are to be made. */
interface Given {
  readonly client_id?: string
  readonly client_secret?: string
  readonly toolCalls?: readonly { readonly name: string; readonly arguments: Record<string, unknown> }[]
}
const given = JSON.parse(context) as Given
const { client_id: clientId, client_secret: secret } = given
const asking = { connections: { public: connections, network: connections }, addressesOf: () => 'network' as const }

/** By `client_credentials`, with the secret that the scenario gives. */
async function granted(): Promise<string> {
  const oauth = { grant: 'client_credentials' as const, clientId: clientId!, clientSecret: 'secret://client' }
  const entry = entryOf('server', { url, oauth }, true, 'user')
  return (await createOAuthClient(asking).grant(entry, oauth, secret!, signal)).token
}

/** What a database keeps of clients that were registered: the last one. */
let registered: { readonly basis: unknown; readonly client: unknown } | undefined
const database = {
  batch: async (_: string, [{ text, values }]: [{ text: string; values: unknown[] }]) => {
    if (text.startsWith('INSERT')) registered = { basis: values[2], client: values[3] }
    return [text.startsWith('SELECT') && registered?.basis === values[2] ? [registered] : []]
  },
}
const codes = new AuthorizationCodes({
  ...asking,
  database: database as never,
  sealer: {
    seal: (_: string, __: string, text: string) => text,
    open: (_: string, __: string, text: string) => text,
  } as never,
  secrets: { resolve: async () => ({ value: secret }) } as never,
})

/** By `authorization_code`: the page of the authorization server agrees at once, and sends back. */
async function connected(): Promise<string> {
  const own =
    clientId === undefined ? {} : { clientId, ...(secret === undefined ? {} : { clientSecret: 'secret://client' }) }
  const entry = entryOf('server', { url, oauth: { grant: 'authorization_code', ...own } }, true, 'user')
  const redirectUrl = 'http://localhost:3000/callback'
  const connecting = { tenantId: 'default', toolkit: 'server', endUserId: '', redirectUrl, state: randomUUID(), signal }
  const link = await codes.begin(entry, connecting)
  const { headers } = await fetch(link.url, { redirect: 'manual' })
  const { state, ...answer } = Object.fromEntries(new URL(headers.get('location')!).searchParams)
  if (state !== connecting.state) throw new Error('the answer is to another question')
  return tokenOf((await codes.finish(entry, connecting, link.keep, answer)).secret).access
}

/** A token where the scenario is about one. */
const token = async (): Promise<string | undefined> => {
  if (!scenario?.startsWith('auth/')) return undefined
  return scenario.includes('client-credentials') ? granted() : connected()
}

/** Scenarios that want all tools of their server called. */
const all = ['sse-retry', 'http-invalid-tool-headers', 'http-standard-headers', 'request-metadata']

async function use(): Promise<void> {
  const account = await token()
  const headers: Record<string, string> = account === undefined ? {} : { authorization: `Bearer ${account}` }
  const session = await openMcp(connections.fetch, { url, headers }, signal)
  const tools = await listTools(session, signal)
  const call = (name: string, args: Record<string, unknown>) =>
    session.call({ name, input: args, signal, definition: tools.find((tool) => tool.name === name) })
  /** What the scenario wants called with what it has listed. */
  const argumentsOf: Readonly<Record<string, () => Record<string, unknown>>> = {
    add_numbers: () => ({ a: 2, b: 3 }),
    json_schema_echo: () => ({ schema: tools.find(({ name }) => name === 'json_schema_2020_12_tool')!.inputSchema }),
  }
  for (const { name, arguments: args } of given.toolCalls ?? []) await call(name, args)
  for (const { name } of tools) {
    const everything = scenario?.startsWith('auth/') || all.includes(scenario ?? '')
    const wanted = argumentsOf[name] ?? (everything ? () => ({}) : undefined)
    if (wanted) await call(name, wanted())
  }
  await session.close()
}

await use().catch((error: unknown) => {
  const reason = reasonOf(error)
  if (reason.kind !== 'status' || reason.status !== 401) throw error
  // The account is taken no more: its owner connects it again.
  return use()
})
await connections.close()
