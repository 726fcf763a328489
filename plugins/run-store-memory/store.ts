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
import {
  createReads,
  durableOf,
  keyOf,
  lastSeqIn,
  newRun,
  newSession,
  said,
  type StoredRun,
  type StoredSession,
  taskOf,
} from './stored.ts'

/** Finished runs, and sessions at rest, kept per process; the oldest give way. */
const kept = 10_000
const now = (): string => new Date().toISOString()

export interface MemoryRunStore {
  readonly store: RunStore
  /** Puts a run of an earlier process back; in the order in which they started. */
  restore(run: JournaledRun): void
}

export function createMemoryRunStore(limit = kept): MemoryRunStore {
  // Insertion order is age: for runs since they finished, for sessions since they were last used.
  const running = new Map<string, StoredRun>()
  const finished = new Map<string, StoredRun>()
  const sessions = new Map<string, StoredSession>()
  // Newest last, whatever became of them since.
  const started = new Map<string, StoredRun>()
  const waiters: Parameters<RunStore['onWaiting']>[0][] = []
  const asked: Parameters<RunStore['onAsked']>[0][] = []

  const runOf = (tenantId: string, runId: string): StoredRun | undefined => started.get(keyOf(tenantId, runId))
  const claimed = (claim: Claim): StoredRun | undefined => {
    const run = running.get(keyOf(claim.tenantId, claim.runId))
    return run?.epoch === claim.epoch ? run : undefined
  }
  const touch = (key: string, session: StoredSession): void => {
    sessions.delete(key)
    sessions.set(key, session)
    if (sessions.size <= limit) return
    for (const [oldest, { claimRun, waiting }] of sessions) {
      if (claimRun !== undefined || waiting.length > 0) continue
      sessions.delete(oldest)
      return
    }
  }
  const retire = (key: string, run: StoredRun): void => {
    running.delete(key)
    finished.set(key, run)
    for (const oldest of finished.keys()) {
      if (finished.size <= limit) return
      finished.delete(oldest)
      started.delete(oldest)
    }
  }
  const tellWaiting = (tenantId: string, { waiting, dto }: StoredSession): void => {
    if (waiting.length > 0) for (const waiter of waiters) waiter(tenantId, dto.id)
  }
  const record = (run: StartRun, status: 'queued' | 'running', at: string): StoredRun => {
    const stored = newRun(run, status, at)
    started.set(keyOf(run.tenantId, run.runId), stored)
    return stored
  }
  /** Gives the session to a run, which is the newest from now on. */
  const claim = (run: StoredRun, session: StoredSession, at: string): Claim => {
    const { tenantId } = run
    const { runId, subTask } = run.summary
    const { id: sessionId } = session.dto
    session.epoch++
    session.claimRun = runId
    session.dto = {
      ...session.dto,
      status: 'running',
      lastUsedAt: at,
      lastPrompt: subTask.prompt.slice(0, 4_000),
      runCount: session.dto.runCount + 1,
    }
    run.epoch = session.epoch
    run.ordinal = session.dto.runCount
    run.summary = { ...run.summary, status: 'running', startedAt: at }
    const key = keyOf(tenantId, runId)
    running.set(key, run)
    started.delete(key)
    started.set(key, run)
    touch(keyOf(tenantId, sessionId), session)
    return { tenantId, sessionId, runId, epoch: session.epoch }
  }
  const begin = (run: StartRun, session: StoredSession, at = now()): Claim =>
    claim(record(run, 'running', at), session, at)

  const end = (run: StoredRun, how: Omit<FinishRun, 'claim'>, at = now()): void => {
    const { runId, sessionId } = run.summary
    if (how.tail) run.log.push(how.tail)
    if (!how.keepInput) run.input = undefined
    run.summary = {
      ...run.summary,
      status: how.status,
      finishedAt: at,
      ...(how.error ? { error: how.error } : {}),
      ...(how.result === undefined ? {} : { result: how.result }),
      ...(how.usage ? { usage: how.usage } : {}),
      ...(how.usage?.costCents === undefined ? {} : { costCents: how.usage.costCents }),
    }
    retire(keyOf(run.tenantId, runId), run)
    const key = keyOf(run.tenantId, sessionId)
    const session = sessions.get(key)
    if (session?.claimRun !== runId) return
    session.claimRun = undefined
    session.runtimeSessionId = how.runtimeSessionId ?? session.runtimeSessionId
    session.runner = how.runner ?? session.runner
    session.dto = { ...session.dto, status: how.sessionStatus, lastRunStatus: how.status, lastUsedAt: at }
    touch(key, session)
    tellWaiting(run.tenantId, session)
  }
  const endAs = (run: StoredRun, status: TerminalRunStatus, error: EndReason): void => {
    const { runId, sessionId } = run.summary
    run.epoch++
    const firstSeq = lastSeqIn(run) + 1
    const line = createEventEncoder(runId, sessionId, firstSeq).line({ type: 'error', ...error })
    end(run, { status, sessionStatus: 'idle', error, tail: { firstSeq, count: 1, lines: Buffer.from(line) } })
  }
  /** Cancels what waits for a session, or the interrupts alone: those are in front. */
  const cancelWaiting = (tenantId: string, session: StoredSession, reason: EndReason, interruptsOnly = false): void => {
    const cancelled = session.waiting.filter(({ front }) => front || !interruptsOnly)
    session.waiting = session.waiting.slice(cancelled.length)
    for (const { runId } of cancelled) endAs(runOf(tenantId, runId)!, 'cancelled', reason)
  }

  const store: RunStore = {
    async start(run) {
      const { tenantId, runId, sessionId, task } = run
      const taken = runOf(tenantId, runId)
      if (taken) return { kind: 'exists', run: taken.summary }
      let session = sessions.get(keyOf(tenantId, sessionId))
      if (run.create) {
        if (session) return { kind: 'busy' }
        session = newSession(sessionId, run.create.profile, now())
      }
      if (!session || session.dto.status === 'shutdown') return { kind: 'no_session' }
      if (session.profile.name !== task.profile) return { kind: 'other_profile', profile: session.profile.name }
      if (session.claimRun !== undefined || session.waiting.length > 0) return { kind: 'busy' }
      return { kind: 'started', claim: begin(run, session), session: durableOf(session) }
    },
    async enqueue({ interrupt, ...run }) {
      const { tenantId, runId, sessionId, task } = run
      const taken = runOf(tenantId, runId)
      if (taken) return { kind: 'exists', run: taken.summary }
      const session = sessions.get(keyOf(tenantId, sessionId))
      if (!session || session.dto.status === 'shutdown') return { kind: 'no_session' }
      if (session.profile.name !== task.profile) return { kind: 'other_profile', profile: session.profile.name }
      if (interrupt) cancelWaiting(tenantId, session, interruptedBy(runId), true)
      else if (session.waiting.length >= maxQueued) return { kind: 'full' }
      session.waiting[interrupt ? 'unshift' : 'push']({ runId, front: interrupt })
      record(run, 'queued', now())
      return { kind: 'queued' }
    },
    async claimNext(tenantId, sessionId) {
      const session = sessions.get(keyOf(tenantId, sessionId))
      const head = session?.waiting[0]
      if (!session || !head) return { kind: 'none' }
      if (session.claimRun !== undefined) {
        return head.front ? { kind: 'held', runId: session.claimRun, interrupt: head.runId } : { kind: 'none' }
      }
      session.waiting.shift()
      const run = runOf(tenantId, head.runId)!
      return { kind: 'started', claim: claim(run, session, now()), session: durableOf(session), task: taskOf(run) }
    },
    onWaiting: (listener) => void waiters.push(listener),
    async ask(tenantId, runId, reason) {
      for (const listener of asked) listener(tenantId, runId, reason)
    },
    onAsked: (listener) => void asked.push(listener),
    async append(claim, chunk) {
      const run = claimed(claim)
      // The same chunk again is a repeated call.
      if (run && chunk.firstSeq > lastSeqIn(run)) run.log.push(chunk)
      return run !== undefined
    },
    async retry(claim, attempt, chunk) {
      const run = claimed(claim)
      if (!run) return false
      run.summary = { ...run.summary, attempt }
      if (chunk.firstSeq > lastSeqIn(run)) run.log.push(chunk)
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
      const key = keyOf(tenantId, runId)
      running.delete(key)
      started.delete(key)
      const sessionKey = keyOf(tenantId, sessionId)
      const session = sessions.get(sessionKey)!
      session.claimRun = undefined
      const { runCount, lastRunStatus } = session.dto
      const status = lastRunStatus === 'error' ? 'errored' : 'idle'
      session.dto = { ...session.dto, status, runCount: runCount - 1 }
      if (runCount === 1 && run.ordinal === 1) sessions.delete(sessionKey)
      else tellWaiting(tenantId, session)
      return true
    },
    // There is nobody else.
    handOver: async () => false,
    retreat: async () => false,
    async *pastRuns({ tenantId, sessionId }) {
      const past = [...started.values()].filter(
        (run) => run.tenantId === tenantId && run.summary.sessionId === sessionId && run.ordinal > 0,
      )
      yield past.toReversed().flatMap(({ summary, input, log }) => {
        const { runId, status, subTask, usage } = summary
        if (!isTerminal(status)) return []
        const metadata = subTask.metadata as Record<string, unknown> | undefined
        return [{ runId, status, prompt: subTask.prompt, input, metadata, model: usage?.model, log: [...log] }]
      })
    },
    async steal(tenantId, runId, status, reason) {
      const run = runOf(tenantId, runId)
      if (!run || isTerminal(run.summary.status)) return false
      const session = sessions.get(keyOf(tenantId, run.summary.sessionId))
      if (session?.claimRun === runId) session.epoch++
      if (session) session.waiting = session.waiting.filter((one) => one.runId !== runId)
      endAs(run, status, reason)
      return true
    },
    ...createReads(started, sessions),
    async shutdownSession(tenantId, sessionId) {
      const session = sessions.get(keyOf(tenantId, sessionId))
      if (!session) return undefined
      if (session.claimRun !== undefined) return 'running'
      session.dto = { ...session.dto, status: 'shutdown' }
      session.state = undefined
      cancelWaiting(tenantId, session, sessionShutDown)
      return 'shutdown'
    },
    async saveState(tenantId, sessionId, bundle, { runner, epoch }) {
      const session = sessions.get(keyOf(tenantId, sessionId))
      if (!session || session.dto.status === 'shutdown' || (session.runner ?? runner) !== runner) return false
      if (session.epoch !== epoch || session.claimRun !== undefined) return false
      session.state = bundle
      session.stateRev++
      session.runtimeSessionId = bundle.runtimeSessionId ?? session.runtimeSessionId
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
      const { tenantId, runId, sessionId, task, startedAt, create } = header
      const session = sessions.get(keyOf(tenantId, sessionId)) ?? (create && newSession(sessionId, create, startedAt))
      // Its session was older than what is kept.
      if (!session) return
      begin({ tenantId, runId, sessionId, task }, session, startedAt)
      const { status, finishedAt, ...rest } = finish
      const sessionStatus = status === 'error' ? 'errored' : 'idle'
      end(running.get(keyOf(tenantId, runId))!, { status, sessionStatus, tail: log, ...rest, ...said(log) }, finishedAt)
    },
  }
}
