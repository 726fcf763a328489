import { errorTable } from './errors.ts'
import type { Static } from '@sinclair/typebox'
import { capability } from '../plugin.ts'
import type { EgressOrder } from './egress.ts'
import type { Profile } from './profiles.ts'
import type { ProgressEvent, UsageEvent } from './run-event.ts'
import type { WorkerLease } from './leases.ts'
import type { RunBudget, RunnerSession, RunnerUsage } from './runner.ts'
import type { SidecarLink } from './sidecar.ts'
import type { ToolResult } from './tools.ts'

/** Specification 7: the text starts so, and says which case. */
export const workerTokenErrors = errorTable('worker-tokens', {
  missing: { code: 'invalid or missing worker token: missing', status: 401, about: 'Send the token of the worker.' },
  malformed: {
    code: 'invalid or missing worker token: malformed',
    status: 401,
    about: 'This is not a token of this server.',
  },
  expired: { code: 'invalid or missing worker token: expired', status: 401, about: 'A poll gets a new one in time.' },
  otherSession: {
    code: 'invalid or missing worker token: other session',
    status: 401,
    about: "The token is another session's.",
  },
  otherTenant: {
    code: 'invalid or missing worker token: other tenant',
    status: 401,
    about: "The token is another tenant's.",
  },
  superseded: {
    code: 'invalid or missing worker token: superseded',
    status: 401,
    about: 'The session now has another worker, or none.',
  },
})

/** The polling workers of a runner, for its other endpoints. */
export interface WorkerHub {
  /** AppError 401 unless the header holds a token of the session's present worker. */
  authorize(authorization: string | undefined, tenantId: string, sessionId: string): Promise<void>
}
export const WorkerHub = capability<WorkerHub>('runner.worker-hub')

/** The event that tells a run's readers about its sandbox. The runner writes it, right behind its `runner_accepted`. */
export type SandboxEvent = Static<typeof ProgressEvent> & {
  readonly stage: 'sandbox'
  readonly provider: string
  /** `running`: the sandbox was running already. */
  readonly start: 'launched' | 'warm' | 'resumed' | 'running'
  /** How long the start took. */
  readonly startMs: number
  /** How long it was awake without a run since the former one. */
  readonly idleSeconds: number
}

/** What a run needs from its sandbox. */
export interface SandboxOrder {
  /** It continues a conversation that should exist. */
  readonly resume: boolean
  readonly budget?: RunBudget
  /** What its sandbox may reach; nothing by default. */
  readonly egress?: EgressOrder
  /** Called for each of its model calls when it is over, with what it used. */
  onUsage(usage: UsageEvent): void
}

/** The model calls of a run, measured by the runner through which they go. */
export interface MeasuredCalls {
  /** Ends the running calls and refuses further ones. Returns what they have used so far, once. */
  end(): readonly UsageEvent[]
}

/** A run whose sandbox is ready. */
export interface PreparedRun {
  /** The event for the run's readers: which sandbox it has, how it started, and what it used since the previous run. */
  readonly event: SandboxEvent
  /** Undefined: its model calls do not go through this runner, so that only its worker knows what they used. */
  readonly calls?: MeasuredCalls
  /** Called when the run is over: from now on the sandbox is idle. */
  over(): void
}

/** Counts the memory that sessions use on a runner. */
export interface SessionMemory {
  /**
   * The session has so many bytes of state from now on. AppError 429 `limit_reached` when its tenant may not have them, 404
   * `unknown_session` when it is not the tenant's: then it has what it had.
   */
  hold(tenantId: string, sessionId: string, bytes: number): void
}

/** Sessions whose worker or tools are in their own sandbox. */
export interface SandboxWorkers {
  /** Names of the providers, sorted. */
  readonly substrates: readonly string[]
  readonly defaultSubstrate?: string
  /**
   * Before a run: makes the session's worker ready, however long that takes. AppError 409 `session_state_missing` when the run is to
   * go on with a conversation that is neither in a worker nor here. Undefined: a static session whose tools need no sandbox now.
   */
  prepare(session: RunnerSession, order: SandboxOrder, signal: AbortSignal): Promise<PreparedRun | undefined>
  /** The link to the worker of a session with `workerMode: sandbox`, which is launched, resumed or replaced when it is used. */
  link(session: RunnerSession): SidecarLink
  /** Executes a tool inside the session's sandbox, which a static session with `sandbox` in its profile has too. */
  callTool(
    session: RunnerSession,
    name: string,
    input: Readonly<Record<string, unknown>>,
    options: { readonly signal: AbortSignal; readonly timeoutMs: number },
  ): Promise<ToolResult>
  /** See `SessionSandbox`. Starts nothing. */
  settleFiles(session: RunnerSession, signal: AbortSignal): Promise<string | undefined>
  leases(tenantId: string | undefined, signal?: AbortSignal): Promise<readonly WorkerLease[]>
  lease(tenantId: string, sessionId: string, signal?: AbortSignal): Promise<WorkerLease | undefined>
  /** The session has a sandbox, and files in it. */
  has(session: RunnerSession): boolean
  /** Has the states of sessions counted that are kept here. Called in setup; until then none are. */
  countIn(memory: SessionMemory): void
  usage(tenantId: string): Pick<RunnerUsage, 'sandboxes' | 'workspaceBytes'>
  /** The session left this runner for good: its sandbox is destroyed. */
  release(session: RunnerSession): Promise<void>
  /** A provider reported a change of this sandbox. Returns how many cached states were dropped. */
  invalidate(provider: string, sandboxId: string): number
  /** This runner got a profile; undefined: it was deleted. Warm pools follow it. */
  sawProfile(tenantId: string, name: string, profile: Profile | undefined): void
}
export const SandboxWorkers = capability<SandboxWorkers>('runner.sandbox-workers')
