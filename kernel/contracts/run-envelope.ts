import { type Static, Type } from '@sinclair/typebox'
import { EgressAccess } from './egress.ts'
import { McpServer, UnavailableMcpServer } from './mcp-servers.ts'
import { Profile } from './profiles.ts'
import { promptFields } from './prompt.ts'
import { attemptFields } from './replay.ts'

/** Everything a sidecar needs to execute one run: the body of `POST /run`. Specification 4.23. */
export const RunEnvelope = Type.Object(
  {
    runId: Type.String(),
    sessionId: Type.String(),
    tenantId: Type.String(),
    /** The session's snapshot, taken when the session was created. */
    profile: Profile,
    prompt: Type.String(),
    metadata: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
    /** Streamable-HTTP MCP endpoint of the session, which has nothing to list when its profile names no tools. */
    sessionMcpUrl: Type.Optional(Type.String()),
    /** The bearer token for it, valid during the run. */
    sessionMcpToken: Type.Optional(Type.String()),
    /** The vendor's conversation handle, when a former run of this session reported one. */
    runtimeSessionId: Type.Optional(Type.String()),
    /**
     * The session has a conversation. A runtime that should hold it and does not (its process is a new one) refuses with 409
     * `session_state_missing` before it streams, so that the conversation is restored instead of forgotten.
     */
    resume: Type.Optional(Type.Boolean()),
    /** Stamp of the first event that the sidecar writes. */
    firstSeq: Type.Integer({ minimum: 1 }),
    /** Milliseconds left for the run when the envelope was sent: durations survive clocks that disagree. */
    timeoutMs: Type.Integer({ minimum: 1 }),
    /** The external MCP servers of the profile. */
    mcpServers: Type.Optional(Type.Array(McpServer)),
    /** For workers in sandboxes whose profile lets them reach hosts. */
    egress: Type.Optional(EgressAccess),
    /** For workers in sandboxes: the session uses the VirtualFS, and its runtime may have tools of its own that touch the files. */
    vfs: Type.Optional(Type.Literal(true)),
    /** The names of servers that are not available, and why. */
    mcpUnavailable: Type.Optional(Type.Array(UnavailableMcpServer)),
    ...promptFields,
    ...attemptFields,
  },
  { additionalProperties: true },
)
export type RunEnvelope = Static<typeof RunEnvelope>

/** The address of the session's tools; undefined when it has none, because connecting would only cost time. */
export const toolsUrlOf = ({
  profile,
  sessionMcpUrl,
}: Pick<RunEnvelope, 'profile' | 'sessionMcpUrl'>): string | undefined =>
  profile.tools.length > 0 ? sessionMcpUrl : undefined
