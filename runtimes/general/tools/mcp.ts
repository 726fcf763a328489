import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { ErrorCode, ToolListChangedNotificationSchema } from '@modelcontextprotocol/sdk/types.js'
import type { ModelFetch } from '#contracts/model'
import { createMcpFetch } from './mcp-fetch.ts'

/** The run's own deadline ends a call; the library's default of 60 s would end long tools early. */
export const noTimeout = 2_147_483_647

export interface McpAddress {
  readonly url: string
  readonly headers?: Readonly<Record<string, string>>
  /** Ours: it is stateless, announces nothing, and what it answers is bounded. */
  readonly own?: boolean
}

/** An MCP session that is open. */
export interface McpSession {
  readonly client: Client
  /** The server gave out an id for it, and may forget it. */
  readonly remembered: boolean
  close(): Promise<void>
}

/** How long a server may take to take its leave; the run is over by then. */
const farewellMs = 2_000

/** Opens a session. Rejects with whatever the library says. */
export async function openMcp(
  fetch: ModelFetch,
  address: McpAddress,
  signal: AbortSignal,
  onListChanged: () => void = () => {},
): Promise<McpSession> {
  // The validator would compile output schemas, which nobody asks it for: making the usual one costs a millisecond a run.
  const client = new Client(
    { name: 'agent-orc', version: '1' },
    { jsonSchemaValidator: { getValidator: () => refuse } },
  )
  const transport = new StreamableHTTPClientTransport(new URL(address.url), {
    fetch: address.own ? withoutListening(fetch) : createMcpFetch(fetch, watching(client)),
    ...(address.headers ? { requestInit: { headers: { ...address.headers } } } : {}),
  })
  if (!address.own) client.setNotificationHandler(ToolListChangedNotificationSchema, onListChanged)
  await client.connect(transport, { signal, timeout: noTimeout })
  return {
    client,
    remembered: transport.sessionId !== undefined,
    async close() {
      if (transport.sessionId !== undefined) {
        const late = setTimeout(() => void client.close(), farewellMs)
        await transport.terminateSession().catch(() => {})
        clearTimeout(late)
      }
      await client.close()
    },
  }
}

const refuse = (): never => {
  throw new Error('not used')
}

/** The stream for unasked messages of the server has no use here, and opening it costs a request per run. */
const withoutListening =
  (fetch: ModelFetch): ModelFetch =>
  async (input, init) =>
    init?.method === 'GET' ? new Response(null, { status: 405 }) : fetch(input, init)

/** Ends requests whose answer was cut: the library would wait for the run's deadline. */
function watching(client: Client) {
  const resuming = new Set<string | number>()
  const end = (id: string | number): void =>
    client.transport?.onmessage?.({
      jsonrpc: '2.0',
      id,
      error: { code: ErrorCode.ConnectionClosed, message: 'the answer was cut' },
    })
  client.onerror = ({ message }) => {
    if (!message.startsWith('Maximum reconnection attempts')) return
    for (const id of resuming) end(id)
    resuming.clear()
  }
  return {
    listens: () => client.getServerCapabilities()?.tools?.listChanged === true,
    onCut(id: string | number, resumes: boolean) {
      if (resumes) resuming.add(id)
      else end(id)
    },
  }
}
