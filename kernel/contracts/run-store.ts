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

/** Proof of ownership of a session's one run. Every later write carries it; an older epoch is refused. */
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
  /** For a continued chat: the session to use when the conversation's own session is gone. */
  readonly sessionId: string
  readonly task: Task
  /** Present when the session is new: its snapshot is stored with it, unless the tenant's profiles have changed since `revision`. */
  readonly create?: NewSession
}

export interface NewSession {
  readonly profile: Profile
  /** The revision of the tenant's profiles and pools when the profile was read; not compared by default. */
  readonly revision?: number
  /** The session, now gone, in whose place the conversation of a chat goes on in this one. */
  readonly insteadOf?: string
}

/** The tenant has no credit for the run, or a budget no more. */
export interface Unfunded {
  readonly kind: 'unfunded'
  /** The answer to the caller, 402. */
  readonly why: AppError
}

export type StartOutcome =
  | {
      readonly kind: 'started'
      readonly claim: Claim
      readonly session: DurableSession
      /** Microcents that are held for the run; absent where nothing is. */
      readonly held?: number
    }
  /** The run id is taken: the caller attaches to it or answers 409, as its contract says. */
  | { readonly kind: 'exists'; readonly run: RunSummary }
  | { readonly kind: 'busy' }
  /** The id drawn for a new session belongs to another one: draw again. */
  | { readonly kind: 'session_taken' }
  /** For a continued chat `sessionId` is the session in which its conversation was. */
  | { readonly kind: 'no_session'; readonly sessionId?: string }
  | { readonly kind: 'other_profile'; readonly profile: string; readonly sessionId?: string }
  /** The agent has no conversation of that id. */
  | { readonly kind: 'no_conversation' }
  /** The key or the agent of the chat has changed since the gateway read it. */
  | { readonly kind: 'stale_admission' }
  | Unfunded
  /** The profile was read before the last change of the tenant's profiles: read it again. */
  | { readonly kind: 'stale_profile' }

/** How many runs may wait for one session. */
export const maxQueued = 100

export interface EnqueueRun extends Omit<StartRun, 'create'> {
  /** It goes before all waiting runs. An interrupt that already waits is cancelled. */
  readonly interrupt: boolean
  /** How many runs of the tenant may wait; by default any number. */
  readonly most?: number
}

export type EnqueueOutcome =
  | { readonly kind: 'queued' }
  | { readonly kind: 'exists'; readonly run: RunSummary }
  /** `maxQueued` runs wait for the session already. */
  | { readonly kind: 'full' }
  /** The tenant has reached its limit of waiting runs. */
  | { readonly kind: 'tenant_full' }
  | Unfunded
  | { readonly kind: 'no_session' }
  | { readonly kind: 'other_profile'; readonly profile: string }

export type NextOutcome =
  | { readonly kind: 'started'; readonly claim: Claim; readonly session: DurableSession; readonly task: Task }
  /** The first in line is an interrupt, and another run still holds the session. */
  | { readonly kind: 'held'; readonly runId: string; readonly interrupt: string }
  /** No run waits, or another process has taken the session. */
  | { readonly kind: 'none' }

/** The reason when something other than its runner ends a run. */
export interface EndReason {
  readonly code: string
  readonly message: string
}

/** The reason of a run that was interrupted by another one. */
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
  /** Its owner stopped in good order and left it for others to go on with. */
  readonly handedOver: boolean
  /** Milliseconds since it first began, in the store's time, without those in which it waited for people. */
  readonly elapsedMs: number
}

/** Decides which orphans this process continues. Without an adopter all orphans end as `interrupted`. */
export interface Adopter {
  /** The `onCrash` of profiles that have none. */
  readonly onCrash: OnCrash
  /** How many orphans it takes now: a burst is spread over several sweeps, and over all conductors. */
  room(): number
  /** Called inside the transaction that takes the run from its owner. When it returns a reason, the run ends as `interrupted`. */
  wants(orphan: Orphan): true | EndReason
  /** The run belongs to this process. */
  adopt(orphan: Orphan): void
  /** Continues a run that is still parked although all its approvals are decided, because the process that took it died. */
  resume(tenantId: string, runId: string): void
}

export interface DurableSession {
  readonly id: string
  readonly profile: Profile
  readonly status: Session['status']
  readonly runtimeSessionId?: string
  /** The epoch of its last claim. */
  readonly epoch: number
  /** Count of saved state bundles; 0 means none yet. */
  readonly stateRev: number
  /** Hash of the runner that took the session's last run; it has the newest copy of the conversation. Absent before the first run ended. */
  readonly runner?: string
}

/** Which state of a resting session a bundle is a copy of. */
export interface CopiedState {
  /** Hash of the runner it was exported from. */
  readonly runner: string
  /** Epoch of the session's last claim when the export began. */
  readonly epoch: number
}

/** What a run used of its sandbox. */
export interface SandboxUse {
  /** Seconds awake before the run that no earlier run was charged for. */
  readonly idleSeconds: number
  /** Seconds of the run; all the time until its end by default. */
  readonly runSeconds?: number
}

export interface FinishRun {
  readonly claim: Claim
  readonly status: TerminalRunStatus
  readonly sessionStatus: 'idle' | 'errored'
  readonly result?: string
  readonly error?: { readonly code: string; readonly message: string }
  /** What all model calls of the run used, with `costCents` when a price is known. It is metered by the same write that ends the run. */
  readonly usage?: Usage
  readonly toolCalls?: number
  /** Present when the run had a sandbox; the run's own duration is added. */
  readonly sandbox?: SandboxUse
  readonly runtimeSessionId?: string
  /** Hash of the runner that took the run. Absent when none did: then the conversation stays where it was. */
  readonly runner?: string
  /** Whether the attachments of the prompt are kept, because the conversation is restored from them. */
  readonly keepInput?: boolean
  /** Events that are not stored yet, the terminal one included. They are stored in the same transaction, before anyone sees the ending. */
  readonly tail: LogChunk | undefined
}

/** A finished run of a conversation, with what is needed to restore it. */
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
 * Sessions, runs and their event logs, with the claim that makes one run per session true across all conductors. The plugin
 * `runs` writes it, in PostgreSQL or, without a database, in memory; others read it. Both pass the same suite.
 */
export interface RunStore {
  /** One transaction: creates or claims the session and inserts the run, with its public run, message and conversation if it answers a chat. */
  start(run: StartRun): Promise<StartOutcome>
  /**
   * Takes back a run that nobody has seen begin, with all that its start has written: as if it had never been asked for.
   * False: the claim was lost.
   */
  discard(claim: Claim): Promise<boolean>
  /** Hands a running run over to the next process. Nothing more is written under this claim. False: the claim was lost. */
  handOver(claim: Claim): Promise<boolean>
  /**
   * Parks a running run until `resume`; `then` is in the same transaction. Nothing more is written under this claim. False:
   * the claim was lost, or the store cannot.
   */
  park(claim: Claim, then: (tx: TenantTx) => Promise<void>): Promise<boolean>
  /** Takes a parked run; undefined: it is no longer parked. */
  resume(tenantId: string, runId: string): Promise<Orphan | undefined>
  /** Ends a run that is parked. False: it is not. */
  endParked(tenantId: string, runId: string, status: TerminalRunStatus, reason: EndReason): Promise<boolean>
  /** This process stops taking over runs. True when another process still does. */
  retreat(): Promise<boolean>
  /**
   * Sets how many runs of a tenant this process may execute at once: `wanted`, or what the others leave of `max`, which may be
   * less than it had. Resolves to that number. The share of a process that dies is free again.
   */
  holdRuns(tenantId: string, wanted: number, max: number): Promise<number>
  /** Adds to what the tenant's runs have written to their logs today (UTC), in bytes; resolves to what that is then. */
  countLogBytes(tenantId: string, bytes: number): Promise<number>
  /** The sessions of a tenant that are not shut down; counts no further than `most`. */
  countSessions(tenantId: string, most: number): Promise<number>
  /** The runs of a tenant that wait for their sessions. */
  countWaiting(tenantId: string): Promise<number>
  /** The runs of a tenant that all processes may execute now, those that they keep at hand included. */
  countHeld(tenantId: string): Promise<number>
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
   * Called when runs wait for a session that is free, or an interrupt waits for one that is not: at once in the process whose
   * write freed it, and again in every process until one has claimed the next run.
   */
  onWaiting(listener: (tenantId: string, sessionId: string) => void): void
  /** Asks the process that executes the run to end it. The request may get lost: a caller that must be sure waits, then steals the run. */
  requestEnd(tenantId: string, runId: string, reason: EndReason): Promise<void>
  onEndRequested(listener: (tenantId: string, runId: string, reason: EndReason) => void): void
  findRun(tenantId: string, runId: string): Promise<RunSummary | undefined>
  /** Lists runs, newest first. A run that begins while a long list is read goes to its front, where the reader is past. */
  listRuns(tenantId: string, filter: RunFilter): Promise<Listing<RunPreview>>
  /** The costs of a run's ended delegated runs, in cents by their ids, each with its own delegated runs. */
  delegatedCents(tenantId: string, runId: string): Promise<ReadonlyMap<string, number>>
  /** Stored chunks that contain events after `afterSeq`, oldest first, at most about 1 MiB; `status` as of the same instant. */
  readLog(
    tenantId: string,
    runId: string,
    afterSeq: number,
  ): Promise<{ chunks: LogChunk[]; status: RunStatus } | undefined>
  /** The terminal event of a run that is over. */
  readEnding(tenantId: string, runId: string): Promise<LogChunk | undefined>
  /** The runs that the session began after its `ordinal`th one, in that order, at most 100; undefined for an unknown session. */
  runsOfSession(
    tenantId: string,
    sessionId: string,
    ordinal: number,
  ): Promise<{ runs: { runId: string; ordinal: number }[]; status: Session['status'] } | undefined>
  findSession(tenantId: string, sessionId: string): Promise<DurableSession | undefined>
  getSession(tenantId: string, sessionId: string): Promise<Session | undefined>
  /** Sessions that were not shut down, newest first. */
  listSessions(tenantId: string, filter: Page & { q?: string }): Promise<Listing<Session>>
  /** idle or errored -> shutdown, cancelling what waits. 'running' when a run is under way, undefined when unknown. */
  shutdownSession(tenantId: string, sessionId: string): Promise<'shutdown' | 'running' | undefined>
  /**
   * Stores a copy of the conversation, and resolves to by how many bytes it is larger than the one before. Undefined: the copy is
   * old, because the session was claimed since then or another runner has it.
   */
  saveState(tenantId: string, sessionId: string, bundle: StateBundle, of: CopiedState): Promise<number | undefined>
  loadState(tenantId: string, sessionId: string): Promise<StateBundle | undefined>
  /** Finished runs of a session, or of the whole conversation that `runId` belongs to, before that run, newest first, in pages. */
  pastRuns(claim: Claim): AsyncIterable<readonly PastRun[]>
  /**
   * Ends runs whose owner is dead as `interrupted`, one terminal event each, or gives them to the adopter. Returns how many it ended.
   * Safe to run anywhere, any time.
   */
  sweepOrphans(): Promise<number>
  onOrphan(adopter: Adopter): void
  /**
   * Tells the store which runs this process executes. One that was claimed in its name by a call whose answer was lost is
   * ended as `interrupted`: nobody would execute it.
   */
  executing(check: (tenantId: string, runId: string) => boolean): void
  /** Called when this process has lost its own claims, because it was frozen past its lease: it must abort every run. */
  onFenced(listener: () => void): void
}

export interface RunFilter extends Page {
  readonly profile?: string
  readonly sessionId?: string
  readonly status?: RunStatus
  /** Only runs that this run has delegated. */
  readonly parent?: string
  /** Bounds of `startedAt`, as ISO times; `from` included, `to` not. */
  readonly from?: string
  readonly to?: string
}

export const RunStore = capability<RunStore>('conductor.run-store')
