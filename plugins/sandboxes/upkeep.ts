import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { retry } from '#kit'
import type { Reaper } from './reaper.ts'
import type { SessionWorker, WorkerTable } from './session-worker.ts'
import type { Substrate, Substrates } from './substrates.ts'
import { atMost } from './waiting.ts'
import type { WarmPools } from './warm-pools.ts'
import type { Workspaces } from './workspaces.ts'
import { sandboxErrors } from './errors.ts'

/** How long a stopping runner waits for its sandboxes to end. Together with the end of its runs it fits into the usual grace period. */
const stopMs = 4_000
/** The time between two checks for idle sandboxes. Their limits are usually minutes. */
const tickMs = 1_000
/** The time before a failed pause is retried. */
const pauseRetryMs = 30_000
/** The time between two checks of waiting warm workers. */
const lookMs = 10_000
/** The time between two checks whether the runner listens and thus knows its own address. */
const addressMs = 20
/** The waits between attempts to list the sandboxes of an earlier process. */
const sweeps = { firstMs: 1_000, longestMs: 60_000 }

interface IdleLimits {
  /** An idle sandbox is paused after this time. */
  readonly pauseMs: number
  /** A sandbox that has been idle for this long is ended. The next use starts another one with the same conversation. */
  readonly destroyMs: number
}

interface UpkeepOptions {
  readonly table: WorkerTable
  readonly workspaces: Workspaces
  readonly pools: WarmPools
  readonly reaper: Reaper
  readonly substrates: Substrates
  readonly idle: IdleLimits
  /** Both functions throw until the runner listens. */
  readonly owner: () => string
  readonly runnerUrl: () => string
  /** Aborted when the runner stops. */
  readonly stopping: AbortController
  readonly log: FastifyBaseLogger
}

/** Background work: pauses idle sandboxes, counts files, maintains warm pools, ends sandboxes of an earlier process. */
export interface Upkeep {
  start(): void
  /** Ends all sandboxes. */
  stop(): Promise<void>
}

export function createUpkeep(options: UpkeepOptions): Upkeep {
  const { table, workspaces, pools, reaper, substrates, idle, owner, runnerUrl, stopping, log } = options
  const watchIdle = createIdleWatch(table, idle, log)
  const timers = new Set<NodeJS.Timeout>()
  const pause = (ms: number): Promise<unknown> =>
    sleep(ms, undefined, { signal: stopping.signal, ref: false }).catch(() => {})
  const knowsItself = (): boolean => {
    try {
      return owner() !== '' && runnerUrl() !== ''
    } catch {
      return false
    }
  }
  const sweep = async (substrate: Substrate): Promise<void> => {
    const mayPass = (err: unknown): boolean => {
      log.warn({ err, provider: substrate.name }, 'a sandbox provider could not list the sandboxes of former processes')
      return true
    }
    const found = retry(async () => reaper.sweep(substrate, owner()), { ...sweeps, signal: stopping.signal, mayPass })
    // Rejects only on stop.
    const count = await found.catch(() => 0)
    if (count > 0) log.info({ provider: substrate.name, count }, 'sandboxes of a former process were destroyed')
  }
  const begin = async (): Promise<void> => {
    while (!knowsItself()) {
      if (stopping.signal.aborted) return
      await pause(addressMs)
    }
    pools.open()
    await Promise.all(substrates.all().map(sweep))
  }
  return {
    start() {
      timers.add(setInterval(watchIdle, Math.min(tickMs, idle.pauseMs)).unref())
      timers.add(setInterval(() => workspaces.look(), Math.min(tickMs, workspaces.everyMs)).unref())
      timers.add(setInterval(() => void pools.look(), lookMs).unref())
      void begin()
    },
    async stop() {
      for (const timer of timers) clearInterval(timer)
      stopping.abort(sandboxErrors.runnerStopping())
      for (const worker of table.all()) void worker.close(sandboxErrors.runnerStopping())
      await atMost(stopMs, reaper.stop())
    },
  }
}

/** Pauses idle sandboxes, and ends those that stay unused. Returns a function that makes one check. */
function createIdleWatch(table: WorkerTable, limits: IdleLimits, log: FastifyBaseLogger): () => void {
  const busy = new WeakSet<SessionWorker>()
  const notBefore = new WeakMap<SessionWorker, number>()
  const attempt = async (worker: SessionWorker, work: () => Promise<unknown>): Promise<void> => {
    busy.add(worker)
    try {
      await work()
    } catch (err) {
      notBefore.set(worker, Date.now() + pauseRetryMs)
      log.warn({ err, sessionId: worker.session.id }, 'an idle sandbox could not be paused')
    } finally {
      busy.delete(worker)
    }
  }
  return () => {
    const now = Date.now()
    for (const worker of table.all()) {
      if (!worker.sandbox || worker.uses.count > 0 || busy.has(worker) || now < (notBefore.get(worker) ?? 0)) continue
      const idleMs = now - worker.uses.lastAt
      if (idleMs >= limits.destroyMs) void attempt(worker, () => worker.retire())
      else if (idleMs >= limits.pauseMs && worker.phase === 'awake') void attempt(worker, () => worker.pause())
    }
  }
}
