import type { Page } from '#contracts/paging'
import { attachmentBytesOf } from '#contracts/prompt'
import { createEventEncoder, endOf, lastSeqOf, type LogChunk } from '#contracts/run-event'
import {
  type AdmitAttachments,
  type Claim,
  type CopiedState,
  type EndReason,
  type EnqueueOutcome,
  type EnqueueRun,
  type FinishRun,
  interruptedBy,
  maxQueued,
  type NextOutcome,
  type PastRun,
  type RunFilter,
  type RunStore,
  sessionShutDown,
  type StartOutcome,
  type StartRun,
} from '#contracts/run-store'
import { beginOf, isTerminal, type RunStatus, type TerminalRunStatus } from '#contracts/runs'
import type { StateBundle } from '#contracts/runtime'
import { listOf } from '#kit/lists'
import {
  durableOf,
  newRun,
  newSession,
  Rows,
  type RunRow,
  type SessionRow,
  shownOf,
  taskOf,
  TenantUse,
  whereAfter,
} from './rows.ts'

type OnWaiting = Parameters<RunStore['onWaiting']>[0]
type OnAsked = Parameters<RunStore['onEndRequested']>[0]

/** How many finished runs, and how many idle sessions, a process keeps. The oldest are dropped. */
export const mostKept = 10_000
/** Approximate bytes that one read of a log returns. */
const readBytes = 1024 * 1024

const now = (): string => new Date().toISOString()
/** Items per read of a list. */
const listed = 64
const lastSeqIn = ({ log }: RunRow): number => (log.length > 0 ? lastSeqOf(log.at(-1)!) : 0)
/** Adds a chunk. A chunk that the log already has is ignored, because a call may be repeated. */
const add = (run: RunRow, chunk: LogChunk): void => {
  if (chunk.firstSeq > lastSeqIn(run)) run.log.push(chunk)
}

/** Sessions, runs and event logs of one process without a database: bounded, and lost when it ends. */
export class MemoryRunStore extends TenantUse implements RunStore {
  readonly #rows: Rows
  readonly #waiters: OnWaiting[] = []
  readonly #askers: OnAsked[] = []

  constructor(limit = mostKept) {
    const rows = new Rows(limit)
    super(rows)
    this.#rows = rows
  }

  async start(run: StartRun): Promise<StartOutcome> {
    const { tenantId, sessionId, create } = run
    const at = now()
    const existing = this.#rows.session(tenantId, sessionId)
    if (create && existing && !this.#rows.run(tenantId, run.runId)) return { kind: 'session_taken' }
    const place = this.#placeOf(run, existing ?? (create && newSession(tenantId, sessionId, create.profile, at)))
    if ('kind' in place) return place
    if (place.claimRun !== undefined || place.waiting.length > 0) return { kind: 'busy' }
    return { kind: 'started', claim: this.#claim(newRun(run), place, at), session: durableOf(place) }
  }
  async discard(claim: Claim): Promise<boolean> {
    const run = this.#claimed(claim)
    if (!run) return false
    this.#rows.deleteRun(run)
    const session = this.#rows.session(claim.tenantId, claim.sessionId)!
    session.claimRun = undefined
    const { runCount, lastRunStatus } = session.dto
    const status = lastRunStatus === 'error' ? 'errored' : 'idle'
    session.dto = { ...session.dto, status, runCount: runCount - 1 }
    // The discarded run had created the session, so the session goes with it.
    if (runCount === 1) this.#rows.deleteSession(session)
    else this.#tellWaiting(session)
    return true
  }
  async append(claim: Claim, chunk: LogChunk): Promise<boolean> {
    const run = this.#claimed(claim)
    if (run) add(run, chunk)
    return run !== undefined
  }
  async retry(claim: Claim, attempt: number, chunk: LogChunk): Promise<boolean> {
    const run = this.#claimed(claim)
    if (run) run.summary = { ...run.summary, attempt }
    return this.append(claim, chunk)
  }
  async finish(end: FinishRun): Promise<boolean> {
    return this.finishAt(end, now())
  }
  async steal(tenantId: string, runId: string, status: TerminalRunStatus, reason: EndReason): Promise<boolean> {
    const run = this.#rows.run(tenantId, runId)
    if (!run || isTerminal(run.summary.status)) return false
    const session = this.#rows.session(tenantId, run.summary.sessionId)
    if (session?.claimRun === runId) session.epoch++
    if (session) session.waiting = session.waiting.filter((one) => one.runId !== runId)
    this.#endAs(run, status, reason)
    return true
  }

  async enqueue({ interrupt: front, most = Infinity, ...run }: EnqueueRun): Promise<EnqueueOutcome> {
    const { tenantId, runId, sessionId } = run
    const place = this.#placeOf(run, this.#rows.session(tenantId, sessionId))
    if ('kind' in place) return place
    if (front) this.#cancelWaiting(place, interruptedBy(runId), true)
    else if (place.waiting.length >= maxQueued) return { kind: 'full' }
    if (this.#rows.waitingOf(tenantId) >= most) return { kind: 'tenant_full' }
    place.waiting[front ? 'unshift' : 'push']({ runId, front })
    this.#rows.putRun(newRun(run, now()))
    const { claimRun } = place
    return { kind: 'queued', ...(front && claimRun !== undefined ? { holder: claimRun } : {}) }
  }
  async claimNext(tenantId: string, sessionId: string, admits?: AdmitAttachments): Promise<NextOutcome> {
    const session = this.#rows.session(tenantId, sessionId)
    const head = session?.waiting[0]
    if (!session || !head) return { kind: 'none' }
    if (session.claimRun !== undefined) {
      return head.front ? { kind: 'held', runId: session.claimRun, interrupt: head.runId } : { kind: 'none' }
    }
    const run = this.#rows.run(tenantId, head.runId)!
    const bytes = attachmentBytesOf(run.input ?? {})
    if (bytes > 0 && admits?.(head.runId, bytes) === false) return { kind: 'none' }
    session.waiting.shift()
    return { kind: 'started', claim: this.#claim(run, session), session: durableOf(session), task: taskOf(run) }
  }
  onWaiting(listener: OnWaiting): void {
    this.#waiters.push(listener)
  }
  async requestEnd(tenantId: string, runId: string, reason: EndReason): Promise<void> {
    for (const listener of this.#askers) listener(tenantId, runId, reason)
  }
  onEndRequested(listener: OnAsked): void {
    this.#askers.push(listener)
  }

  async findRun(tenantId: string, runId: string) {
    return this.#rows.run(tenantId, runId)?.summary
  }
  async listRuns(tenantId: string, filter: RunFilter) {
    const { profile, sessionId, parent, status, from, to } = filter
    const matching = this.#rows
      .runs(tenantId)
      .map((run) => run.summary)
      .filter(
        (run) =>
          (profile === undefined || run.subTask.profile === profile) &&
          (sessionId === undefined || run.sessionId === sessionId) &&
          (parent === undefined || run.parent?.runId === parent) &&
          (status === undefined || run.status === status) &&
          (from === undefined || Date.parse(run.startedAt) >= Date.parse(from)) &&
          (to === undefined || Date.parse(run.startedAt) < Date.parse(to)),
      )
      .toReversed()
    return listOf(matching, filter, listed, shownOf)
  }
  // No run of another process continues here, so nothing was delegated earlier.
  delegatedCents = async () => new Map<string, number>()
  delegatedInTree = async (): Promise<readonly string[]> => []
  async readLog(tenantId: string, runId: string, afterSeq: number) {
    const run = this.#rows.run(tenantId, runId)
    if (!run) return undefined
    const chunks: LogChunk[] = []
    let bytes = 0
    for (const chunk of run.log) {
      if (lastSeqOf(chunk) <= afterSeq) continue
      if (bytes >= readBytes) break
      bytes += chunk.lines.length
      chunks.push(chunk)
    }
    return { chunks, status: run.summary.status as RunStatus }
  }
  async readEnding(tenantId: string, runId: string) {
    const chunk = this.#rows.run(tenantId, runId)?.log.at(-1)
    return chunk && endOf(chunk)
  }
  async runsOfSession(tenantId: string, sessionId: string, after: number) {
    const session = this.#rows.session(tenantId, sessionId)
    if (!session) return undefined
    const runs = this.#rows
      .runsIn(tenantId, sessionId, after)
      .map(({ summary, ordinal }) => ({ runId: summary.runId, ordinal }))
      .slice(0, 100)
    return { runs, status: session.dto.status }
  }
  async *pastRuns({ tenantId, sessionId }: Claim): AsyncGenerator<readonly PastRun[]> {
    yield this.#rows
      .runsIn(tenantId, sessionId, 0)
      .toReversed()
      .flatMap(({ summary, input, log }) => {
        const { runId, status, subTask, usage } = summary
        if (!isTerminal(status)) return []
        const metadata = subTask.metadata as Record<string, unknown> | undefined
        return [{ runId, status, prompt: subTask.prompt, input, metadata, model: usage?.model, log: [...log] }]
      })
  }

  async findSession(tenantId: string, sessionId: string) {
    const session = this.#rows.session(tenantId, sessionId)
    return session && durableOf(session)
  }
  async getSession(tenantId: string, sessionId: string) {
    return this.#rows.session(tenantId, sessionId)?.dto
  }
  async listSessions(tenantId: string, filter: Page & { q?: string }) {
    const q = filter.q?.toLowerCase() ?? ''
    const matching = this.#rows
      .sessions(tenantId)
      .map(({ dto }) => dto)
      .filter(({ id, profile, status }) => status !== 'shutdown' && `${id}\n${profile}`.toLowerCase().includes(q))
      .sort((a, b) => (a.createdAt === b.createdAt ? (a.id < b.id ? 1 : -1) : a.createdAt < b.createdAt ? 1 : -1))
    return listOf(matching, filter, listed, (session) => session)
  }
  async shutdownSession(tenantId: string, sessionId: string) {
    const session = this.#rows.session(tenantId, sessionId)
    if (!session) return undefined
    if (session.claimRun !== undefined) return 'running'
    session.dto = { ...session.dto, status: 'shutdown' }
    session.state = undefined
    this.#cancelWaiting(session, sessionShutDown)
    return 'shutdown'
  }
  async saveState(tenantId: string, sessionId: string, bundle: StateBundle, { runner, epoch }: CopiedState) {
    const session = this.#rows.session(tenantId, sessionId)
    if (!session || session.dto.status === 'shutdown' || (session.where.runner ?? runner) !== runner) return undefined
    if (session.epoch !== epoch || session.claimRun !== undefined) return undefined
    const grown = bundle.bytes.length - (session.state?.bytes.length ?? 0)
    session.state = bundle
    session.stateRev++
    const { runtimeSessionId } = bundle
    if (runtimeSessionId !== undefined) session.where = { ...session.where, runtimeSessionId }
    return grown
  }
  async loadState(tenantId: string, sessionId: string) {
    return this.#rows.session(tenantId, sessionId)?.state
  }

  // A claim ends with this process, the only one that can hold claims, so there is nothing to hand over, sweep or fence. Without a database nobody
  // can be asked to decide either.
  readonly park = async (): Promise<boolean> => false
  readonly endParked = async (): Promise<boolean> => false
  async resume(): Promise<undefined> {}
  readonly handOver = async (): Promise<boolean> => false
  readonly retreat = async (): Promise<boolean> => false
  readonly sweepOrphans = async (): Promise<number> => 0
  onOrphan(): void {}
  onFenced(): void {}
  executing(): void {}

  protected finishAt({ claim, ...how }: FinishRun, finishedAt: string): boolean {
    const run = this.#claimed(claim)
    if (run) this.#end(run, how, finishedAt)
    return run !== undefined
  }
  /** Restores a run of an earlier process. Call it in the order in which the runs started. Without `create` the session must exist. */
  protected restore(run: RunRow, create: StartRun['create'], end: Omit<FinishRun, 'claim'>, finishedAt: string): void {
    const { tenantId, summary } = run
    const { sessionId, startedAt } = summary
    const session =
      this.#rows.session(tenantId, sessionId) ?? (create && newSession(tenantId, sessionId, create.profile, startedAt))
    // The session was dropped already.
    if (!session) return
    this.#claim(run, session, startedAt)
    this.#end(run, end, finishedAt)
  }

  #claimed({ tenantId, runId, epoch }: Claim): RunRow | undefined {
    const run = this.#rows.run(tenantId, runId)
    return run?.summary.status === 'running' && run.epoch === epoch ? run : undefined
  }
  /** The session of a new run, or why the run cannot have it. */
  #placeOf({ tenantId, runId, task }: StartRun, session: SessionRow | undefined) {
    const taken = this.#rows.run(tenantId, runId)
    if (taken) return { kind: 'exists', run: taken.summary } as const
    if (!session || session.dto.status === 'shutdown') return { kind: 'no_session' } as const
    const profile = session.profile.name
    return profile === task.profile ? session : ({ kind: 'other_profile', profile } as const)
  }
  /** Gives the session to a run. */
  #claim(run: RunRow, session: SessionRow, at = now()): Claim {
    const { tenantId } = run
    const { runId, sessionId, subTask } = run.summary
    const runCount = session.dto.runCount + 1
    const lastPrompt = beginOf(subTask.prompt, 4_000)
    session.epoch++
    session.claimRun = runId
    session.dto = { ...session.dto, status: 'running', lastUsedAt: at, lastPrompt, runCount }
    this.#rows.putSession(session)
    run.epoch = session.epoch
    run.ordinal = runCount
    run.summary = { ...run.summary, status: 'running', startedAt: at }
    this.#rows.putRun(run)
    return { tenantId, sessionId, runId, epoch: run.epoch }
  }
  #end(run: RunRow, how: Omit<FinishRun, 'claim'>, finishedAt = now()): void {
    const { runId, sessionId } = run.summary
    const { status, error, result, usage, tail } = how
    if (tail) run.log.push(tail)
    if (!how.keepInput) run.input = undefined
    run.summary = {
      ...run.summary,
      status,
      finishedAt,
      ...(error ? { error } : {}),
      ...(result === undefined ? {} : { result }),
      ...(usage ? { usage } : {}),
      ...(usage?.costCents === undefined ? {} : { costCents: usage.costCents }),
    }
    this.#rows.finished(run)
    const session = this.#rows.session(run.tenantId, sessionId)
    if (session?.claimRun !== runId) return
    session.claimRun = undefined
    session.where = whereAfter(session.where, how)
    session.dto = { ...session.dto, status: how.sessionStatus, lastRunStatus: status, lastUsedAt: finishedAt }
    this.#rows.putSession(session)
    this.#tellWaiting(session)
  }
  #endAs(run: RunRow, status: TerminalRunStatus, error: EndReason): void {
    const { runId, sessionId } = run.summary
    run.epoch++
    const firstSeq = lastSeqIn(run) + 1
    const line = createEventEncoder(runId, sessionId, firstSeq).line({ type: 'error', ...error })
    const tail = { firstSeq, count: 1, lines: Buffer.from(line) }
    this.#end(run, { status, sessionStatus: 'idle', error, tail })
  }
  /** Cancels the runs that wait for a session, or only the interrupts, which are at the front. */
  #cancelWaiting(session: SessionRow, reason: EndReason, interruptsOnly = false): void {
    const cancelled = session.waiting.filter(({ front }) => front || !interruptsOnly)
    session.waiting = session.waiting.slice(cancelled.length)
    for (const { runId } of cancelled) this.#endAs(this.#rows.run(session.tenantId, runId)!, 'cancelled', reason)
  }
  #tellWaiting({ tenantId, waiting, dto }: SessionRow): void {
    if (waiting.length > 0) for (const waiter of this.#waiters) waiter(tenantId, dto.id)
  }
}
