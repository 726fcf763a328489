import { type Static, Type } from '@sinclair/typebox'
import { capability, slot } from '#kernel'
import { Profile } from './profiles.ts'
import type { StateBundle } from './runtime.ts'
import { attemptFields } from './replay.ts'
import type { ToolResult, ToolSpec } from './tools.ts'

/** Body of `POST /runner/runs`. */
export const ExecuteRun = Type.Object(
  {
    runId: Type.String(),
    sessionId: Type.String(),
    prompt: Type.String(),
    metadata: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
    firstSeq: Type.Integer({ minimum: 1 }),
    timeoutMs: Type.Integer({ minimum: 1 }),
    runtimeSessionId: Type.Optional(Type.String()),
    /** Present for a session's first run: the session is created under the conductor's id in the same round trip. */
    create: Type.Optional(Type.Object({ profile: Profile })),
  },
    ...attemptFields,
  { additionalProperties: true },
)
export type ExecuteRun = Static<typeof ExecuteRun>

export const RunnerInfo = Type.Object({
  hash: Type.String(),
  instance: Type.String({ description: 'Drawn once per process: another one means that the runner was restarted.' }),
  state: Type.Optional(
    Type.Union([Type.Literal('live'), Type.Literal('draining')], {
      description: 'A draining runner is about to stop and takes no new sessions; live unless given.',
    }),
  ),
  capabilities: Type.Array(Type.String(), { description: 'Runtimes; empty means all of them.' }),
  capabilitiesKnown: Type.Boolean(),
  substrates: Type.Array(Type.String()),
  defaultSubstrate: Type.Optional(Type.String()),
  substratesKnown: Type.Boolean(),
  activeSessions: Type.Optional(Type.Integer({ description: 'Sessions in memory, across tenants.' })),
  activeRuns: Type.Optional(Type.Integer({ description: 'Runs under way, whichever conductor sent them.' })),
})
export type RunnerInfo = Static<typeof RunnerInfo>

/** An agent pool as conductors broadcast it. Who may be placed where is the conductor's to read; a runner only keeps it. */
export interface BroadcastPool {
  readonly id: string
  readonly [more: string]: unknown
}

/** A session as the runner holds it in memory. `status`: 0 idle, 1 running, 2 errored, 3 shutdown on the wire. */
export interface RunnerSession {
  readonly id: string
  readonly tenantId: string
  readonly profile: Profile
  /** The tools the session may use: the profile's list cut to the registry when the session was created; never changes. */
  readonly tools: readonly string[]
  readonly status: 'idle' | 'running' | 'errored' | 'shutdown'
  readonly createdAt: string
  readonly lastUsedAt: string
  readonly runtimeSessionId?: string
  readonly activeRunId?: string
}

/**
 * Conductor to one runner: over HTTP, or in process when both live in one kernel. Failures are AppErrors:
 * `unknown_session` 404, `session_busy` 409, `unknown_profile` 404, `runner_unreachable` 503 retryable.
 */
export interface RunnerLink {
  /** First 8 hex of SHA-256 of the runner's base URL. In process it is known once the kernel listens. */
  readonly hash: string
  info(signal?: AbortSignal): Promise<RunnerInfo>
  putProfile(tenantId: string, profile: Profile): Promise<void>
  deleteProfile(tenantId: string, name: string): Promise<void>
  putPool(tenantId: string, pool: BroadcastPool): Promise<void>
  deletePool(tenantId: string, id: string): Promise<void>
  getSession(tenantId: string, sessionId: string): Promise<RunnerSession | undefined>
  /** Shuts the session down, and its MCP endpoint with it. Idempotent. */
  deleteSession(tenantId: string, sessionId: string): Promise<void>
  /** Idempotent: no-op when the runner already has the session. `bundle` absent: starts with an empty conversation. */
  hydrate(tenantId: string, sessionId: string, profile: Profile, bundle?: StateBundle): Promise<void>
  exportState(tenantId: string, sessionId: string): Promise<StateBundle | undefined>
  /**
   * Executes a run in a session. Yields chunks of whole stamped NDJSON lines. A stream that ends without `result` or
   * `error` was cut. Aborting `signal` aborts the sidecar's turn.
   */
  execute(tenantId: string, run: ExecuteRun, signal: AbortSignal): AsyncIterable<Buffer>
}

/** A runner in the same kernel as the conductor; at most one entry, named `local`. */
export const LocalRunners = slot<RunnerLink>('conductor.local-runners')

/** What a new session needs of its runner. */
export interface Placement {
  readonly runtime: string
  /** Runner hashes and runtimes that the pool allows; an absent list allows all. */
  readonly pool?: { readonly runners?: readonly string[]; readonly runtimes?: readonly string[] }
}

/** One runner as this conductor knows it, from its last successful probe. */
export interface FleetMember extends Omit<RunnerInfo, 'state' | 'instance' | 'activeSessions' | 'activeRuns'> {
  readonly state: 'live' | 'draining' | 'unreachable'
  /** Sessions in the runner's memory, across tenants. Null: not measured. */
  readonly activeSessions: number | null
}

/** The runners this conductor knows. */
export interface RunnerPool {
  /** The runner for a new session: live, supports the runtime, in the pool, least loaded. AppError 503 `no_runner` when none. */
  place(order: Placement): RunnerLink
  /** The runner that owns a session, by the hash in its id. Undefined: this pool does not know it. */
  owner(sessionId: string): RunnerLink | undefined
  /** Every runner, those that are away included. */
  all(): readonly RunnerLink[]
  fleet(): readonly FleetMember[]
  /**
   * Called each time a runner becomes live with an empty memory: the first time, and when its process is another one than
   * before. Returns how to stop being called.
   */
  onLive(listener: (link: RunnerLink) => void): () => void
}
export const RunnerPool = capability<RunnerPool>('conductor.runner-pool')

/** The sessions of one runner process, for the plugins that serve them (wire, MCP). */
export interface RunnerSessions {
  /** Undefined for an unknown session. No tenant check: callers compare `tenantId` where the caller has one. */
  get(sessionId: string): RunnerSession | undefined
  list(): readonly RunnerSession[]
  toolSpecs(session: RunnerSession): ToolSpec[]
  /** AppError 403 `tool_not_allowed` outside the session's toolkit. */
  invokeTool(
    session: RunnerSession,
    name: string,
    input: unknown,
    signal: AbortSignal,
    /** The call's id in the run's events, from a runtime that goes on with a `replay`. */
    callId?: string,
  ): Promise<ToolResult>
}
export const RunnerSessions = capability<RunnerSessions>('runner.sessions')

/** The runner's own link and what only its wire routes need on top of it. */
export interface RunnerService extends RunnerLink {
  /** The broadcast profiles of a tenant, by name. */
  profiles(tenantId: string): readonly Profile[]
  /** The broadcast pools of a tenant, in the order they came. */
  pools(tenantId: string): readonly BroadcastPool[]
  /** A session under an id of this runner's own. AppError 404 `unknown_profile` when the name was never broadcast. */
  createSession(tenantId: string, profileName: string): RunnerSession
  /** Ends a run under way with an `error` event `cancelled`. Idempotent. */
  cancelRun(tenantId: string, runId: string): void
}
export const RunnerCore = capability<RunnerService>('runner.core')
