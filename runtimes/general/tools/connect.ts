import type { McpServer } from '#contracts/mcp-servers'
import type { ModelFetch } from '#contracts/model'
import type { RunEnvelope } from '#contracts/run-envelope'
import { connect, type Connection } from './connection.ts'
import { isTimeout, whyUnavailable } from './mcp.ts'
import { createToolSet, type ExternalServer, type ToolSet } from './toolset.ts'
import { generalErrors } from '../errors.ts'

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
  envelope: Pick<RunEnvelope, 'profile' | 'sessionMcpUrl' | 'sessionMcpToken' | 'mcpServers'>,
  maxSchemas: number,
  silence: Silence,
  signal: AbortSignal,
): Promise<Connected | undefined> {
  const { profile, mcpServers = [] } = envelope
  // The address is in every envelope, but a session without tools has nothing to list there.
  const sessionMcpUrl = profile.tools.length === 0 ? undefined : envelope.sessionMcpUrl
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
    // The run does without them.
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
    throw generalErrors.toolServerUnavailable({ cause })
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

/** For so long runs do without a server that was silent, instead of each waiting for it. */
const skipMs = 30_000
/** How many silent servers are remembered. Tenants name servers, so the number is bounded. */
const maxKnown = 1_000

/** External servers that did not answer in time a moment ago. */
export interface Silence {
  isKnown(url: string): boolean
  note(url: string): void
}

export function createSilence(now: () => number = Date.now): Silence {
  const until = new Map<string, number>()
  return {
    isKnown: (url) => (until.get(url) ?? 0) > now(),
    note(url) {
      until.delete(url)
      until.set(url, now() + skipMs)
      for (const oldest of until.keys()) {
        if (until.size <= maxKnown) return
        until.delete(oldest)
      }
    },
  }
}
