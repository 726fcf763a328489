// Our MCP client, for scenarios of the suite that test clients: the suite gives the URL of its server.
import { randomUUID } from 'node:crypto'
import { listTools, openMcp, reasonOf } from '#kit/mcp'
import { createModelConnections } from '#kit/models'
import { AuthorizationCodes, tokenOf } from '../../plugins/mcp-catalog/authorization-code.ts'
import { entryOf } from '../../plugins/mcp-catalog/entry.ts'
import { createOAuthClient } from '../../plugins/mcp-catalog/oauth.ts'

/** What the suite asks of a client, in the words of its environment. */
export interface Asked {
  readonly scenario: string
  /** What the scenario says itself, as JSON. */
  readonly context?: string
  readonly url: string
}

/** A client that is registered, calls that are to be made. */
interface Given {
  readonly client_id?: string
  readonly client_secret?: string
  readonly toolCalls?: readonly { readonly name: string; readonly arguments: Record<string, unknown> }[]
}

/** Scenarios that want all tools of their server called. */
const all = ['sse-retry', 'http-invalid-tool-headers', 'http-standard-headers', 'request-metadata']

/** Does what the scenario wants. Rejects when our client gives up. */
export async function runClient(asked: Asked): Promise<void> {
  const client = new ScenarioClient(asked)
  try {
    await client.use().catch((error: unknown) => {
      const reason = reasonOf(error)
      if (reason.kind !== 'status' || reason.status !== 401) throw error
      // The account is taken no more: its owner connects it again.
      return client.use()
    })
  } finally {
    await client.close()
  }
}

class ScenarioClient {
  readonly #scenario: string
  readonly #url: string
  readonly #given: Given
  readonly #signal = new AbortController().signal
  readonly #connections = createModelConnections()
  readonly #asking = {
    connections: { public: this.#connections, network: this.#connections },
    addressesOf: () => 'network' as const,
  }
  readonly #codes: AuthorizationCodes

  constructor({ scenario, context = '{}', url }: Asked) {
    this.#scenario = scenario
    this.#url = url
    this.#given = JSON.parse(context) as Given
    this.#codes = new AuthorizationCodes({
      ...this.#asking,
      database: keepingTheLast() as never,
      sealer: {
        seal: (_: string, __: string, text: string) => text,
        open: (_: string, __: string, text: string) => text,
      } as never,
      secrets: { resolve: async () => ({ value: this.#given.client_secret }) } as never,
    })
  }

  async use(): Promise<void> {
    const account = await this.#token()
    const headers: Record<string, string> = account === undefined ? {} : { authorization: `Bearer ${account}` }
    const signal = this.#signal
    const session = await openMcp(this.#connections.fetch, { url: this.#url, headers }, signal)
    const tools = await listTools(session, signal)
    const call = (name: string, args: Record<string, unknown>) =>
      session.call({ name, input: args, signal, definition: tools.find((tool) => tool.name === name) })
    /** What the scenario wants called with what it has listed. */
    const argumentsOf: Readonly<Record<string, () => Record<string, unknown>>> = {
      add_numbers: () => ({ a: 2, b: 3 }),
      json_schema_echo: () => ({ schema: tools.find(({ name }) => name === 'json_schema_2020_12_tool')!.inputSchema }),
    }
    for (const { name, arguments: args } of this.#given.toolCalls ?? []) await call(name, args)
    for (const { name } of tools) {
      const everything = this.#scenario.startsWith('auth/') || all.includes(this.#scenario)
      const wanted = argumentsOf[name] ?? (everything ? () => ({}) : undefined)
      if (wanted) await call(name, wanted())
    }
    await session.close()
  }
  close(): Promise<void> {
    return this.#connections.close()
  }

  /** A token where the scenario is about one. */
  async #token(): Promise<string | undefined> {
    if (!this.#scenario.startsWith('auth/')) return undefined
    return this.#scenario.includes('client-credentials') ? this.#granted() : this.#connected()
  }
  /** By `client_credentials`, with the secret that the scenario gives. */
  async #granted(): Promise<string> {
    const { client_id: clientId, client_secret: secret } = this.#given
    const oauth = { grant: 'client_credentials' as const, clientId: clientId!, clientSecret: 'secret://client' }
    const entry = entryOf('server', { url: this.#url, oauth }, true, 'user')
    return (await createOAuthClient(this.#asking).grant('default', entry, oauth, secret!, this.#signal)).token
  }
  /** By `authorization_code`: the page of the authorization server agrees at once, and sends back. */
  async #connected(): Promise<string> {
    const { client_id: clientId, client_secret: secret } = this.#given
    const own =
      clientId === undefined ? {} : { clientId, ...(secret === undefined ? {} : { clientSecret: 'secret://client' }) }
    const oauth = { grant: 'authorization_code' as const, ...own }
    const entry = entryOf('server', { url: this.#url, oauth }, true, 'user')
    const connecting = {
      tenantId: 'default',
      toolkit: 'server',
      endUserId: '',
      redirectUrl: 'http://localhost:3000/callback',
      state: randomUUID(),
      signal: this.#signal,
    }
    const link = await this.#codes.begin(entry, connecting)
    const { headers } = await fetch(link.url, { redirect: 'manual' })
    const { state, ...answer } = Object.fromEntries(new URL(headers.get('location')!).searchParams)
    if (state !== connecting.state) throw new Error('the answer is to another question')
    return tokenOf((await this.#codes.finish(entry, connecting, link.keep, answer)).secret).access
  }
}

/** What a database keeps of clients that were registered: the last one. */
function keepingTheLast() {
  let registered: { readonly basis: unknown; readonly client: unknown } | undefined
  return {
    batch: async (_: string, [{ text, values }]: [{ text: string; values: unknown[] }]) => {
      if (text.startsWith('INSERT')) registered = { basis: values[2], client: values[3] }
      return [text.startsWith('SELECT') && registered?.basis === values[2] ? [registered] : []]
    },
  }
}
