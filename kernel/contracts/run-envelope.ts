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
    /** The session's MCP endpoint (streamable HTTP). It lists nothing when the profile names no tools. */
    sessionMcpUrl: Type.Optional(Type.String()),
    /** The bearer token for that endpoint, valid during the run. */
    sessionMcpToken: Type.Optional(Type.String()),
    /** The vendor's conversation handle, if an earlier run of this session reported one. */
    runtimeSessionId: Type.Optional(Type.String()),
    /**
     * True: the session has a conversation. If the runtime should hold it and does not, because its process is new, it refuses with 409
     * `session_state_missing` before it streams, so that the conversation is restored instead of lost.
     */
    resume: Type.Optional(Type.Boolean()),
    /** The stamp of the sidecar's first event. */
    firstSeq: Type.Integer({ minimum: 1 }),
    /** Milliseconds that remained for the run when the envelope was sent. A duration works even when clocks disagree. */
    timeoutMs: Type.Integer({ minimum: 1 }),
    /** The external MCP servers of the profile. */
    mcpServers: Type.Optional(Type.Array(McpServer)),
    /** For sandboxed workers whose profile lets them reach hosts. */
    egress: Type.Optional(EgressAccess),
    /** For sandboxed workers: the session uses the VirtualFS, and the runtime's own tools may touch its files. */
    vfs: Type.Optional(Type.Literal(true)),
    /** The servers that are unavailable, with the reasons. */
    mcpUnavailable: Type.Optional(Type.Array(UnavailableMcpServer)),
    /** True: another run waits for this one and may hold what this one needs, so it must not wait until something of its tenant is free. */
    awaited: Type.Optional(Type.Literal(true)),
    ...promptFields,
    ...attemptFields,
  },
  { additionalProperties: true },
)
export type RunEnvelope = Static<typeof RunEnvelope>

/** The address of the session's tools. Undefined when it has none, because connecting would only take time. */
export const toolsUrlOf = ({
  profile,
  sessionMcpUrl,
}: Pick<RunEnvelope, 'profile' | 'sessionMcpUrl'>): string | undefined =>
  profile.tools.length > 0 ? sessionMcpUrl : undefined
