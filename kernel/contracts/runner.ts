import { type Static, Type } from '@sinclair/typebox'
import { capability, slot } from '../plugin.ts'
import type { BroadcastPage, BroadcastRevisions } from './broadcast.ts'
import { AppTool } from './apps.ts'
import { CallDecision } from './approvals.ts'
import type { DelegationAnswer, WaitingCall } from './delegation.ts'
import type { VfsLease, WorkerLease } from './leases.ts'
import { EgressOrder } from './egress.ts'
import type { EndingCode } from './endings.ts'
import type { ObjectWrite } from './object-writes.ts'
import { McpServer, UnavailableMcpServer } from './mcp-servers.ts'
import { ModelPrice } from './prices.ts'
import { Profile } from './profiles.ts'
import { promptFields } from './prompt.ts'
import { attemptFields } from './replay.ts'
import type { StateBundle } from './runtime.ts'
import type { SkillContent } from './skills.ts'
import type { ToolInvocation, ToolResult, ToolSpec } from './tools.ts'

/** What the model calls of a run may still cost, for a runner that forwards these calls. */
export const RunBudget = Type.Object({
  cents: Type.Number({ minimum: 0 }),
  /** The price of the profile's model, the only one that the run may call. */
  price: ModelPrice,
})
export type RunBudget = Static<typeof RunBudget>

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
    mcpServers: Type.Optional(Type.Array(McpServer)),
    apps: Type.Optional(Type.Array(AppTool, { description: 'Tools that a conductor calls.' })),
    /** Sent for profiles with `egress`. */
    egress: Type.Optional(EgressOrder),
    /** The servers that are unavailable, with the reasons. */
    mcpUnavailable: Type.Optional(Type.Array(UnavailableMcpServer)),
    /** How many delegations led here; 0 by default. */
    depth: Type.Optional(Type.Integer({ minimum: 0 })),
    /** True: a run waits for this one, as for what it delegated. */
    awaited: Type.Optional(Type.Literal(true)),
    /** The epoch of the claim. A run with a higher epoch takes the session from a run whose owner has lost the claim. */
    epoch: Type.Optional(Type.Integer({ minimum: 0 })),
    /**
     * Milliseconds for which the run continues without a reader, so that another conductor can read on. 0, the default: the run ends with its
     * connection.
     */
    keepMs: Type.Optional(Type.Integer({ minimum: 0, maximum: 120_000 })),
    /** What the tenant may use on each runner. Absent: sandboxes and their files are not limited. */
    limits: Type.Optional(
      Type.Object({
        stateBytes: Type.Optional(Type.Integer({ minimum: 0 })),
        attachmentBytes: Type.Optional(Type.Integer({ minimum: 0 })),
        sandboxes: Type.Optional(Type.Integer({ minimum: 0 })),
        workspaceBytes: Type.Optional(Type.Integer({ minimum: 0 })),
        toolCallsPerMinute: Type.Optional(Type.Integer({ minimum: 0 })),
        vfsBytes: Type.Optional(Type.Integer({ minimum: 0 })),
        vfsEntries: Type.Optional(Type.Integer({ minimum: 0 })),
        vfsSessions: Type.Optional(Type.Integer({ minimum: 0 })),
        objects: Type.Optional(Type.Integer({ minimum: 0 })),
        objectBytes: Type.Optional(Type.Integer({ minimum: 0 })),
      }),
    ),
    /** People's decisions on the run's calls, by the calls' keys. */
    decided: Type.Optional(Type.Record(Type.String(), CallDecision)),
    /** Sent for profiles whose worker is in a sandbox. Absent: its model calls have no cost limit. */
    budget: Type.Optional(RunBudget),
    ...promptFields,
    ...attemptFields,
  },
  { additionalProperties: true },
)
export type ExecuteRun = Static<typeof ExecuteRun>

export const RunnerInfo = Type.Object({
  hash: Type.String(),
  instance: Type.String({ description: 'Drawn once per process: another one means that the runner was restarted.' }),
  state: Type.Optional(
    Type.Union([Type.Literal('live'), Type.Literal('draining')], {
      description: 'A draining runner is about to stop and takes no new sessions; live by default.',
    }),
  ),
  capabilities: Type.Array(Type.String(), { description: 'Runtimes; empty means all of them.' }),
  capabilitiesKnown: Type.Boolean(),
  missing: Type.Optional(
    Type.Record(Type.String(), Type.String(), {
      description: 'Runtimes that a sidecar has but cannot execute, each with a sentence that says what it needs.',
    }),
  ),
  substrates: Type.Array(Type.String()),
  defaultSubstrate: Type.Optional(Type.String()),
  substratesKnown: Type.Boolean(),
  tools: Type.Optional(
    Type.Array(Type.String(), {
      description: 'Names of the tools that its sessions may have; an older runner does not say.',
    }),
  ),
  activeSessions: Type.Optional(Type.Integer({ description: 'Sessions in memory, across tenants.' })),
  activeRuns: Type.Optional(Type.Integer({ description: 'Running runs of all conductors.' })),
})
export type RunnerInfo = Static<typeof RunnerInfo>

/** An agent pool as conductors broadcast it. Only conductors interpret its placement rules; a runner just stores it. */
export interface BroadcastPool {
  readonly id: string
  readonly [more: string]: unknown
}

/** What a runner does and what it sees of its sidecars. Counts are for its process, across tenants; null means not measured. Specification 4.22. */
export const RunnerTopology = Type.Object({
  process: Type.Object({
    allocBytes: Type.Integer({ description: 'Live JavaScript heap.' }),
    sysBytes: Type.Integer({ description: 'Resident set.' }),
    heapInuseBytes: Type.Integer({ description: 'Heap taken from the system.' }),
    numGoroutine: Type.Union([Type.Integer(), Type.Null()], { description: 'Always null: Node has no goroutines.' }),
    numCPU: Type.Integer(),
    uptimeSeconds: Type.Number(),
  }),
  activeSessions: Type.Integer(),
  sessionsByRuntime: Type.Record(Type.String(), Type.Integer()),
  sidecars: Type.Array(
    Type.Object({
      runtime: Type.String(),
      kind: Type.Union([Type.Literal('stub'), Type.Literal('sidecar')]),
      state: Type.Union(['stub', 'live', 'cold', 'degraded', 'unreachable'].map((state) => Type.Literal(state))),
      url: Type.String(),
      observedInstances: Type.Union([
        Type.Array(Type.Object({ instance: Type.String(), inflight: Type.Integer(), lastSeenAt: Type.String() })),
        Type.Null(),
      ]),
    }),
  ),
})
export type RunnerTopology = Static<typeof RunnerTopology>

/** A session whose conversation changed since its runner last exported it. */
export const UnsavedSession = Type.Object({ tenantId: Type.String(), sessionId: Type.String() })
export type UnsavedSession = Static<typeof UnsavedSession>

/** What a tenant uses on one runner, as the tenant's limits count it. */
export const RunnerUsage = Type.Object({
  stateBytes: Type.Integer({ description: 'Conversations and profiles of its sessions, in memory.' }),
  sandboxes: Type.Integer(),
  workspaceBytes: Type.Optional(
    Type.Integer({ description: 'Files in its sandboxes; absent when no provider here can tell.' }),
  ),
})
export type RunnerUsage = Static<typeof RunnerUsage>

/** A session as the runner holds it in memory. `status`: 0 idle, 1 running, 2 errored, 3 shutdown on the wire. */
export interface RunnerSession {
  readonly id: string
  readonly tenantId: string
  readonly profile: Profile
  /** The tools that the session may use: those of the profile's list that the registry had when the session was created. It never changes. */
  readonly tools: readonly string[]
  readonly status: 'idle' | 'running' | 'errored' | 'shutdown'
  readonly createdAt: string
  readonly lastUsedAt: string
  readonly runtimeSessionId?: string | undefined
  readonly activeRunId?: string | undefined
  /** What the tenant may use here, as the conductor of its newest run stated. */
  readonly limits?: ExecuteRun['limits']
}

/**
 * Conductor to one runner: over HTTP, or in process when both are in one kernel. Failures are AppErrors: `unknown_session` 404, `session_busy` 409,
 * `unknown_profile` 404, `runner_draining` 503, `runner_unreachable` 503. A 503 is retryable when the runner certainly began nothing; the call may
 * then be made again, also on another runner.
 */
export interface RunnerLink {
  /** First 8 hex of SHA-256 of the runner's base URL. In process it is known once the kernel listens. */
  readonly hash: string
  info(signal?: AbortSignal): Promise<RunnerInfo>
  /**
   * Applies a page of the broadcast if it continues the runner's state of the tenant. Resolves to the revision that the runner then has: less than
   * `page.after` when something in between is missing, more when another conductor has sent newer pages.
   */
  takeBroadcast(tenantId: string, page: BroadcastPage): Promise<number>
  /** Returns the tenants of which the runner has an older revision than these. */
  behind(revisions: BroadcastRevisions): Promise<string[]>
  getSession(tenantId: string, sessionId: string): Promise<RunnerSession | undefined>
  /** Shuts down the session and its MCP endpoint. Idempotent. A call that `signal` cuts off counts as taken and not answered. */
  deleteSession(tenantId: string, sessionId: string, signal?: AbortSignal): Promise<void>
  /**
   * Idempotent: does nothing when the runner already has the session, unless told to replace an old copy. Without `bundle` the conversation starts
   * empty.
   */
  hydrate(tenantId: string, sessionId: string, profile: Profile, bundle?: StateBundle, replace?: boolean): Promise<void>
  exportState(tenantId: string, sessionId: string): Promise<StateBundle | undefined>
  /** Idle sessions of all tenants whose conversation changed since its last export. */
  unsaved(): Promise<readonly UnsavedSession[]>
  topology(signal?: AbortSignal): Promise<RunnerTopology>
  /** Undefined: the runner is of an earlier release, which does not count. */
  usage(tenantId: string, signal?: AbortSignal): Promise<RunnerUsage | undefined>
  /** The sandbox workers of a tenant's sessions. */
  workerLeases(tenantId: string, signal?: AbortSignal): Promise<readonly WorkerLease[]>
  /** Undefined when the session has no worker. */
  workerLease(tenantId: string, sessionId: string, signal?: AbortSignal): Promise<WorkerLease | undefined>
  /** Reports that a sandbox changed, according to its provider. Resolves to how many cached states the runner dropped. */
  invalidateSandbox(provider: string, sandboxId: string): Promise<number>
  vfsLeases(tenantId: string, signal?: AbortSignal): Promise<readonly VfsLease[]>
  vfsLease(tenantId: string, sessionId: string, signal?: AbortSignal): Promise<VfsLease | undefined>
  /** A session's tool calls that wait for a conductor. */
  delegations(tenantId: string, sessionId: string): Promise<readonly WaitingCall[]>
  /** Does nothing when the tool call no longer waits. */
  answerDelegation(tenantId: string, sessionId: string, id: string, answer: DelegationAnswer): Promise<void>
  /** The writes of a run's agent to the object store, after number `after`. Also empty when the runner has no tools that write. */
  objectWrites(tenantId: string, sessionId: string, runId: string, after: number): Promise<readonly ObjectWrite[]>
  /** Calls a tool of a session outside a run. Rejects with AppError 403 `tool_not_allowed`. A failure of the tool itself is `{ok: false}`. */
  invokeTool(tenantId: string, sessionId: string, call: ToolInvocation, signal: AbortSignal): Promise<ToolResult>
  /** Sends a skill version, for sessions that keep it. */
  putSkill(tenantId: string, skill: SkillContent): Promise<void>
  /**
   * Executes a run in a session. Yields chunks of whole stamped NDJSON lines. A stream that ends without `result` or
   * `error` was cut. Aborting `signal` aborts the sidecar's turn, unless its reason leaves it to another reader: see `leaving`.
   */
  execute(tenantId: string, run: ExecuteRun, signal: AbortSignal): AsyncIterable<Buffer>
  /**
   * Continues reading a run that this runner executes, or executed within its `keepMs`. The current reader is cut off. Signal and chunks are as in
   * `execute`. AppErrors: 404 `unknown_run`; 410 `run_gap` when the events after `afterSeq` are no longer kept.
   */
  attach(tenantId: string, from: AttachRun, signal: AbortSignal): AsyncIterable<Buffer>
}

/**
 * The abort reason of a reader that leaves a run to another reader: the run continues for its `keepMs`. The same holds when only the reader's
 * connection is gone (`client_gone`). Any other reason ends the run: as `timeout` or `budget_exceeded` for these reasons, otherwise as `cancelled`.
 */
export const leaving = 'leaving'

/** Abort reasons by which a run fails instead of being cancelled. Its session is then errored, for its runner and for its conductor. */
export const failingStops = ['timeout', 'budget_exceeded'] as const satisfies readonly EndingCode[]
export type FailingStop = (typeof failingStops)[number]
export const isFailingStop = (reason: unknown): reason is FailingStop =>
  (failingStops as readonly unknown[]).includes(reason)

/** The position from which another conductor continues reading. */
export interface AttachRun {
  readonly sessionId: string
  readonly runId: string
  /** The seq of the last stored event. */
  readonly afterSeq: number
  /** The epoch of the reader's claim. If it is lower than the current reader's, it is refused with 409 `attempt_superseded`. */
  readonly epoch: number
}

/** A runner in the same kernel as the conductor; at most one entry, named `local`. */
export const LocalRunners = slot<RunnerLink>('conductor.local-runners')

/** The requirements of a new session on its runner. */
export interface Placement {
  readonly runtime: string
  /** Runner hashes and runtimes that the pool allows; an absent list allows all. */
  readonly pool?: { readonly runners?: readonly string[]; readonly runtimes?: readonly string[] }
  /** The substrate of its sandbox by name, or true for the runner's default. Absent when it has no sandbox. */
  readonly substrate?: string | true
  /** Hashes of runners that have already failed to take the session. */
  readonly without?: ReadonlySet<string>
}

/** An existing session that needs a runner for its next run. */
export interface Homecoming extends Omit<Placement, 'runtime'> {
  readonly sessionId: string
  /** Hash of the runner with the session's newest conversation. Absent: the hash in the session's id. */
  readonly runner?: string
  /** The required runtime. Absent: any runner will do. */
  readonly runtime?: string
  /** The store has the complete conversation, so no particular runner is needed. */
  readonly stored?: boolean
}

/** One runner, as its last successful probe showed it to this conductor. */
export interface FleetMember extends Omit<RunnerInfo, 'state' | 'instance' | 'activeSessions' | 'activeRuns'> {
  readonly state: 'live' | 'draining' | 'unreachable'
  /** Sessions in the runner's memory, across tenants. Null: not measured. */
  readonly activeSessions: number | null
}

/** The runners this conductor knows. */
export interface Fleet {
  /** The runner for a new session: live, supports the runtime, in the pool, least loaded. AppError 503 `no_runner` when none. */
  place(order: Placement): RunnerLink
  /**
   * The runner for the next run of a session: the one that has the session, draining or not. If that runner is unreachable, removed, or about to
   * stop while the conversation is stored, another runner is chosen, the same on every conductor, and must be given the conversation. Throws
   * AppError 503 `no_runner` when there is none.
   */
  home(order: Homecoming): RunnerLink
  /** The runner that has a session: `runner`, or by default the one in its id. Undefined: this conductor does not know it. */
  owner(sessionId: string, runner?: string): RunnerLink | undefined
  /** Every runner, including those that cannot be reached. */
  all(): readonly RunnerLink[]
  /** The state of each runner in `all()`, in the same order. */
  describe(): readonly FleetMember[]
  /** The answers of the reachable runners, in the order of `all()`. A runner that fails, or does not answer within `ms`, is left out. */
  askAll<T>(ask: (link: RunnerLink, signal: AbortSignal) => Promise<T>, ms: number): Promise<T[]>
  /**
   * Called each time a runner becomes live with an empty memory: the first time, and whenever its process is a new one. Returns a function that
   * unsubscribes.
   */
  onLive(listener: (link: RunnerLink) => void): () => void
  /** Called repeatedly while a runner says that it is about to stop. The runner waits until its sessions are saved. */
  onDraining(listener: (link: RunnerLink) => void): () => void
}
export const Fleet = capability<Fleet>('conductor.fleet')

/** The sessions of one runner process, for the servers of their tools. */
export interface RunnerSessions {
  /** Undefined for an unknown session. The tenant is not checked: a caller that has one must compare `tenantId`. */
  get(sessionId: string): RunnerSession | undefined
  /** Whether an Authorization header has the token of the session's current run, which the run's envelope contains. */
  admits(session: RunnerSession, authorization: string | undefined): boolean
  toolSpecs(session: RunnerSession): ToolSpec[]
  /** Rejects with AppError 403 `tool_not_allowed` for a tool outside the session's toolkit. */
  invokeTool(
    session: RunnerSession,
    name: string,
    input: unknown,
    signal: AbortSignal,
    /** The call's id in the run's events, given by a runtime that continues after a `replay`. */
    callId?: string,
  ): Promise<ToolResult>
}
export const RunnerSessions = capability<RunnerSessions>('runner.sessions')
