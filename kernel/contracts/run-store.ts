import { capability } from '../plugin.ts'
import type { TenantTx } from './database.ts'
import type { AppError } from './errors.ts'
import type { Listing, Page } from './paging.ts'
import type { OnCrash, Profile } from './profiles.ts'
import type { PromptFields } from './prompt.ts'
import type { LogChunk, Usage } from './run-event.ts'
import type { RunPreview, RunStatus, RunSummary, Task, TerminalRunStatus } from './runs.ts'
import type { Session } from './sessions.ts'
import type { StateBundle } from './runtime.ts'

/** Proof that its holder owns a session's single run. Every later write carries the claim, and an outdated epoch is refused. */
export interface Claim {
  readonly tenantId: string
  readonly sessionId: string
  readonly runId: string
  readonly epoch: number
  /** The public run that ends with this run, in the same statement. */
  readonly publicRunId?: string
}

export interface StartRun {
  readonly tenantId: string
  readonly runId: string
  /** For a continued chat this is the session to use when the conversation's own session is gone. */
  readonly sessionId: string
  readonly task: Task
  /** Present when the session is new. Its profile snapshot is stored with it, unless the tenant's profiles have changed since `revision`. */
  readonly create?: NewSession
}

export interface NewSession {
  readonly profile: Profile
  /** The revision of the tenant's profiles and pools when the profile was read. Absent: not compared. */
  readonly revision?: number
  /** The former session, now gone, that this session replaces in the conversation of a chat. */
  readonly insteadOf?: string
}

/** The tenant has no credit for the run, or a budget is exhausted. */
export interface Unfunded {
  readonly kind: 'unfunded'
  /** The error for the caller, 402. */
  readonly why: AppError
}

export type StartOutcome =
  | {
      readonly kind: 'started'
      readonly claim: Claim
      readonly session: DurableSession
      /** Microcents that are held for the run. Absent: nothing is held. */
      readonly held?: number
    }
  /** The run id is taken. The caller joins that run or answers 409, as its contract says. */
  | { readonly kind: 'exists'; readonly run: RunSummary }
  | { readonly kind: 'busy' }
  /** The id drawn for a new session is in use, so draw another one. */
  | { readonly kind: 'session_taken' }
  /** For a continued chat `sessionId` is the session in which its conversation was. */
  | { readonly kind: 'no_session'; readonly sessionId?: string }
  | { readonly kind: 'other_profile'; readonly profile: string; readonly sessionId?: string }
  /** The agent has no conversation with that id. */
  | { readonly kind: 'no_conversation' }
  /** The key or the agent of the chat has changed since the gateway read it. */
  | { readonly kind: 'stale_admission' }
  | Unfunded
  /** The profile was read before the tenant's profiles last changed, so read it again. */
  | { readonly kind: 'stale_profile' }

/** How many runs may wait for one session. */
export const maxQueued = 100

export interface EnqueueRun extends Omit<StartRun, 'create'> {
  /** The run goes before all waiting runs. A waiting interrupt is cancelled. */
  readonly interrupt: boolean
  /** How many runs of the tenant may wait. Absent: any number. */
  readonly most?: number
}

export type EnqueueOutcome =
  /** `holder`: the run that held the session when an interrupt was queued. */
  | { readonly kind: 'queued'; readonly holder?: string }
  | { readonly kind: 'exists'; readonly run: RunSummary }
  /** `maxQueued` runs already wait for the session. */
  | { readonly kind: 'full' }
  /** The tenant has reached its limit of waiting runs. */
  | { readonly kind: 'tenant_full' }
  | Unfunded
  | { readonly kind: 'no_session' }
  | { readonly kind: 'other_profile'; readonly profile: string }

export type NextOutcome =
  | { readonly kind: 'started'; readonly claim: Claim; readonly session: DurableSession; readonly task: Task }
  /** The first waiting run is an interrupt, and another run still holds the session. */
  | { readonly kind: 'held'; readonly runId: string; readonly interrupt: string }
  /** No run waits, another process has taken the session, or the run was not admitted. */
  | { readonly kind: 'none' }

/**
 * Asked before a run that brings attachments is taken: whether this process has room for so many bytes of them. When it has not, the run stays where
 * it is.
 */
export type AdmitAttachments = (runId: string, bytes: number) => boolean

/** Why something other than its runner ends a run. */
export interface EndReason {
  readonly code: string
  readonly message: string
}

/** The reason of a run that another run interrupted. */
export const interruptedBy = (runId: string): EndReason => ({
  code: 'interrupted_by',
  message: `The run was cancelled in favour of run ${runId}.`,
})
export const sessionShutDown: EndReason = {
  code: 'session_shutdown',
  message: 'The session was shut down before the run began.',
}

/** A run whose owner died, or has handed it over. */
export interface Orphan {
  readonly claim: Claim
  readonly task: Task
  readonly session: DurableSession
  /** The number of its latest attempt, from 1. */
  readonly attempt: number
  /** True when its owner stopped in good order and left the run for others to continue. */
  readonly handedOver: boolean
  /** Milliseconds since the run first began, in the store's time, without the time in which it waited for people. */
  readonly elapsedMs: number
}

/** Decides which orphans this process continues. Without an adopter all orphans end as `interrupted`. */
export interface Adopter {
  /** The `onCrash` policy of profiles that set none. */
  readonly onCrash: OnCrash
  /** How many orphans this process takes now, so that a burst is spread over several sweeps and over all conductors. */
  room(): number
  /** Called inside the transaction that takes the run from its owner. When it returns a reason, the run ends as `interrupted`. */
  wants(orphan: Orphan): true | EndReason
  /** Called when the run belongs to this process. */
  adopt(orphan: Orphan): void
  /** Continues a run that is still parked although all its approvals are decided, because the process that took it died. */
  resume(tenantId: string, runId: string): void
}

export interface DurableSession {
  readonly id: string
  readonly profile: Profile
  readonly status: Session['status']
  readonly runtimeSessionId?: string
  /** The epoch of the session's last claim. */
  readonly epoch: number
  /** The number of saved state bundles. 0: none yet. */
  readonly stateRev: number
  /** Hash of the runner that took the session's last run and so has the newest copy of the conversation. Absent until the first run ended. */
  readonly runner?: string
  /** The tokens that the conversation's last model call read and wrote. Absent until one was reported. */
  readonly contextTokens?: number
}

/** Identifies the state of an idle session that a bundle is a copy of. */
export interface CopiedState {
  /** Hash of the runner that exported the bundle. */
  readonly runner: string
  /** Epoch of the session's last claim when the export began. */
  readonly epoch: number
}

/** A run's use of its sandbox. */
export interface SandboxUse {
  /** Seconds that the sandbox was awake before the run and that no earlier run was charged for. */
  readonly idleSeconds: number
  /** Seconds of the run itself. Absent: the whole time until its end. */
  readonly runSeconds?: number
}

export interface FinishRun {
  readonly claim: Claim
  readonly status: TerminalRunStatus
  readonly sessionStatus: 'idle' | 'errored'
  readonly result?: string
  readonly error?: { readonly code: string; readonly message: string }
  /** The usage of all model calls of the run, with `costCents` when a price is known. The write that ends the run also meters it. */
  readonly usage?: Usage
  readonly toolCalls?: number
  /** Present when the run had a sandbox. The store adds the run's own duration. */
  readonly sandbox?: SandboxUse
  readonly runtimeSessionId?: string
  /** Hash of the runner that took the run. Absent when none did, so that the conversation stayed where it was. */
  readonly runner?: string
  /** The tokens that the run's last model call read and wrote, which the next call of the session reads again. Absent when none was reported. */
  readonly contextTokens?: number
  /** Whether the prompt's attachments are kept, because the conversation is restored from them. */
  readonly keepInput?: boolean
  /** Events that are not stored yet, the terminal one included. They are stored in the same transaction, before anyone sees the ending. */
  readonly tail: LogChunk | undefined
}

/** A finished run of a conversation, with everything that restoring the conversation needs. */
export interface PastRun {
  readonly runId: string
  readonly status: TerminalRunStatus
  readonly prompt: string
  readonly input: PromptFields | undefined
  readonly metadata: Record<string, unknown> | undefined
  readonly model: string | undefined
  readonly log: readonly LogChunk[]
}

/**
 * Sessions, runs and their event logs, and the claim that guarantees one run per session across all conductors. The plugin `runs` writes it, in
 * PostgreSQL or, without a database, in memory; other plugins read it. Both implementations pass the same suite.
 */
export interface RunStore {
  /** One transaction: creates or claims the session and inserts the run, with its public run, message and conversation if it answers a chat. */
  start(run: StartRun): Promise<StartOutcome>
  /** Removes a run that nobody has seen begin, and everything that its start wrote, as if it had never been requested. False: the claim was lost. */
  discard(claim: Claim): Promise<boolean>
  /** Hands a running run over to the next process. Later writes under this claim are refused. False: the claim was lost. */
  handOver(claim: Claim): Promise<boolean>
  /**
   * Parks a running run until `resume`, with `then` in the same transaction. Later writes under this claim are refused. False: the claim was lost,
   * or the store cannot park.
   */
  park(claim: Claim, then: (tx: TenantTx) => Promise<void>): Promise<boolean>
  /** Takes a parked run. Undefined: the run is no longer parked, or was not admitted. */
  resume(tenantId: string, runId: string, admits?: AdmitAttachments): Promise<Orphan | undefined>
  /** Ends a parked run. False: the run is not parked. */
  endParked(tenantId: string, runId: string, status: TerminalRunStatus, reason: EndReason): Promise<boolean>
  /** This process stops taking over runs. True: another process still takes them over. */
  retreat(): Promise<boolean>
  /**
   * Sets how many runs of a tenant this process may execute at once: `wanted`, or what the other processes leave of `max`, which may be less than
   * before. Resolves to that number. The share of a process that dies becomes free.
   */
  holdRuns(tenantId: string, wanted: number, max: number): Promise<number>
  /** Adds to the bytes that the tenant's runs wrote to their logs today (UTC). Resolves to the new total. */
  countLogBytes(tenantId: string, bytes: number): Promise<number>
  /** Counts the tenant's sessions that are not shut down, up to `most`. */
  countSessions(tenantId: string, most: number): Promise<number>
  /** Counts the tenant's runs that wait for their sessions. */
  countWaiting(tenantId: string): Promise<number>
  /** How many runs of a tenant all processes may execute now, including slots that they keep in reserve. */
  countHeld(tenantId: string): Promise<number>
  /** Appends consecutive events. False: the claim was lost, so stop writing. */
  append(claim: Claim, chunk: LogChunk): Promise<boolean>
  /** Appends the events that begin another attempt of the run, and counts it. False: the claim was lost. */
  retry(claim: Claim, attempt: number, chunk: LogChunk): Promise<boolean>
  /** Compare-and-set to a terminal status, which releases the claim. False: the run was already ended, and nothing was written. */
  finish(end: FinishRun): Promise<boolean>
  /**
   * Takes the run from its owner, whoever that is: raises the epoch, so that the owner's writes are refused, then ends the run. A queued run has no
   * owner and leaves its queue. False: the run is over or unknown.
   */
  steal(tenantId: string, runId: string, status: TerminalRunStatus, reason: EndReason): Promise<boolean>
  /** Queues a run whose session is busy. The caller must then call `claimNext`, because the session may have become free meanwhile. */
  enqueue(run: EnqueueRun): Promise<EnqueueOutcome>
  /** Claims the session for the first run in its queue. One statement does both. */
  claimNext(tenantId: string, sessionId: string, admits?: AdmitAttachments): Promise<NextOutcome>
  /**
   * Called when runs wait for a free session, or an interrupt waits for a busy one: at once in the process whose write freed the session, and again
   * in every process until one of them has claimed the next run.
   */
  onWaiting(listener: (tenantId: string, sessionId: string) => void): void
  /** Asks the process that executes the run to end it. The request may get lost: a caller that must be sure waits, then steals the run. */
  requestEnd(tenantId: string, runId: string, reason: EndReason): Promise<void>
  onEndRequested(listener: (tenantId: string, runId: string, reason: EndReason) => void): void
  findRun(tenantId: string, runId: string): Promise<RunSummary | undefined>
  /** Lists runs, newest first. A run that begins while a long list is read goes to its front, which the reader has already passed. */
  listRuns(tenantId: string, filter: RunFilter): Promise<Listing<RunPreview>>
  /** The costs in cents of a run's ended delegated runs, by run id, each including its own delegated runs. */
  delegatedCents(tenantId: string, runId: string): Promise<ReadonlyMap<string, number>>
  /** The ids of all runs that were delegated in the tree that a run belongs to, at most `most`. */
  delegatedInTree(tenantId: string, runId: string, most: number): Promise<readonly string[]>
  /** Stored chunks that contain events after `afterSeq`, oldest first, at most about 1 MiB; `status` as of the same instant. */
  readLog(
    tenantId: string,
    runId: string,
    afterSeq: number,
  ): Promise<{ chunks: LogChunk[]; status: RunStatus } | undefined>
  /** The terminal event of a run that is over. */
  readEnding(tenantId: string, runId: string): Promise<LogChunk | undefined>
  /** The runs that the session began after its `ordinal`th run, in that order, at most 100. Undefined for an unknown session. */
  runsOfSession(
    tenantId: string,
    sessionId: string,
    ordinal: number,
  ): Promise<{ runs: { runId: string; ordinal: number }[]; status: Session['status'] } | undefined>
  findSession(tenantId: string, sessionId: string): Promise<DurableSession | undefined>
  getSession(tenantId: string, sessionId: string): Promise<Session | undefined>
  /** Sessions that were not shut down, newest first. */
  listSessions(tenantId: string, filter: Page & { q?: string }): Promise<Listing<Session>>
  /** Moves an idle or errored session to shutdown and cancels its waiting runs. 'running': a run is under way. Undefined: the session is unknown. */
  shutdownSession(tenantId: string, sessionId: string): Promise<'shutdown' | 'running' | undefined>
  /**
   * Stores a copy of the conversation. Resolves to how many bytes larger it is than the previous copy. Undefined: the copy is outdated, because the
   * session was claimed since then or another runner has it.
   */
  saveState(tenantId: string, sessionId: string, bundle: StateBundle, of: CopiedState): Promise<number | undefined>
  loadState(tenantId: string, sessionId: string): Promise<StateBundle | undefined>
  /** Finished runs before the claimed run, of its session or of the whole conversation that it belongs to, newest first, in pages. */
  pastRuns(claim: Claim): AsyncIterable<readonly PastRun[]>
  /**
   * Ends runs whose owner is dead as `interrupted`, with one terminal event each, or gives them to the adopter. Returns how many it ended. Safe to
   * call in any process at any time.
   */
  sweepOrphans(): Promise<number>
  onOrphan(adopter: Adopter): void
  /**
   * Tells the store which runs this process executes. A run that was claimed by a call whose answer was lost is ended as `interrupted`, because
   * nobody would execute it.
   */
  executing(check: (tenantId: string, runId: string) => boolean): void
  /** Called when this process lost its claims, because it was frozen for longer than its lease. It must abort every run. */
  onFenced(listener: () => void): void
}

export interface RunFilter extends Page {
  readonly profile?: string
  readonly sessionId?: string
  readonly status?: RunStatus
  /** Only runs that this run has delegated. */
  readonly parent?: string
  /** Bounds of `startedAt` as ISO times: `from` is included, `to` is not. */
  readonly from?: string
  readonly to?: string
}

export const RunStore = capability<RunStore>('conductor.run-store')
