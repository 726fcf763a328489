import { capability } from '#kernel'
import type { Profile } from './profiles.ts'
import type { Usage } from './run-event.ts'
import type { LogChunk, RunStatus, RunSummary, Task, TerminalRunStatus } from './runs.ts'
import type { SandboxUse } from './sandbox-use.ts'
import type { Session } from './sessions.ts'
import type { StateBundle } from './runtime.ts'

/** Proof of ownership of a session's one run. Every later write carries it; an older epoch is refused. */
export interface Claim {
  readonly tenantId: string
  readonly sessionId: string
  readonly runId: string
  readonly epoch: number
  /** The public run that ends with it, and the conversation that gets its answer. */
  readonly chat?: { readonly publicRunId: string; readonly conversationId: string }
}

export interface StartRun {
  readonly tenantId: string
  readonly runId: string
  /** Of a chat that is continued: the session that its conversation goes on in when it has none of its own any more. */
  readonly sessionId: string
  readonly task: Task
  /** Present when the session is new: its snapshot is stored with it. */
  readonly create?: Profile
}

export type StartOutcome =
  | { readonly kind: 'started'; readonly claim: Claim; readonly session: DurableSession }
  /** The run id is taken: the caller attaches to it or answers 409, as its contract says. */
  | { readonly kind: 'exists'; readonly run: RunSummary }
  | { readonly kind: 'busy' }
  | { readonly kind: 'no_session' }
  | { readonly kind: 'other_profile'; readonly profile: string }

/** How many runs may wait for one session. */
export const maxQueued = 100

export interface EnqueueRun extends Omit<StartRun, 'create'> {
  /** Goes before all that wait. An interrupt that waits already is cancelled for it. */
  readonly interrupt: boolean
}

export type EnqueueOutcome =
  | { readonly kind: 'queued' }
  | { readonly kind: 'exists'; readonly run: RunSummary }
  /** `maxQueued` runs wait already. */
  | { readonly kind: 'full' }
  | { readonly kind: 'no_session' }
  | { readonly kind: 'other_profile'; readonly profile: string }

export type NextOutcome =
  | { readonly kind: 'started'; readonly claim: Claim; readonly session: DurableSession; readonly task: Task }
  /** The first in line is an interrupt, and another run still holds the session. */
  | { readonly kind: 'held'; readonly runId: string; readonly interrupt: string }
  /** Nobody waits, or somebody else has taken the session. */
  | { readonly kind: 'none' }

/** Why somebody other than its runner ends a run. */
export interface EndReason {
  readonly code: string
  readonly message: string
}

/** The reason of a run that gave way. */
export const interruptedBy = (runId: string): EndReason => ({
  code: 'interrupted_by',
  message: `The run was cancelled in favour of run ${runId}.`,
})
export const sessionShutDown: EndReason = {
  code: 'session_shutdown',
  message: 'The session was shut down before the run began.',
}

/** A run whose owner died and whose profile has it tried again. */
export interface Orphan {
  readonly claim: Claim
  readonly task: Task
  readonly session: DurableSession
  /** How often it was begun. */
  readonly attempt: number
  /** Since it was first begun, in the store's time. */
  readonly elapsedMs: number
}

/** Goes on with orphans in this process. Without one they all end as `interrupted`. */
export interface Adopter {
  /** How many it takes now: a burst of orphans is spread over several sweeps, and over all conductors. */
  room(): number
  /** Asked inside the transaction that takes the run from its owner. With a reason the run ends, as `interrupted`. */
  wants(orphan: Orphan): true | EndReason
  /** The run belongs to this process, and its next attempt is counted. */
  adopt(orphan: Orphan): void
}

export interface DurableSession {
  readonly id: string
  readonly profile: Profile
  readonly status: Session['status']
  readonly runtimeSessionId?: string
  /** Epoch of its last claim. */
  readonly epoch: number
  /** Count of saved state bundles; 0 means none yet. */
  readonly stateRev: number
  /** Hash of the runner that took the session's last run: its copy of the conversation is the newest. Absent before the first run ended. */
  readonly runner?: string
}

/** Which state of a resting session a bundle is a copy of. */
export interface CopiedState {
  /** Hash of the runner it was exported from. */
  readonly runner: string
  /** Epoch of the session's last claim when the export began. */
  readonly epoch: number
}

export interface FinishRun {
  readonly claim: Claim
  readonly status: TerminalRunStatus
  readonly sessionStatus: 'idle' | 'errored'
  readonly result?: string
  readonly error?: { readonly code: string; readonly message: string }
  /** What the run used, all its model calls together; `costCents` when a price is known. Metered by the same write that ends the run. */
  readonly usage?: Usage
  readonly toolCalls?: number
  /** The run had a sandbox; its own duration is added to what is here. */
  readonly sandbox?: SandboxUse
  readonly runtimeSessionId?: string
  /** Hash of the runner that took the run. Absent: none did, and the conversation is where it was. */
  readonly runner?: string
  /** Events not stored yet, the terminal one included: made durable in the same transaction, before anyone sees it. */
  readonly tail: LogChunk | undefined
}

/**
 * Sessions, runs and their event logs, with the claim that makes one run per session true across all conductors.
 * PostgreSQL and memory serve the same contract and pass the same suite.
 */
export interface RunStore {
  /** One transaction: creates or claims the session and inserts the run. */
  start(run: StartRun): Promise<StartOutcome>
  /** Appends consecutive events. False: the claim was lost; stop writing. */
  append(claim: Claim, chunk: LogChunk): Promise<boolean>
  /** Appends the events that begin another attempt of the run, and counts it. False: the claim was lost. */
  retry(claim: Claim, attempt: number, chunk: LogChunk): Promise<boolean>
  /** Compare-and-set to a terminal status, releasing the claim. False: somebody else ended the run first; nothing was written. */
  finish(end: FinishRun): Promise<boolean>
  /**
   * Steals the run from its owner, whoever that is: raises the epoch, so that the owner's writes are refused, then ends it.
   * A run that waits has no owner; it leaves its queue. False: the run is over or unknown.
   */
  steal(tenantId: string, runId: string, status: TerminalRunStatus, reason: EndReason): Promise<boolean>
  /** Accepts a run whose session is busy. Its caller then asks for the next: the session may have become free meanwhile. */
  enqueue(run: EnqueueRun): Promise<EnqueueOutcome>
  /** Claims the session for the first run in its queue, both in one statement. */
  claimNext(tenantId: string, sessionId: string): Promise<NextOutcome>
  /**
   * Called when runs wait for a session that is free, or an interrupt for one that is not: at once in the process whose write
   * freed it, and again in every process until somebody has claimed the next.
   */
  onWaiting(listener: (tenantId: string, sessionId: string) => void): void
  /** Asks whichever process executes the run to end it. Nobody may hear it: whoever must be sure waits, then steals. */
  ask(tenantId: string, runId: string, reason: EndReason): Promise<void>
  onAsked(listener: (tenantId: string, runId: string, reason: EndReason) => void): void
  findRun(tenantId: string, runId: string): Promise<RunSummary | undefined>
  /** Newest first. */
  listRuns(tenantId: string, filter: RunFilter): Promise<{ runs: RunSummary[]; total: number }>
  /** Stored chunks that contain events after `afterSeq`, oldest first, at most about 1 MiB; `status` as of the same instant. */
  readLog(
    tenantId: string,
    runId: string,
    afterSeq: number,
  ): Promise<{ chunks: LogChunk[]; status: RunStatus } | undefined>
  /** The runs that the session began after its `ordinal`th one, in that order, at most 100; undefined for an unknown session. */
  runsOfSession(
    tenantId: string,
    sessionId: string,
    ordinal: number,
  ): Promise<{ runs: { runId: string; ordinal: number }[]; status: Session['status'] } | undefined>
  findSession(tenantId: string, sessionId: string): Promise<DurableSession | undefined>
  getSession(tenantId: string, sessionId: string): Promise<Session | undefined>
  listSessions(tenantId: string, filter: Page & { q?: string }): Promise<{ sessions: Session[]; total: number }>
  /** idle or errored -> shutdown, cancelling what waits. 'running' when a run is under way, undefined when unknown. */
  shutdownSession(tenantId: string, sessionId: string): Promise<'shutdown' | 'running' | undefined>
  /** Keeps a copy of the conversation. False: the session was claimed since then, or another runner has it; the copy is old. */
  saveState(tenantId: string, sessionId: string, bundle: StateBundle, of: CopiedState): Promise<boolean>
  loadState(tenantId: string, sessionId: string): Promise<StateBundle | undefined>
  /**
   * Ends runs whose owner is dead as `interrupted`, one terminal event each, or hands them to the adopter. Returns how many it ended.
   * Safe to run anywhere, any time.
   */
  sweepOrphans(): Promise<number>
  onOrphan(adopter: Adopter): void
  /**
   * Tells the store which runs this process executes. One that was claimed in its name by a call whose answer was lost is
   * ended as `interrupted`: nobody would execute it.
   */
  executing(check: (tenantId: string, runId: string) => boolean): void
  /** Called when this process's own claims were lost (it was frozen past its lease): abort every run of these ids. */
  onFenced(listener: () => void): void
}

export interface Page {
  readonly limit?: number
  readonly offset?: number
}
export interface RunFilter extends Page {
  readonly profile?: string
  readonly sessionId?: string
  readonly status?: RunStatus
  /** Only runs that this one has delegated. */
  readonly parent?: string
  /** Bounds of `startedAt`, as ISO times; `from` included, `to` not. */
  readonly from?: string
  readonly to?: string
}

export const RunStore = capability<RunStore>('conductor.run-store')
