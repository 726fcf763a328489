import { hasApprovals, needsApproval } from '#contracts/approvals'
import type { McpServer, UnavailableMcpServer } from '#contracts/mcp-servers'
import { tenantKey } from '#contracts/ids'
import type { ModelFetch } from '#contracts/model'
import type { RunEnvelope } from '#contracts/run-envelope'
import { isTimeout, McpEras, whyUnavailable } from '#kit/mcp'
import { createModelConnections } from '#kit/models'
import { permittedAddresses } from '#kit/outbound'
import { connect, type Connection } from './connection.ts'
import { AnswerRoom } from './room.ts'
import { createToolSet, type ExternalServer, mostTools, type ToolSet, withRoom } from './toolset.ts'
import { generalErrors } from '../errors.ts'

export interface Connected {
  readonly tools: ToolSet
  readonly unavailable: readonly UnavailableMcpServer[]
}

/** Bytes that the lists of a run's external servers may have together, because all are kept as long as the run. Each server has an equal share. */
const mostListBytes = 16 * 1024 * 1024
const tooManyTools = `The servers of the run have more than ${mostTools} tools with those of this one.`

/**
 * Connects concurrently to the session's MCP endpoint and to the external servers of a run. Undefined when the run has none. Throws AppError
 * `tool_server_unavailable` when the session's endpoint fails; when an external server fails, the run only lacks its tools.
 */
export async function connectTools(
  connections: ToolConnections,
  envelope: Pick<
    RunEnvelope,
    'tenantId' | 'profile' | 'sessionMcpUrl' | 'sessionMcpToken' | 'mcpServers' | 'mcpUnavailable'
  >,
  maxSchemas: number,
  silence: Silence,
  signal: AbortSignal,
): Promise<Connected | undefined> {
  const { tenantId, profile, mcpServers = [], mcpUnavailable = [] } = envelope
  // Every envelope has the address, but a session without tools has nothing to list there.
  const sessionMcpUrl = profile.tools.length === 0 && !hasApprovals(profile) ? undefined : envelope.sessionMcpUrl
  if (sessionMcpUrl === undefined && mcpServers.length + mcpUnavailable.length === 0) return undefined
  const named = [...new Map(mcpServers.map((server) => [server.name, server])).values()]
  const maxListBytes = Math.floor(mostListBytes / named.length)
  const external = Promise.all(
    named.map((server) => connectExternal(connections, tenantId, server, maxListBytes, silence, signal)),
  )
  const servers: ExternalServer[] = []
  const unavailable = [...mcpUnavailable]
  try {
    const session =
      sessionMcpUrl === undefined ? undefined : await connectSession(connections.to(undefined), envelope, signal)
    for (const found of await external) {
      if ('connection' in found) servers.push(found)
      else unavailable.push(found)
    }
    const kept = withRoom(servers)
    for (const one of servers.filter((server) => !kept.includes(server))) {
      unavailable.push({ server: one.name, message: tooManyTools })
      void one.connection.close().catch(() => {})
    }
    const tools = createToolSet(session, kept, maxSchemas, (name) => needsApproval(profile, name))
    return { tools, unavailable }
  } catch (error) {
    // The run continues without external servers that fail.
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
  connections: ToolConnections,
  tenantId: string,
  { name, url, transport, headers, addresses, tools }: McpServer,
  maxListBytes: number,
  silence: Silence,
  signal: AbortSignal,
): Promise<ExternalServer | UnavailableMcpServer> {
  // Of one tenant, because a server may answer each differently, and whose run waited in vain is that tenant's alone.
  const place = tenantKey(tenantId, url)
  if (silence.isKnown(place)) return { server: name, message: 'The server did not answer a moment ago.' }
  try {
    const address = { url, transport, headers, tools, eras: connections.eras, maxListBytes }
    return {
      name,
      connection: await connect(connections.to(addresses), address, signal, connections.room.of(tenantId)),
    }
  } catch (error) {
    if (!signal.aborted && isTimeout(error)) silence.note(place)
    return { server: name, message: whyUnavailable(error) }
  }
}

/** Connections to tool servers, by the addresses that a server may have. */
export interface ToolConnections {
  to(addresses: McpServer['addresses']): ModelFetch
  /** The known protocol era of those servers, kept for the next run. */
  readonly eras: McpEras
  /** For what those servers answer. */
  readonly room: AnswerRoom
  close(): Promise<void>
}

export function createToolConnections(): ToolConnections {
  const unguarded = createModelConnections()
  const guarded = {
    public: createModelConnections({ permits: permittedAddresses.public }),
    network: createModelConnections({ permits: permittedAddresses.network }),
  }
  return {
    eras: new McpEras(),
    room: new AnswerRoom(),
    to: (addresses) => (addresses ? guarded[addresses] : unguarded).fetch,
    async close() {
      await Promise.all([unguarded, guarded.public, guarded.network].map((one) => one.close()))
    },
  }
}

/** For this many milliseconds runs leave out a silent server, instead of each waiting for it. */
const skipMs = 30_000
/** How many silent servers are remembered. The number is bounded, because tenants name the servers. */
const maxKnown = 1_000

/** External servers that recently did not answer in time, each for one tenant. */
export interface Silence {
  isKnown(place: string): boolean
  note(place: string): void
}

export function createSilence(now: () => number = Date.now): Silence {
  const until = new Map<string, number>()
  return {
    isKnown: (place) => (until.get(place) ?? 0) > now(),
    note(place) {
      until.delete(place)
      until.set(place, now() + skipMs)
      for (const oldest of until.keys()) {
        if (until.size <= maxKnown) return
        until.delete(oldest)
      }
    },
  }
}
