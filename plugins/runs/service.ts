import type { FastifyBaseLogger } from 'fastify'
import { type AppError, unavailable } from '#kernel'
import { isClientId, newId, newSessionId } from '#contracts/ids'
import type { Kv } from '#contracts/kv'
import { isProfileName, type Profile, type Profiles } from '#contracts/profiles'
import type { Prices } from '#contracts/prices'
import type { EnqueueRun, Orphan, RunStore } from '#contracts/run-store'
import type { RunnerPool } from '#contracts/runner'
import { isTerminal, type LogChunk, type RunAccepted, type RunSummary, type SubTask } from '#contracts/runs'
import { sessionChannel } from '#contracts/sessions'
import type { Webhooks } from '#contracts/webhooks'
import { mayGoOn, orphaned } from './attempts.ts'
import {
  invalidRunId,
  invalidSessionId,
  profileMismatch,
  queueFull,
  runExists,
  sessionBusy,
  unknownProfile,
  unknownRun,
  unknownSession,
  webhooksUnavailable,
} from './errors.ts'
import { execute, type Execution, type ExecutionDeps, type ExecutionOrder, type Stop } from './execution.ts'
import { followStored, runChannel } from './follow.ts'
import { createQueue } from './queue.ts'
import { createStateSaver } from './state-saver.ts'
import { type Terminated, terminateRun } from './terminate.ts'
import { within } from './timing.ts'
import { createWinding, drainWaitMs } from './winding.ts'

export interface RunServiceDeps {
  readonly store: RunStore
  readonly profiles: Profiles
  readonly runners: RunnerPool
  readonly prices: Prices | undefined
  readonly webhooks: Webhooks | undefined
  readonly kv: Kv
  readonly log: FastifyBaseLogger
  readonly deadlineGraceMs: number
  readonly windDownMs: number
  readonly drainMs: number
}

export interface RunService {
  /** Starts a run. `attach`: a run of this id and the same task is a repeated call and is joined; otherwise 409 `conflict`. */
  start(tenantId: string, task: SubTask, attach: boolean): Promise<RunAccepted>
  /** Replays, then follows. Takes hold of a run under way at once, so that its memory serves a reader that comes later. */
  follow(tenantId: string, runId: string, afterSeq: number, signal: AbortSignal): AsyncGenerator<LogChunk>
  executes(tenantId: string, runId: string): boolean
  find(tenantId: string, runId: string): Promise<RunSummary>
  /** The events so far, as they are in this instant. */
  events(tenantId: string, runId: string): AsyncGenerator<LogChunk>
  cancel(tenantId: string, runId: string): Promise<void>
  terminate(tenantId: string, runId: string): Promise<Terminated>
  /** Lets runs end for a while, interrupts the rest, and saves the sessions that rest. */
  close(): Promise<void>
  readonly closing: boolean
}

/** How long a start waits to hear whether the runner still knows the session, before it answers that the run is accepted. */
const dispatchWaitMs = 2_000
/** A thousand orphans begin over a minute and a half, and sooner when several conductors share them. */
const adoptedPerSweep = 25
/** What the end of a run takes, and more. */
const lookAgainMs = 100
/** One timer looks after the deadlines of all runs. */
const deadlineTickMs = 250

/** The session is there, but no runner could be given it. Specification 4.8, rule 3. */
const unrestored: ReadonlySet<string> = new Set(['hydration_failed', 'no_runner', 'runner_unreachable'])

const cancelled: Stop = { status: 'cancelled', code: 'cancelled', message: 'The run was cancelled.' }
const timedOut: Stop = { status: 'error', code: 'timeout', message: 'The run took longer than its profile allows.' }
const stopping: Stop = {
  status: 'interrupted',
  code: 'interrupted',
  message: 'The server that executed this run was stopped.',
}
const fenced: Stop = {
  status: 'interrupted',
  code: 'interrupted',
  message: 'The server that executed this run had been declared dead.',
}

const poolOf = ({ placement }: Profile) => (placement ? { pool: placement } : {})

const unusable = { no_session: unknownSession, other_profile: profileMismatch } as const

const keyOf = (tenantId: string, runId: string): string => `${tenantId}\n${runId}`

export function createRunService(deps: RunServiceDeps): RunService {
  const { store, runners, kv } = deps
  const active = new Map<string, Execution>()
  const givingUp = new AbortController()
  const saver = createStateSaver(store, deps.log)
  let closing = false
  let wheel: NodeJS.Timeout | undefined

  const executing: ExecutionDeps = {
    ...deps,
    givingUp: givingUp.signal,
    announce: ({ runId }) => {
      if (kv.backend === 'redis') kv.publish(runChannel(runId), '')
    },
  }
  const turn = (): void => {
    const now = Date.now()
    for (const run of active.values()) if (now > run.deadline) run.stop(timedOut)
  }
  store.onFenced(() => {
    for (const run of active.values()) run.leave(fenced)
  })
  const local = (tenantId: string, runId: string): Execution | undefined => active.get(keyOf(tenantId, runId))
  store.executing((tenantId, runId) => local(tenantId, runId) !== undefined)
  store.onAsked((tenantId, runId, reason) => local(tenantId, runId)?.stop({ status: 'cancelled', ...reason }))
  const windDown = createWinding({ store, kv, local })

  const leaveRunners = runners.onDraining((link) => void saver.evacuate(link))

  const begin = (
    outcome: Pick<Orphan, 'claim' | 'session'>,
    task: SubTask,
    created: boolean,
    route: ExecutionOrder['route'],
    orphan?: Orphan,
  ) => {
    const { claim, session } = outcome
    const key = keyOf(claim.tenantId, claim.runId)
    const waiting = saver.busy(claim.tenantId, claim.sessionId)
    const run = execute(executing, { claim, task, session, route, created, ...(orphan ? { orphan } : {}) })
    active.set(key, run)
    kv.publish(sessionChannel(claim.tenantId, claim.sessionId), '')
    wheel ??= setInterval(turn, deadlineTickMs).unref()
    void run.done.then((released) => {
      // This process may have taken the run back, under another claim.
      if (active.get(key) === run) active.delete(key)
      const link = run.runner ?? waiting
      // Of a run that goes on elsewhere the runner has half a turn.
      if (link && released) saver.rest(claim, link)
      if (active.size > 0) return
      clearInterval(wheel)
      wheel = undefined
    })
    return run
  }
  const resume = (next: Pick<Orphan, 'claim' | 'session'>, task: SubTask, orphan?: Orphan): Execution => {
    const { id: sessionId, profile, runner } = next.session
    const home = {
      sessionId,
      runtime: profile.runtime,
      ...poolOf(profile),
      ...(runner === undefined ? {} : { runner }),
    }
    return begin(next, task, false, (without) => runners.home({ ...home, without }), orphan)
  }
  const advance = createQueue({
    store,
    windDown,
    log: deps.log,
    begin: (next) => resume(next, next.task),
    ready(sessionId) {
      try {
        return !closing && runners.home({ sessionId }) !== undefined
      } catch {
        return false
      }
    },
  })
  store.onWaiting(advance)
  store.onOrphan({
    room: () => (closing ? 0 : adoptedPerSweep),
    wants: (orphan) => mayGoOn(orphan) || orphaned(orphan.attempt),
    adopt: (orphan) => void resume(orphan, orphan.task, orphan),
  })

  const profileOf = async (tenantId: string, name: string): Promise<Profile> => {
    const profile = isProfileName(name) ? await deps.profiles.findPlaced(tenantId, name) : undefined
    if (!profile) throw unknownProfile(name)
    return profile
  }
  const accepted = (runId: string, sessionId: string): RunAccepted => ({ runId, sessionId, status: 'running' })
  const join = (run: RunSummary, task: SubTask, attach: boolean): RunAccepted => {
    const same =
      run.subTask.profile === task.profile &&
      run.subTask.prompt === task.prompt.replaceAll('\0', '\uFFFD') &&
      (task.sessionId === undefined || task.sessionId === run.sessionId)
    if (!attach || !same) throw runExists()
    return { runId: run.runId, sessionId: run.sessionId, status: run.status }
  }

  const startNew = async (tenantId: string, runId: string, task: SubTask, attach: boolean): Promise<RunAccepted> => {
    const profile = await profileOf(tenantId, task.profile)
    const order = { runtime: profile.runtime, ...poolOf(profile) }
    const placed = runners.place(order)
    // 32 random bits per runner: a session id that is in use is drawn again.
    for (let attempt = 0; attempt < 5; attempt++) {
      const sessionId = newSessionId(placed.hash)
      const outcome = await store.start({ tenantId, runId, sessionId, task, create: profile })
      if (outcome.kind === 'exists') return join(outcome.run, task, attach)
      if (outcome.kind !== 'started') continue
      begin(outcome, task, true, (without) => (without.size === 0 ? placed : runners.place({ ...order, without })))
      return accepted(runId, sessionId)
    }
    throw unavailable({ message: 'No session could be created; try again.', retryable: true })
  }
  /** Why a session cannot be used, the profile being looked at first: a task that could never run is the client's mistake. */
  const refusal = async (tenantId: string, task: SubTask, error: AppError): Promise<AppError> => {
    await profileOf(tenantId, task.profile)
    return error
  }
  const wait = async (run: EnqueueRun, attach: boolean): Promise<RunAccepted> => {
    const { tenantId, runId, sessionId, task } = run
    const outcome = await store.enqueue(run)
    if (outcome.kind === 'exists') return join(outcome.run, task, attach)
    if (outcome.kind === 'full') throw queueFull()
    if (outcome.kind !== 'queued') throw await refusal(tenantId, task, unusable[outcome.kind]())
    // The session may have become free since it was found busy. A run whose end was under way just then has not seen the line,
    // and may not have been seen to be over: one more look is sooner than the next sweep.
    advance(tenantId, sessionId)
    setTimeout(advance, lookAgainMs, tenantId, sessionId).unref()
    return { runId, sessionId, status: 'queued' }
  }
  const startIn = async (
    tenantId: string,
    runId: string,
    sessionId: string,
    task: SubTask,
    attach: boolean,
  ): Promise<RunAccepted> => {
    try {
      runners.home({ sessionId })
    } catch (noRunner) {
      const session = await store.findSession(tenantId, sessionId)
      const known = session !== undefined && session.status !== 'shutdown'
      throw await refusal(tenantId, task, known ? (noRunner as AppError) : unknownSession())
    }
    const outcome = await store.start({ tenantId, runId, sessionId, task })
    if (outcome.kind === 'exists') return join(outcome.run, task, attach)
    if (outcome.kind === 'busy') {
      const { whenBusy } = task
      if (whenBusy !== 'enqueue' && whenBusy !== 'interrupt') throw sessionBusy()
      return wait({ tenantId, runId, sessionId, task, interrupt: whenBusy === 'interrupt' }, attach)
    }
    if (outcome.kind !== 'started') throw await refusal(tenantId, task, unusable[outcome.kind]())
    const run = resume(outcome, task)
    // The specification wants a session that could not be restored answered with 503, not found out from the stream.
    if (await within(run.dispatched, dispatchWaitMs)) {
      const failure = await run.dispatched
      if (failure && unrestored.has(failure.code)) throw failure
    }
    return accepted(runId, sessionId)
  }

  const checkWebhook = (url: string): void => {
    if (!deps.webhooks) throw webhooksUnavailable()
    deps.webhooks.check(url)
  }
  const service: RunService = {
    get closing() {
      return closing
    },
    async start(tenantId, task, attach) {
      const { id: runId = newId('run'), sessionId } = task
      if (!isClientId(runId)) throw invalidRunId()
      if (sessionId !== undefined && !isClientId(sessionId)) throw invalidSessionId()
      // A gateway's was checked when the agent was published: a chat does not fail for its webhook.
      if (task.webhook && !attach) checkWebhook(task.webhook.url)
      if (closing) throw unavailable({ message: 'This server is stopping; try again.', retryable: true })
      return sessionId === undefined
        ? startNew(tenantId, runId, task, attach)
        : startIn(tenantId, runId, sessionId, task, attach)
    },
    executes: (tenantId, runId) => active.has(keyOf(tenantId, runId)),
    follow(tenantId, runId, afterSeq, signal) {
      let held = local(tenantId, runId)?.log
      return followStored(store, kv, tenantId, runId, afterSeq, signal, () => {
        const live = held ?? local(tenantId, runId)?.log
        held = undefined
        return live
      })
    },
    async find(tenantId, runId) {
      const run = isClientId(runId) ? await store.findRun(tenantId, runId) : undefined
      if (!run) throw unknownRun()
      return run
    },
    async *events(tenantId, runId) {
      const live = active.get(keyOf(tenantId, runId))
      const last = live?.log.lastSeq ?? Number.POSITIVE_INFINITY
      const never = new AbortController()
      let cursor = 0
      if (live) {
        for await (const chunk of live.log.follow(0, never.signal)) {
          yield chunk
          cursor = chunk.firstSeq + chunk.count - 1
          if (cursor >= last) return
        }
        return
      }
      for (;;) {
        const page = await store.readLog(tenantId, runId, cursor)
        const end = page?.chunks.at(-1)
        if (!page || !end) return
        yield* page.chunks
        cursor = end.firstSeq + end.count - 1
      }
    },
    async cancel(tenantId, runId) {
      const run = local(tenantId, runId)
      if (run) {
        run.stop(cancelled)
        await within(run.done, drainWaitMs)
        return
      }
      const stored = await service.find(tenantId, runId)
      if (!isTerminal(stored.status)) await windDown(tenantId, runId, cancelled)
    },
    terminate: (tenantId, runId) => terminateRun({ store, windDown, local, reason: cancelled }, tenantId, runId),
    async close() {
      closing = true
      const all = Promise.all([...active.values()].map((run) => run.done))
      if (!(await within(all, deps.drainMs))) {
        for (const run of active.values()) run.leave(stopping)
        // A store that is away cannot be waited for: its sweep ends these runs once this process's lease is over.
        if (!(await within(all, deps.windDownMs + 1_000))) givingUp.abort()
        await all
      }
      leaveRunners()
      await within(saver.drain(), deps.drainMs)
      clearInterval(wheel)
    },
  }
  return service
}
