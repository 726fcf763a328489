import type { McpServer } from '#contracts/mcp-servers'
import type { ModelFetch } from '#contracts/model-fetch'
import type { RunEnvelope } from '#contracts/run-envelope'
import { toolServerUnavailable } from '../errors.ts'
import { connect, type Connection } from './connection.ts'
import { isTimeout, whyUnavailable } from './failures.ts'
import type { Silence } from './silence.ts'
import { createToolSet, type ExternalServer, type ToolSet } from './toolset.ts'

/** An external server whose tools a run goes without. */
export interface Unavailable {
  readonly server: string
  readonly message: string
}

export interface Connected {
  readonly tools: ToolSet
  readonly unavailable: readonly Unavailable[]
}

/**
 * Connects to the session's MCP endpoint and the external servers of a run, all at once. Undefined when it has none. Throws
 * AppError `tool_server_unavailable` without the session's endpoint; an external server only costs its own tools.
 */
export async function connectTools(
  fetch: ModelFetch,
  envelope: Pick<RunEnvelope, 'sessionMcpUrl' | 'sessionMcpToken' | 'mcpServers'>,
  maxSchemas: number,
  silence: Silence,
  signal: AbortSignal,
): Promise<Connected | undefined> {
  const { sessionMcpUrl, mcpServers = [] } = envelope
  if (sessionMcpUrl === undefined && mcpServers.length === 0) return undefined
  const named = [...new Map(mcpServers.map((server) => [server.name, server])).values()]
  const external = Promise.all(named.map((server) => connectExternal(fetch, server, silence, signal)))
  const servers: ExternalServer[] = []
  const unavailable: Unavailable[] = []
  try {
    const session = sessionMcpUrl === undefined ? undefined : await connectSession(fetch, envelope, signal)
    for (const found of await external) {
      if ('connection' in found) servers.push(found)
      else unavailable.push(found)
    }
    return { tools: createToolSet(session, servers, maxSchemas), unavailable }
  } catch (error) {
    // The run ends without them.
    void external.then((all) =>
      all.forEach((one) => 'connection' in one && void one.connection.close().catch(() => {})),
    )
    throw error
  }
}

async function connectSession(
  fetch: ModelFetch,
  { sessionMcpUrl, sessionMcpToken }: Pick<RunEnvelope, 'sessionMcpUrl' | 'sessionMcpToken'>,
  signal: AbortSignal,
): Promise<Connection> {
  const headers = sessionMcpToken === undefined ? {} : { headers: { authorization: `Bearer ${sessionMcpToken}` } }
  try {
    return await connect(fetch, { url: sessionMcpUrl!, own: true, ...headers }, signal)
  } catch (cause) {
    throw toolServerUnavailable({ cause, retryable: true })
  }
}

async function connectExternal(
  fetch: ModelFetch,
  { name, url, headers }: McpServer,
  silence: Silence,
  signal: AbortSignal,
): Promise<ExternalServer | Unavailable> {
  if (silence.isKnown(url)) return { server: name, message: 'The server did not answer a moment ago.' }
  try {
    return { name, connection: await connect(fetch, { url, ...(headers ? { headers } : {}) }, signal) }
  } catch (error) {
    if (!signal.aborted && isTimeout(error)) silence.note(url)
    return { server: name, message: whyUnavailable(error) }
  }
}
