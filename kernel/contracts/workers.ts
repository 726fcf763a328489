import { capability } from '../plugin.ts'
import type { Profile } from './profiles.ts'
import type { RunEnvelope } from './run-envelope.ts'
import type { RunnerSession, WorkerLease } from './runner.ts'
import type { StateBundle } from './runtime.ts'
import type { SandboxEvent } from './usage.ts'
import type { SidecarLink } from './sidecar.ts'
import type { ToolResult } from './tools.ts'

/** Who a worker is. `docs/security.md` has the whole token. */
export interface WorkerClaims {
  readonly tenantId: string
  readonly sessionId: string
  /** A token of another generation than the session's worker has is refused: that is how one is revoked at once. */
  readonly generation: number
}

/** Worker tokens: JWT HS256, `typ: ao-worker+jwt`. */
export interface WorkerTokens {
  /** AppError 503 `worker_token_unavailable` with a sentence that names the setting when no key is configured. */
  mint(claims: WorkerClaims): Promise<{ readonly token: string; readonly expiresAt: number }>
  /** AppError 401 whose code starts with `invalid or missing worker token` and says which case. Does not know generations. */
  verify(authorization: string | undefined): Promise<WorkerClaims & { readonly expiresAt: number }>
}
export const WorkerTokens = capability<WorkerTokens>('runner.worker-tokens')

/** The runner's end of one worker that polls. It knows nothing of where the worker runs. */
export interface WorkerChannel {
  readonly sessionId: string
  readonly generation: number
  /** For the worker's environment. */
  readonly token: string
  /** The same or a newer one, for a worker that starts anew: at least half of its life is left. AppError as `WorkerTokens.mint`. */
  freshToken(): Promise<string>
  /** When it polled last, in ms since the epoch; undefined before its first poll. */
  readonly lastPollAt: number | undefined
  /** Resolves once a poll of this generation is open; rejects when `signal` aborts or the channel closes. */
  connected(signal: AbortSignal): Promise<void>
  /** Answers an open poll with nothing: whoever polls then is alive, and not just a connection that nobody has missed yet. */
  endPoll(): void
  /**
   * Sends a run and yields what the worker uploads, as `SidecarLink.run` does. Aborting `signal` sends `cancel`. Ends early when
   * the worker stops polling. A worker without the conversation that the envelope resumes rejects it with 409
   * `session_state_missing`. What the envelope says of MCP addresses and credentials is replaced by the worker's own: the runner as
   * it sees it (`runnerUrl`), and its token; the runner forwards to external servers.
   */
  run(envelope: RunEnvelope, signal: AbortSignal, runnerUrl: string): AsyncIterable<Buffer>
  /** Asks a worker that polls for its state and waits for the upload; the durable copy when it does not answer. */
  exportState(): Promise<StateBundle | undefined>
  /** What the worker finds at its start, and what it uploaded last. */
  readonly state: StateBundle | undefined
  setState(bundle: StateBundle | undefined): void
  /** `ok: false` when the worker takes no tools, does not answer in time or leaves. */
  callTool(
    name: string,
    input: Readonly<Record<string, unknown>>,
    options: { readonly signal: AbortSignal; readonly timeoutMs: number },
  ): Promise<ToolResult>
  /**
   * Gives a warm worker its session: the same worker goes on under another id, generation and token. This channel has nothing left to
   * do then, nor to close.
   */
  bind(sessionId: string): Promise<WorkerChannel>
  /** Tells the worker to end; resolves when it has taken the command or after a second. */
  shutdown(): Promise<void>
  /** Its token and everything it sends are refused from now on; what waits for it ends. */
  close(): void
}

/** The polling workers of a runner. */
export interface WorkerHub {
  /**
   * A new generation of the session's worker; a former channel of the session is closed. AppError as `WorkerTokens.mint`, or 503
   * `worker_token_failed` when that fails otherwise or gives nothing.
   */
  open(tenantId: string, sessionId: string): Promise<WorkerChannel>
  /** AppError 401 unless the header holds a token of the session's present worker. For other endpoints of the session. */
  authorize(authorization: string | undefined, tenantId: string, sessionId: string): Promise<void>
}
export const WorkerHub = capability<WorkerHub>('runner.worker-hub')

/** A run whose sandbox is ready. */
export interface PreparedRun {
  /** What its readers are told: which sandbox, how it started, and what it used since the former run. */
  readonly event: SandboxEvent
  /** The run is over: from now on the sandbox is idle. */
  over(): void
}

/** Sessions whose worker, or whose tools, are in a sandbox of their own. */
export interface SandboxWorkers {
  /** Names of the providers, sorted. */
  readonly substrates: readonly string[]
  readonly defaultSubstrate?: string
  /**
   * Before a run: makes the session's worker ready, however long that takes. AppError 409 `session_state_missing` when the run is to
   * go on with a conversation that is neither in a worker nor here. Undefined: a static session whose tools need no sandbox now.
   */
  prepare(session: RunnerSession, resume: boolean, signal: AbortSignal): Promise<PreparedRun | undefined>
  /** The way to the worker of a session with `workerMode: sandbox`: launched, resumed or replaced when it is used. */
  link(session: RunnerSession): SidecarLink
  /** Executes a tool inside the session's sandbox, which a static session with `sandbox` in its profile has too. */
  callTool(
    session: RunnerSession,
    name: string,
    input: Readonly<Record<string, unknown>>,
    options: { readonly signal: AbortSignal; readonly timeoutMs: number },
  ): Promise<ToolResult>
  leases(tenantId: string | undefined, signal?: AbortSignal): Promise<readonly WorkerLease[]>
  lease(tenantId: string, sessionId: string, signal?: AbortSignal): Promise<WorkerLease | undefined>
  /** The session left this runner for good: its sandbox is destroyed. */
  release(session: RunnerSession): Promise<void>
  /** A provider said that this sandbox changed. Returns how many cached states were dropped. */
  invalidate(provider: string, sandboxId: string): number
  /** This runner was told of a profile; undefined: that it was deleted. Warm pools follow it. */
  sawProfile(tenantId: string, name: string, profile: Profile | undefined): void
}
export const SandboxWorkers = capability<SandboxWorkers>('runner.sandbox-workers')
