import type { FastifyBaseLogger } from 'fastify'
import { isAppError, unavailable } from '#kernel'
import { isClientId } from '#contracts/ids'
import type { Kv } from '#contracts/kv'
import type { McpServers } from '#contracts/mcp-servers'
import type { OnCrash, Profiles } from '#contracts/profiles'
import type { Prices } from '#contracts/prices'
import type { Orphan, RunStore } from '#contracts/run-store'
import type { RunnerPool } from '#contracts/runner'
import {
  isTerminal,
  type LogChunk,
  type RunAccepted,
  type RunDispatch,
  type RunSummary,
  type Task,
} from '#contracts/runs'
import { restoredFromLog } from '#contracts/runtime'
import { sessionChannels } from '#contracts/sessions'
import type { Webhooks } from '#contracts/webhooks'
import { createCancel, drainWaitMs, type Terminated, terminateRun } from './cancellation.ts'
import type { DelegationLimits } from './delegations.ts'
import { endingOf, orphaned, policyOf, timeoutMsOf, within } from './ending.ts'
import { unknownRun } from './errors.ts'
import { follow, type Logs, runChannel } from './follow.ts'
import { createQueue } from './queue.ts'
import { Run, type RunDeps, type RunOrder } from './run.ts'
import { createStateSaver } from './state-saver.ts'
import { createSubmission } from './submission.ts'

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
  readonly onCrash: OnCrash
  readonly deadlineGraceMs: number
  readonly windDownMs: number
  readonly drainMs: number
}

export interface RunService {
  start(tenantId: string, task: Task): Promise<RunAccepted>
  /** Replays, then follows to the terminal event, which is told in any case. Takes hold of a run under way at once. */
  follow(tenantId: string, runId: string, afterSeq: number, signal: AbortSignal): AsyncIterable<LogChunk>
  executes(tenantId: string, runId: string): boolean
  find(tenantId: string, runId: string): Promise<RunSummary>
  /** The vendor's conversation handle of the run's session; empty until there is one. */
  handleOf(tenantId: string, runId: string): Promise<string>
  /** The events so far, as they are in this instant. `ended`: the caller has seen that the run is over, and its last event is among them. */
  events(tenantId: string, runId: string, ended: boolean): AsyncIterable<LogChunk>
  cancel(tenantId: string, runId: string): Promise<void>
  terminate(tenantId: string, runId: string): Promise<Terminated>
  /**
   * Takes nothing new; hands what is under way to another conductor, or lets it end where there is none, for a while.
   * Until then its readers are served.
   */
  drain(): Promise<void>
  /** Ends or leaves what `drain` has not, and saves the sessions that rest. */
  close(): Promise<void>
  readonly closing: boolean
}

/** A thousand orphans begin over a minute and a half, and sooner when several conductors share them. */
const adoptedPerSweep = 25
/** One timer looks after the deadlines of all runs. */
const deadlineTickMs = 250
/** How long runs may take to be handed over: a flush and a statement each. */
const handOverMs = 5_000

const keyOf = (tenantId: string, runId: string): string => `${tenantId}\n${runId}`

export function createRunService(deps: RunServiceDeps): RunService {
  const { store, runners, kv } = deps
  const active = new Map<string, Run>()
  const givingUp = new AbortController()
  const saver = createStateSaver(store, deps.log)
  let closing: Promise<void> | undefined
  let wheel: NodeJS.Timeout | undefined

  const local = (tenantId: string, runId: string): Run | undefined => active.get(keyOf(tenantId, runId))
  const logs: Logs = { store, kv, live: (tenantId, runId) => local(tenantId, runId)?.log }
  const cancellation = { store, logs, local }
  const cancel = createCancel(cancellation)
  const running: RunDeps = {
    ...deps,
    get children() {
      return service
    },
    givingUp: givingUp.signal,
    announce: ({ runId }) => {
      if (kv.backend !== 'memory') kv.publish(runChannel(runId), '')
    },
  }
  const turn = (): void => {
    const now = Date.now()
    for (const run of active.values()) if (now > run.deadline) run.stop(endingOf('timeout'))
  }

  const begin = (
    { claim, session }: Pick<Orphan, 'claim' | 'session'>,
    task: Task,
    more: Pick<RunOrder, 'placed' | 'remembers' | 'announced' | 'orphan'> = {},
  ): Run => {
    const key = keyOf(claim.tenantId, claim.runId)
    const waiting = saver.busy(claim.tenantId, claim.sessionId)
    const run = new Run(running, { claim, task, session, ...more })
    active.set(key, run)
    kv.publish(`${sessionChannels}${claim.tenantId}:${claim.sessionId}`, '')
    wheel ??= setInterval(turn, deadlineTickMs).unref()
    void run.done.then((how) => {
      // This process may have taken the run back, under another claim.
      if (active.get(key) === run) active.delete(key)
      const link = run.runner ?? waiting
      // Of a run that goes on elsewhere the runner has half a turn.
      if (link && how === 'ended' && !restoredFromLog(session.profile.runtime)) saver.rest(claim, link)
      if (active.size > 0) return
      clearInterval(wheel)
      wheel = undefined
    })
    return run
  }
  const advance = createQueue({
    store,
    cancel,
    log: deps.log,
    begin: (next) => begin(next, next.task, { announced: true }),
    ready(sessionId) {
      try {
        return !closing && runners.home({ sessionId }) !== undefined
      } catch {
        return false
      }
    },
  })
  store.onFenced(() => {
    for (const run of active.values()) run.leave()
  })
  store.executing((tenantId, runId) => local(tenantId, runId) !== undefined)
  store.onAsked((tenantId, runId, reason) => local(tenantId, runId)?.stop({ status: 'cancelled', ...reason }))
  store.onWaiting(advance)
  store.onOrphan({
    onCrash: deps.onCrash,
    room: () => (closing ? 0 : adoptedPerSweep),
    wants: ({ session: { profile }, attempt, handedOver, elapsedMs }) =>
      elapsedMs < timeoutMsOf(profile) && (handedOver || policyOf(profile, deps.onCrash).resumes)
        ? true
        : orphaned(attempt),
    adopt: (orphan) => void begin(orphan, orphan.task, { announced: true, orphan }),
  })
  const leaveRunners = runners.onDraining((link) => void saver.evacuate(link))
  const submit = createSubmission({ ...deps, local, begin, advance })

  const drain = async (): Promise<void> => {
    const runs = [...active.values()]
    if (runs.length === 0) return
    const others = await store.retreat().catch(() => false)
    if (others) await within(Promise.all(runs.map((run) => run.handOver())), handOverMs)
    await within(Promise.all([...active.values()].map((run) => run.done)), deps.drainMs)
  }
  const service: RunService = {
    get closing() {
      return closing !== undefined
    },
    async start(tenantId, task) {
      if (closing) throw unavailable({ message: 'This server is stopping; try again.', retryable: true })
      return submit(tenantId, task)
    },
    executes: (tenantId, runId) => active.has(keyOf(tenantId, runId)),
    follow: (...run) => follow(logs, ...run),
    async find(tenantId, runId) {
      const run = isClientId(runId) ? await store.findRun(tenantId, runId) : undefined
      if (!run) throw unknownRun()
      return run
    },
    async handleOf(tenantId, runId) {
      const { sessionId } = await service.find(tenantId, runId)
      const session = await store.findSession(tenantId, sessionId)
      // An earlier release stored one for every runtime.
      return session && !restoredFromLog(session.profile.runtime) ? (session.runtimeSessionId ?? '') : ''
    },
    async *events(tenantId, runId, ended) {
      // Its end is in the store before it is in memory.
      const last = ended ? undefined : local(tenantId, runId)?.log.lastSeq
      const enough = new AbortController()
      if (last === undefined) {
        for (let cursor = 0; ;) {
          const page = await store.readLog(tenantId, runId, cursor)
          if (!page || page.chunks.length === 0) return
          for (const chunk of page.chunks) {
            yield chunk
            cursor = chunk.firstSeq + chunk.count - 1
          }
        }
      }
      for await (const chunk of follow(logs, tenantId, runId, 0, enough.signal)) {
        yield chunk
        if (chunk.firstSeq + chunk.count > last) return
      }
    },
    async cancel(tenantId, runId) {
      const run = local(tenantId, runId)
      if (run) {
        run.stop(endingOf('cancelled'))
        await within(run.done, drainWaitMs)
        return
      }
      const stored = await service.find(tenantId, runId)
      if (!isTerminal(stored.status)) await cancel(tenantId, runId, endingOf('cancelled'))
    },
    terminate: (tenantId, runId) => terminateRun(cancellation, cancel, tenantId, runId, endingOf('cancelled')),
    drain: () => (closing ??= drain()),
    async close() {
      await service.drain()
      for (const run of active.values()) {
        // Whoever is there next reads on in what may go on.
        if (run.resumes) run.leave()
        else run.stop(endingOf('interrupted', 'The server that executed this run was stopped.'))
      }
      const all = Promise.all([...active.values()].map((run) => run.done))
      // A store that is away cannot be waited for: its sweep ends these runs once this process's lease is over.
      if (!(await within(all, deps.windDownMs + 1_000))) givingUp.abort()
      await all
      leaveRunners()
      await within(saver.drain(), deps.drainMs)
      clearInterval(wheel)
    },
  }
  return service
}

/** The run service for callers in the same kernel: the gateway's view, without a hop. */
export const createDispatch = (service: RunService): RunDispatch => ({
  async start(tenantId, task, afterSeq, signal) {
    const accepted = await service.start(tenantId, task)
    return { ...accepted, events: service.follow(tenantId, accepted.runId, afterSeq, signal) }
  },
  follow: (tenantId, runId, afterSeq, signal) => service.follow(tenantId, runId, afterSeq, signal),
  find: (tenantId, runId) =>
    service.find(tenantId, runId).catch((error: unknown) => {
      if (isAppError(error) && error.status === 404) return undefined
      throw error
    }),
  cancel: (tenantId, runId) => service.cancel(tenantId, runId),
  async ping() {
    if (service.closing) throw unavailable({ message: 'This server is stopping.', retryable: true })
  },
})
