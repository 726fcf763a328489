import { createEventEncoder } from '#contracts/run-event'
import type { JournaledRun } from '#contracts/run-journal'
import {
  type Claim,
  type EndReason,
  type FinishRun,
  interruptedBy,
  maxQueued,
  type RunStore,
  sessionShutDown,
  type StartRun,
} from '#contracts/run-store'
import { isTerminal, type TerminalRunStatus } from '#contracts/runs'
import { createReads, type Kept } from './reads.ts'
import {
  add,
  durableOf,
  lastSeqIn,
  newRun,
  newSession,
  said,
  type StoredRun,
  type StoredSession,
  taskOf,
} from './stored.ts'

/** Finished runs, and sessions at rest, kept per process; the oldest give way. */
const mostKept = 10_000
const now = (): string => new Date().toISOString()
const keyOf = (tenantId: string, id: string): string => `${tenantId}\n${id}`

export interface MemoryRunStore {
  readonly store: RunStore
  /** Puts a run of an earlier process back; in the order in which they started. */
  restore(run: JournaledRun): void
}

export function createMemoryRunStore(limit = mostKept): MemoryRunStore {
  // Insertion order is age: for runs since they were claimed, for keys of finished ones since they ended, for sessions since
  // they were last used.
  const runs = new Map<string, StoredRun>()
  const finished = new Set<string>()
  const sessions = new Map<string, StoredSession>()
  const waiters: Parameters<RunStore['onWaiting']>[0][] = []
  const asked: Parameters<RunStore['onAsked']>[0][] = []

  const ofTenant = <T extends { readonly tenantId: string }>(all: Map<string, T>, tenantId: string): T[] =>
    [...all.values()].filter((one) => one.tenantId === tenantId)
  const kept: Kept = {
    run: (tenantId, runId) => runs.get(keyOf(tenantId, runId)),
    runs: (tenantId) => ofTenant(runs, tenantId),
    session: (tenantId, sessionId) => sessions.get(keyOf(tenantId, sessionId)),
    sessions: (tenantId) => ofTenant(sessions, tenantId),
  }
  const claimed = ({ tenantId, runId, epoch }: Claim): StoredRun | undefined => {
    const run = kept.run(tenantId, runId)
    return run?.summary.status === 'running' && run.epoch === epoch ? run : undefined
  }
  /** The newest from now on. */
  const renew = <T>(all: Map<string, T>, key: string, one: T): void => {
    all.delete(key)
    all.set(key, one)
  }
  const touch = (session: StoredSession): void => {
    renew(sessions, keyOf(session.tenantId, session.dto.id), session)
    if (sessions.size <= limit) return
    for (const [oldest, { claimRun, waiting }] of sessions) {
      if (claimRun === undefined && waiting.length === 0) return void sessions.delete(oldest)
    }
  }
  const retire = (key: string): void => {
    finished.add(key)
    for (const oldest of finished) {
      if (finished.size <= limit) return
      finished.delete(oldest)
      runs.delete(oldest)
    }
  }
  const tellWaiting = ({ tenantId, waiting, dto }: StoredSession): void => {
    if (waiting.length > 0) for (const waiter of waiters) waiter(tenantId, dto.id)
  }
  /** The session that a run is for, or why it can have no place there. */
  const placeOf = ({ tenantId, runId, task }: StartRun, session: StoredSession | undefined) => {
    const taken = kept.run(tenantId, runId)
    if (taken) return { kind: 'exists', run: taken.summary } as const
    if (!session || session.dto.status === 'shutdown') return { kind: 'no_session' } as const
    const profile = session.profile.name
    return profile === task.profile ? session : ({ kind: 'other_profile', profile } as const)
  }
  /** Gives the session to a run. */
  const claim = (run: StoredRun, session: StoredSession, at = now()): Claim => {
    const { tenantId } = run
    const { runId, sessionId, subTask } = run.summary
    const runCount = session.dto.runCount + 1
    const lastPrompt = subTask.prompt.slice(0, 4_000)
    session.epoch++
    session.claimRun = runId
    session.dto = { ...session.dto, status: 'running', lastUsedAt: at, lastPrompt, runCount }
    touch(session)
    run.epoch = session.epoch
    run.ordinal = runCount
    run.summary = { ...run.summary, status: 'running', startedAt: at }
    renew(runs, keyOf(tenantId, runId), run)
    return { tenantId, sessionId, runId, epoch: run.epoch }
  }
  const end = (run: StoredRun, how: Omit<FinishRun, 'claim'>, finishedAt = now()): void => {
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
    retire(keyOf(run.tenantId, runId))
    const session = kept.session(run.tenantId, sessionId)
    if (session?.claimRun !== runId) return
    session.claimRun = undefined
    session.where = {
      ...session.where,
      ...(how.runtimeSessionId === undefined ? {} : { runtimeSessionId: how.runtimeSessionId }),
      ...(how.runner === undefined ? {} : { runner: how.runner }),
    }
    session.dto = { ...session.dto, status: how.sessionStatus, lastRunStatus: status, lastUsedAt: finishedAt }
    touch(session)
    tellWaiting(session)
  }
  const endAs = (run: StoredRun, status: TerminalRunStatus, error: EndReason): void => {
    const { runId, sessionId } = run.summary
    run.epoch++
    const firstSeq = lastSeqIn(run) + 1
    const line = createEventEncoder(runId, sessionId, firstSeq).line({ type: 'error', ...error })
    end(run, { status, sessionStatus: 'idle', error, tail: { firstSeq, count: 1, lines: Buffer.from(line) } })
  }
  /** Cancels what waits for a session, or the interrupts alone: those are in front. */
  const cancelWaiting = (session: StoredSession, reason: EndReason, interruptsOnly = false): void => {
    const cancelled = session.waiting.filter(({ front }) => front || !interruptsOnly)
    session.waiting = session.waiting.slice(cancelled.length)
    for (const { runId } of cancelled) endAs(kept.run(session.tenantId, runId)!, 'cancelled', reason)
  }

  const store: RunStore = {
    ...createReads(kept),
    async start(run) {
      const { tenantId, sessionId, create } = run
      const existing = kept.session(tenantId, sessionId)
      if (create && existing && !kept.run(tenantId, run.runId)) return { kind: 'busy' }
      const place = placeOf(run, existing ?? (create && newSession(tenantId, sessionId, create.profile, now())))
      if ('kind' in place) return place
      if (place.claimRun !== undefined || place.waiting.length > 0) return { kind: 'busy' }
      return { kind: 'started', claim: claim(newRun(run), place), session: durableOf(place) }
    },
    async enqueue({ interrupt: front, ...run }) {
      const { tenantId, runId, sessionId } = run
      const place = placeOf(run, kept.session(tenantId, sessionId))
      if ('kind' in place) return place
      if (front) cancelWaiting(place, interruptedBy(runId), true)
      else if (place.waiting.length >= maxQueued) return { kind: 'full' }
      place.waiting[front ? 'unshift' : 'push']({ runId, front })
      runs.set(keyOf(tenantId, runId), newRun(run, now()))
      return { kind: 'queued' }
    },
    async claimNext(tenantId, sessionId) {
      const session = kept.session(tenantId, sessionId)
      const head = session?.waiting[0]
      if (!session || !head) return { kind: 'none' }
      if (session.claimRun !== undefined) {
        return head.front ? { kind: 'held', runId: session.claimRun, interrupt: head.runId } : { kind: 'none' }
      }
      session.waiting.shift()
      const run = kept.run(tenantId, head.runId)!
      return { kind: 'started', claim: claim(run, session), session: durableOf(session), task: taskOf(run) }
    },
    onWaiting: (listener) => void waiters.push(listener),
    async ask(tenantId, runId, reason) {
      for (const listener of asked) listener(tenantId, runId, reason)
    },
    onAsked: (listener) => void asked.push(listener),
    async append(claim, chunk) {
      const run = claimed(claim)
      if (run) add(run, chunk)
      return run !== undefined
    },
    async retry(claim, attempt, chunk) {
      const run = claimed(claim)
      if (!run) return false
      run.summary = { ...run.summary, attempt }
      add(run, chunk)
      return true
    },
    async finish({ claim, ...how }) {
      const run = claimed(claim)
      if (run) end(run, how)
      return run !== undefined
    },
    async discard(claim) {
      const run = claimed(claim)
      if (!run) return false
      const { tenantId, sessionId, runId } = claim
      runs.delete(keyOf(tenantId, runId))
      const session = kept.session(tenantId, sessionId)!
      session.claimRun = undefined
      const { runCount, lastRunStatus } = session.dto
      const status = lastRunStatus === 'error' ? 'errored' : 'idle'
      session.dto = { ...session.dto, status, runCount: runCount - 1 }
      if (runCount === 1 && run.ordinal === 1) sessions.delete(keyOf(tenantId, sessionId))
      else tellWaiting(session)
      return true
    },
    // There is nobody else.
    handOver: async () => false,
    retreat: async () => false,
    async steal(tenantId, runId, status, reason) {
      const run = kept.run(tenantId, runId)
      if (!run || isTerminal(run.summary.status)) return false
      const session = kept.session(tenantId, run.summary.sessionId)
      if (session?.claimRun === runId) session.epoch++
      if (session) session.waiting = session.waiting.filter((one) => one.runId !== runId)
      endAs(run, status, reason)
      return true
    },
    async shutdownSession(tenantId, sessionId) {
      const session = kept.session(tenantId, sessionId)
      if (!session) return undefined
      if (session.claimRun !== undefined) return 'running'
      session.dto = { ...session.dto, status: 'shutdown' }
      session.state = undefined
      cancelWaiting(session, sessionShutDown)
      return 'shutdown'
    },
    async saveState(tenantId, sessionId, bundle, { runner, epoch }) {
      const session = kept.session(tenantId, sessionId)
      if (!session || session.dto.status === 'shutdown' || (session.where.runner ?? runner) !== runner) return false
      if (session.epoch !== epoch || session.claimRun !== undefined) return false
      session.state = bundle
      session.stateRev++
      const { runtimeSessionId } = bundle
      if (runtimeSessionId !== undefined) session.where = { ...session.where, runtimeSessionId }
      return true
    },
    // Claims die with the only process that can hold them: there is nobody else to sweep, and nobody to fence.
    sweepOrphans: async () => 0,
    onOrphan() {},
    onFenced() {},
    executing() {},
  }
  return {
    store,
    restore({ header, log, finish }) {
      const { tenantId, sessionId, startedAt, create } = header
      const session =
        kept.session(tenantId, sessionId) ?? (create && newSession(tenantId, sessionId, create, startedAt))
      // Its session was older than what is kept.
      if (!session) return
      const run = newRun({ tenantId, runId: header.runId, sessionId, task: header.task })
      claim(run, session, startedAt)
      const { status, finishedAt, ...rest } = finish
      const sessionStatus = status === 'error' ? 'errored' : 'idle'
      end(run, { status, sessionStatus, tail: log, ...rest, ...said(log) }, finishedAt)
    },
  }
}
