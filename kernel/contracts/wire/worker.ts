import { type Static, Type } from '@sinclair/typebox'
import { RunEnvelope } from '../run-envelope.ts'

/** The names in the outbound worker's wire, specification 4.22 and 4.23: the worker of one session polls its runner. */
export const workerProtocol = '1'
/** Counts the uploads of a sandbox's state. The copy with the higher number is the newer one. */
export const stateRevHeader = 'x-agent-orc-state-rev'

/** Milliseconds: the longest time that a poll is held open. */
export const pollMs = 25_000
export const maxEventUploadBytes = 256 * 1024 * 1024
export const maxEventUploadMs = 4 * 60 * 60 * 1_000
/** The runner's state-bundle size cap. */
export const maxStateBytes = 64 * 1024 * 1024

const command = <K extends string>(kind: K) => ({
  /** Counts from 1 per worker. A command is repeated in every poll until a poll confirms it with `after`. */
  id: Type.Integer({ minimum: 1 }),
  kind: Type.Literal(kind),
})

export const WorkerCommand = Type.Union([
  Type.Object({ ...command('run'), envelope: RunEnvelope }),
  Type.Object({ ...command('cancel'), runId: Type.String() }),
  /** Answered by `PUT …/state`, or by `DELETE …/state` when there is no state. */
  Type.Object({ ...command('export_state') }),
  Type.Object({ ...command('shutdown') }),
  /** Only for a worker that polls with `tools=1`. Answered by `PUT …/tools/{callId}`. */
  Type.Object({
    ...command('tool'),
    callId: Type.String(),
    name: Type.String(),
    input: Type.Record(Type.String(), Type.Unknown()),
    timeoutMs: Type.Integer({ minimum: 1 }),
    /** The session uses the VirtualFS: files in the workspace are synchronized before and after the call. */
    vfs: Type.Optional(Type.Literal(true)),
  }),
  /** The result of that tool call is no longer needed. */
  Type.Object({ ...command('tool_cancel'), callId: Type.String() }),
  /** A warm-pool worker gets its session. From now on it uses this id and this token, and restores that session's state. */
  Type.Object({ ...command('bind'), sessionId: Type.String(), token: Type.String() }),
])
export type WorkerCommand = Static<typeof WorkerCommand>

/**
 * 200 of `GET /runner/worker/{sessionId}/poll?after&tools&wait`; 204: nothing within `wait` milliseconds; 409: a newer poll of this
 * worker took its place. A `bind` is the last of its answer.
 */
export const PollAnswer = Type.Object({
  commands: Type.Array(WorkerCommand),
  token: Type.Optional(Type.String({ description: 'Replaces the token that the worker has.' })),
})
export type PollAnswer = Static<typeof PollAnswer>

/** Milliseconds that synchronizing a sandbox's files may take, before a tool call and again after it. */
export const settleFilesMs = 20_000
/** A worker tool that does nothing. Calling it synchronizes the files. */
export const settleFilesTool = 'settle_files'
/** The folder in the workspace with the mounts of the session: `vfs/<mount>/<path>`. */
export const vfsFolder = 'vfs'

export const workerPaths = (sessionId: string) => {
  const base = `/runner/worker/${encodeURIComponent(sessionId)}`
  return {
    poll: `${base}/poll`,
    /** `POST ?runId=`: NDJSON, streamed during the run. */
    events: `${base}/events`,
    /**
     * `GET`, `PUT`, `DELETE` of the raw bundle, with its `Content-Type`, `X-Runtime-Session-Id` and `X-Agent-Orc-State-Rev`. A write with a lower
     * rev than the runner's changes nothing; a 404 has the rev since which there is no state.
     */
    state: `${base}/state`,
    tool: (callId: string) => `${base}/tools/${encodeURIComponent(callId)}`,
    /** Acts as the API root of a model provider (the `…/v1` of `openai` and `anthropic`); keys stay in the runner. */
    models: (provider: string) => `${base}/models/${encodeURIComponent(provider)}`,
    /** Acts as the endpoint of an external MCP server of the profile. */
    mcpServer: (name: string) => `${base}/mcp-servers/${encodeURIComponent(name)}`,
    /** `…/{host}/{path}` stands for `https://{host}/{path}`, if the run's profile permits that host. */
    egress: `${base}/egress`,
    /** `GET`: a `VfsTree`, with an `ETag`. */
    vfsTree: `${base}/vfs`,
    /** `GET`, `PUT`, `DELETE`, with `If-Match` and `If-None-Match` as on the VirtualFS server. */
    vfsFile: (mount: string, path: string) =>
      `${base}/vfs/${encodeURIComponent(mount)}/${path.split('/').map(encodeURIComponent).join('/')}`,
    sessionMcp: `/runner/sessions/${encodeURIComponent(sessionId)}/mcp`,
  }
}

/** The variables that make a process an outbound worker. Specification 4.23, rule 3. */
export const workerVariables = {
  runnerUrl: 'AGENT_ORC_RUNNER_URL',
  token: 'AGENT_ORC_WORKER_TOKEN',
  sessionId: 'AGENT_ORC_SESSION_ID',
  stateDir: 'AGENT_ORC_STATE_DIR',
  /** The folder in which the sandbox tools work, the home of the agent's files. */
  workspace: 'AGENT_ORC_WORKSPACE',
} as const
