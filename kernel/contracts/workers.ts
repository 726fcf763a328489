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

/** Specification 7: the text starts with this, and then says which case it is. */
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
  /** Throws AppError 401 unless the header holds a token of the session's current worker. */
  authorize(authorization: string | undefined, tenantId: string, sessionId: string): Promise<void>
}
export const WorkerHub = capability<WorkerHub>('runner.worker-hub')

/** The event that tells a run's readers about its sandbox. The runner writes it directly after its `runner_accepted`. */
export type SandboxEvent = Static<typeof ProgressEvent> & {
  readonly stage: 'sandbox'
  readonly provider: string
  /** `running`: the sandbox was already running. */
  readonly start: 'launched' | 'warm' | 'resumed' | 'running'
  /** Milliseconds that the start took. */
  readonly startMs: number
  /** Seconds that the sandbox was awake without a run since the previous run. */
  readonly idleSeconds: number
}

/** A run's requirements on its sandbox. */
export interface SandboxOrder {
  /** True: the run continues a conversation that should exist. */
  readonly resume: boolean
  readonly budget?: RunBudget
  /** What its sandbox may reach. Absent: nothing. */
  readonly egress?: EgressOrder
  /** Called after each model call of the run, with the call's usage. */
  onUsage(usage: UsageEvent): void
}

/** The measurement of a run's model calls, by the runner that forwards them. */
export interface MeasuredCalls {
  /** Ends the running calls and refuses further ones. Returns the usage that was not reported yet. Call it once. */
  end(): readonly UsageEvent[]
}

/** A run whose sandbox is ready. */
export interface PreparedRun {
  /** The event for the run's readers: the run's sandbox, how it started, and what it used since the previous run. */
  readonly event: SandboxEvent
  /** Undefined: the model calls do not go through this runner, so that only the worker knows their usage. */
  readonly calls?: MeasuredCalls
  /** Called when the run is over. From then on the sandbox is idle. */
  over(): void
}

/** Counts the memory that sessions use on a runner. */
export interface SessionMemory {
  /**
   * Sets the bytes of the session's state. Throws AppError 429 `limit_reached` when its tenant may not use that much, and 404 `unknown_session`
   * when the session is not the tenant's; the old number then stays.
   */
  hold(tenantId: string, sessionId: string, bytes: number): void
}

/** Sessions whose worker or tools are in their own sandbox. */
export interface SandboxWorkers {
  /** Names of the providers, sorted. */
  readonly substrates: readonly string[]
  readonly defaultSubstrate?: string
  /**
   * Makes the session's worker ready for a run, however long that takes. AppError 409 `session_state_missing` when the run continues a conversation
   * that is neither in a worker nor here. Undefined: a static session whose tools need no sandbox now.
   */
  prepare(session: RunnerSession, order: SandboxOrder, signal: AbortSignal): Promise<PreparedRun | undefined>
  /** The link to the worker of a session with `workerMode: sandbox`. Using the link launches, resumes or replaces the worker. */
  link(session: RunnerSession): SidecarLink
  /** Executes a tool inside the session's sandbox. A static session with `sandbox` in its profile has one too. */
  callTool(
    session: RunnerSession,
    name: string,
    input: Readonly<Record<string, unknown>>,
    options: { readonly signal: AbortSignal; readonly timeoutMs: number },
  ): Promise<ToolResult>
  /** See `SessionSandbox`. It starts no sandbox. */
  settleFiles(session: RunnerSession, signal: AbortSignal): Promise<string | undefined>
  leases(tenantId: string | undefined, signal?: AbortSignal): Promise<readonly WorkerLease[]>
  lease(tenantId: string, sessionId: string, signal?: AbortSignal): Promise<WorkerLease | undefined>
  /** Whether the session has a sandbox, and files in it. */
  has(session: RunnerSession): boolean
  /** Registers the memory in which the sessions' states are counted. Call it in setup; until then nothing is counted. */
  countIn(memory: SessionMemory): void
  usage(tenantId: string): Pick<RunnerUsage, 'sandboxes' | 'workspaceBytes'>
  /** Called when the session left this runner for good. Destroys its sandbox. */
  release(session: RunnerSession): Promise<void>
  /** Called when a provider reported a change of this sandbox. Returns how many cached states were dropped. */
  invalidate(provider: string, sandboxId: string): number
  /** Called when this runner got a profile; undefined: the profile was deleted. Warm pools follow it. */
  sawProfile(tenantId: string, name: string, profile: Profile | undefined): void
}
export const SandboxWorkers = capability<SandboxWorkers>('runner.sandbox-workers')
