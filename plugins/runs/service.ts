import type { FastifyBaseLogger } from 'fastify'
import { unavailable } from '#kernel'
import { isClientId } from '#contracts/ids'
import type { Kv } from '#contracts/kv'
import type { McpServers } from '#contracts/mcp-servers'
import type { Profiles } from '#contracts/profiles'
import type { Prices } from '#contracts/prices'
import type { Orphan, RunStore } from '#contracts/run-store'
import type { RunnerPool } from '#contracts/runner'
import { isTerminal, type LogChunk, type RunSummary, type Task } from '#contracts/runs'
import { sessionChannel } from '#contracts/sessions'
import type { Webhooks } from '#contracts/webhooks'
import { mayGoOn, orphaned } from './attempts.ts'
import type { DelegationLimits } from './delegations.ts'
import { unknownRun } from './errors.ts'
import { execute, type Execution, type ExecutionDeps, type ExecutionOrder } from './execution.ts'
import type { Stop } from './last-words.ts'
import { followStored, runChannel } from './follow.ts'
import { createQueue } from './queue.ts'
import { eventsSoFar } from './so-far.ts'
import { createStarts, placementOf, type Start } from './starts.ts'
import { createStateSaver } from './state-saver.ts'
import { type Terminated, terminateRun } from './terminate.ts'
import { within } from './timing.ts'
import { createWinding, drainWaitMs } from './winding.ts'

export interface RunServiceDeps {
  readonly store: RunStore
  readonly profiles: Profiles
  readonly runners: RunnerPool
  readonly prices: Prices | undefined
  readonly mcpServers: McpServers | undefined
  readonly webhooks: Webhooks | undefined
  readonly kv: Kv
  readonly log: FastifyBaseLogger
  readonly delegation: DelegationLimits
  readonly deadlineGraceMs: number
  readonly windDownMs: number
  readonly drainMs: number
}

export interface RunService {
  readonly start: Start
  /** Replays, then follows. Takes hold of a run under way at once, so that its memory serves a reader that comes later. */
  follow(tenantId: string, runId: string, afterSeq: number, signal: AbortSignal): AsyncGenerator<LogChunk>
  executes(tenantId: string, runId: string): boolean
  find(tenantId: string, runId: string): Promise<RunSummary>
  /** The events so far, as they are in this instant. `ended`: the caller has seen that the run is over, and its last event is among them. */
  events(tenantId: string, runId: string, ended?: boolean): AsyncGenerator<LogChunk>
  cancel(tenantId: string, runId: string): Promise<void>
  terminate(tenantId: string, runId: string): Promise<Terminated>
  /** Lets runs end for a while, interrupts the rest, and saves the sessions that rest. */
  close(): Promise<void>
  readonly closing: boolean
}

/** A thousand orphans begin over a minute and a half, and sooner when several conductors share them. */
const adoptedPerSweep = 25
/** One timer looks after the deadlines of all runs. */
const deadlineTickMs = 250

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
    children: {
      start: (...run) => service.start(...run),
      follow: (...run) => service.follow(...run),
      find: (...run) => service.find(...run),
      cancel: (...run) => service.cancel(...run),
    },
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
    task: Task,
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
  const resume = (next: Pick<Orphan, 'claim' | 'session'>, task: Task, orphan?: Orphan): Execution => {
    const { id: sessionId, profile, runner } = next.session
    const home = {
      sessionId,
      runtime: profile.runtime,
      ...placementOf(profile),
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

  const starts = createStarts({ ...deps, begin, resume, advance })
  const service: RunService = {
    get closing() {
      return closing
    },
    async start(tenantId, task, attach) {
      if (closing) throw unavailable({ message: 'This server is stopping; try again.', retryable: true })
      return starts(tenantId, task, attach)
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
    // Its end is in the store before it is in memory.
    events: (tenantId, runId, ended = false) =>
      eventsSoFar(store, ended ? undefined : local(tenantId, runId)?.log, tenantId, runId),
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
