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

/** What the model calls of a run may still cost, where its runner lets them through. */
export const RunBudget = Type.Object({
  cents: Type.Number({ minimum: 0 }),
  /** Of the model of its profile, the only one that it may call. */
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
    /** The names of servers that are not available, and why. */
    mcpUnavailable: Type.Optional(Type.Array(UnavailableMcpServer)),
    /** How many delegations led here; 0 by default. */
    depth: Type.Optional(Type.Integer({ minimum: 0 })),
    /** The epoch of the claim. A run under a higher epoch takes the session from a run whose owner has lost it. */
    epoch: Type.Optional(Type.Integer({ minimum: 0 })),
    /** Milliseconds for which the run goes on without a reader, so that another conductor can read on. 0 by default: it ends with its connection. */
    keepMs: Type.Optional(Type.Integer({ minimum: 0, maximum: 120_000 })),
    /** What the tenant may have on each runner: without limits of sandboxes and their files by default. */
    limits: Type.Optional(
      Type.Object({
        stateBytes: Type.Optional(Type.Integer({ minimum: 0 })),
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
    /** What people have decided of its calls, by their keys. */
    decided: Type.Optional(Type.Record(Type.String(), CallDecision)),
    /** Sent for profiles whose worker is in a sandbox; without it its model calls have no limit of cost. */
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

/** An agent pool as conductors broadcast it. Who may be placed where is the conductor's to read; a runner only keeps it. */
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

/** A session whose conversation changed since its runner last gave it out. */
export const UnsavedSession = Type.Object({ tenantId: Type.String(), sessionId: Type.String() })
export type UnsavedSession = Static<typeof UnsavedSession>

/** What a tenant has on one runner, as its limits count it. */
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
  /** The tools the session may use: the profile's list cut to the registry when the session was created; never changes. */
  readonly tools: readonly string[]
  readonly status: 'idle' | 'running' | 'errored' | 'shutdown'
  readonly createdAt: string
  readonly lastUsedAt: string
  readonly runtimeSessionId?: string | undefined
  readonly activeRunId?: string | undefined
  /** What its tenant may have here, as the conductor of its newest run said. */
  readonly limits?: ExecuteRun['limits']
}

/**
 * Conductor to one runner: over HTTP, or in process when both live in one kernel. Failures are AppErrors:
 * `unknown_session` 404, `session_busy` 409, `unknown_profile` 404, `runner_draining` 503, `runner_unreachable` 503. A 503 is
 * retryable when the runner certainly took nothing: then the call may be made again, on another runner too.
 */
export interface RunnerLink {
  /** First 8 hex of SHA-256 of the runner's base URL. In process it is known once the kernel listens. */
  readonly hash: string
  info(signal?: AbortSignal): Promise<RunnerInfo>
  /**
   * Takes a page of the broadcast if it continues what the runner has of the tenant. Resolves to the revision that it has
   * then: less than `page.after` when something in between is missing, more when somebody else has told it more.
   */
  takeBroadcast(tenantId: string, page: BroadcastPage): Promise<number>
  /** Returns the tenants of which the runner has an older revision than these. */
  behind(revisions: BroadcastRevisions): Promise<string[]>
  getSession(tenantId: string, sessionId: string): Promise<RunnerSession | undefined>
  /** Shuts the session down, and its MCP endpoint with it. Idempotent. */
  deleteSession(tenantId: string, sessionId: string): Promise<void>
  /**
   * Idempotent: no-op when the runner already has the session, unless told to replace an old copy. `bundle` absent: starts
   * with an empty conversation.
   */
  hydrate(tenantId: string, sessionId: string, profile: Profile, bundle?: StateBundle, replace?: boolean): Promise<void>
  exportState(tenantId: string, sessionId: string): Promise<StateBundle | undefined>
  /** Resting sessions, of all tenants, whose conversation changed since it was last exported. */
  unsaved(): Promise<readonly UnsavedSession[]>
  topology(signal?: AbortSignal): Promise<RunnerTopology>
  /** Undefined: a runner of an earlier release, which does not count. */
  usage(tenantId: string, signal?: AbortSignal): Promise<RunnerUsage | undefined>
  /** Sandbox workers of a tenant's sessions. */
  workerLeases(tenantId: string, signal?: AbortSignal): Promise<readonly WorkerLease[]>
  /** Undefined when the session has no worker. */
  workerLease(tenantId: string, sessionId: string, signal?: AbortSignal): Promise<WorkerLease | undefined>
  /** A provider said that this sandbox changed. Resolves to how many cached states the runner dropped. */
  invalidateSandbox(provider: string, sandboxId: string): Promise<number>
  vfsLeases(tenantId: string, signal?: AbortSignal): Promise<readonly VfsLease[]>
  vfsLease(tenantId: string, sessionId: string, signal?: AbortSignal): Promise<VfsLease | undefined>
  /** Tool calls of a session that wait for a run of another profile, or for a call of an app. */
  delegations(tenantId: string, sessionId: string): Promise<readonly WaitingCall[]>
  /** Does nothing when the tool call does not wait any more. */
  answerDelegation(tenantId: string, sessionId: string, id: string, answer: DelegationAnswer): Promise<void>
  /** What the agent of a run wrote to the object store with its tools, behind number `after`. Empty too where the runner has no such tools. */
  objectWrites(tenantId: string, sessionId: string, runId: string, after: number): Promise<readonly ObjectWrite[]>
  /** Calls a tool of a session outside a run. AppError 403 `tool_not_allowed`; a tool's own failure is `{ok: false}`. */
  invokeTool(tenantId: string, sessionId: string, call: ToolInvocation, signal: AbortSignal): Promise<ToolResult>
  /** Brings a version of a skill, for sessions that keep it. */
  putSkill(tenantId: string, skill: SkillContent): Promise<void>
  /**
   * Executes a run in a session. Yields chunks of whole stamped NDJSON lines. A stream that ends without `result` or
   * `error` was cut. Aborting `signal` aborts the sidecar's turn, unless its reason leaves it to another reader: see `leaving`.
   */
  execute(tenantId: string, run: ExecuteRun, signal: AbortSignal): AsyncIterable<Buffer>
  /**
   * Reads on in a run that this runner executes, or has executed within its `keepMs`. Its present reader is cut off. Signal
   * and chunks as of `execute`. AppErrors: 404 `unknown_run`; 410 `run_gap` when what follows `afterSeq` is not kept any more.
   */
  attach(tenantId: string, from: AttachRun, signal: AbortSignal): AsyncIterable<Buffer>
}

/**
 * Reason with which a reader's signal aborts when it leaves a run to another reader: the run goes on, for its `keepMs`. So it
 * does when nothing but the reader's connection is gone (`client_gone`). Any other reason ends the run: as `timeout` or `budget_exceeded` when it is that, else as `cancelled`.
 */
export const leaving = 'leaving'

/** Reasons by which a run fails instead of being cancelled: its session is errored then, to its runner as to its conductor. */
export const failingStops = ['timeout', 'budget_exceeded'] as const satisfies readonly EndingCode[]
export type FailingStop = (typeof failingStops)[number]
export const isFailingStop = (reason: unknown): reason is FailingStop =>
  (failingStops as readonly unknown[]).includes(reason)

/** Where another conductor reads on. */
export interface AttachRun {
  readonly sessionId: string
  readonly runId: string
  /** The last event that is stored. */
  readonly afterSeq: number
  /** The epoch of the reader's claim. A lower one than the present reader's is refused with 409 `attempt_superseded`. */
  readonly epoch: number
}

/** A runner in the same kernel as the conductor; at most one entry, named `local`. */
export const LocalRunners = slot<RunnerLink>('conductor.local-runners')

/** What a new session needs of its runner. */
export interface Placement {
  readonly runtime: string
  /** Runner hashes and runtimes that the pool allows; an absent list allows all. */
  readonly pool?: { readonly runners?: readonly string[]; readonly runtimes?: readonly string[] }
  /** The substrate of its sandbox by name, or true for the runner's default. Absent when it has no sandbox. */
  readonly substrate?: string | true
  /** Hashes of runners that have already failed to take it. */
  readonly without?: ReadonlySet<string>
}

/** A session that exists and needs a runner for its next run. */
export interface Homecoming extends Omit<Placement, 'runtime'> {
  readonly sessionId: string
  /** Hash of the runner with its newest conversation; the one in its id by default. */
  readonly runner?: string
  /** The runtime it needs; any runner will do by default. */
  readonly runtime?: string
  /** Its conversation is whole in the store, so no runner is needed to know it. */
  readonly stored?: boolean
}

/** One runner as this conductor knows it, from its last successful probe. */
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
   * The runner for the next run of a session: the one that has it, draining or not. When that one cannot be reached or was removed, or is
   * about to stop and the conversation is stored, another one, the same on every conductor; it must be given the
   * conversation. AppError 503 `no_runner` when none.
   */
  home(order: Homecoming): RunnerLink
  /** The runner that has a session: `runner`, or by default the one in its id. Undefined: this conductor does not know it. */
  owner(sessionId: string, runner?: string): RunnerLink | undefined
  /** Every runner, including those that cannot be reached. */
  all(): readonly RunnerLink[]
  /** How each of `all()` is, in the same order. */
  describe(): readonly FleetMember[]
  /** What the runners say that are not away, in the order of `all()`. One that fails, or says nothing within `ms`, is left out. */
  askAll<T>(ask: (link: RunnerLink, signal: AbortSignal) => Promise<T>, ms: number): Promise<T[]>
  /**
   * Called each time a runner becomes live with an empty memory: the first time, and when its process is another one than
   * before. Returns how to stop being called.
   */
  onLive(listener: (link: RunnerLink) => void): () => void
  /** Called again and again while a runner says that it is about to stop: it waits until its sessions are saved. */
  onDraining(listener: (link: RunnerLink) => void): () => void
}
export const Fleet = capability<Fleet>('conductor.fleet')

/** The sessions of one runner process, for whoever serves their tools. */
export interface RunnerSessions {
  /** Undefined for an unknown session. No tenant check: callers compare `tenantId` where the caller has one. */
  get(sessionId: string): RunnerSession | undefined
  /** Whether an Authorization header has the token of the session's run under way, which the run's envelope brings. */
  admits(session: RunnerSession, authorization: string | undefined): boolean
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
