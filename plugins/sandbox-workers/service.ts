import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { Registry } from 'prom-client'
import type { SandboxWorkers, WorkerHub } from '#contracts/workers'
import { runnerStopping, sessionShutDown } from './errors.ts'
import { createIdleWatch, type IdleLimits } from './idle.ts'
import { createLauncher } from './launcher.ts'
import { createLeases } from './leases.ts'
import { createLink } from './link.ts'
import { createMetrics } from './metrics.ts'
import { createOrders } from './orders.ts'
import { prepareRun } from './preparation.ts'
import { createReaper } from './reaper.ts'
import type { Substrate, Substrates } from './substrates.ts'
import { createWorkerTable } from './table.ts'
import { createToolCall } from './tool-call.ts'
import { atMost } from './waiting.ts'
import type { PoolSettings } from './warm-pool.ts'
import { createWarmPools } from './warm-pools.ts'

/** How long a stopping runner waits for its sandboxes to end. With the end of its runs before it, it is within the usual grace. */
const stopMs = 4_000
/** Idle limits are minutes; a short one in a test or a demo is still kept well. */
const tickMs = 1_000
/** Between looks at warm workers that wait. */
const lookMs = 10_000
/** Until the runner knows its own address, which is when it listens. */
const addressMs = 20
/** Between attempts to ask a provider what was left behind; doubled up to the second. */
const firstSweepMs = 1_000
const lastSweepMs = 60_000

export interface ManagerOptions {
  readonly hub: WorkerHub
  readonly substrates: Substrates
  /** Names what this runner launches, across its restarts. Throws until the runner listens, as `runnerUrl` does. */
  readonly owner: () => string
  /** Where workers reach this runner. */
  readonly runnerUrl: () => string
  readonly logLevel: string
  readonly idle: IdleLimits
  readonly connectMs: number
  readonly warm: readonly PoolSettings[]
  readonly registry: Registry
  readonly log: FastifyBaseLogger
}

export interface SandboxManager {
  readonly workers: SandboxWorkers
  /** Begins what goes on behind everything else. */
  start(): void
  /** Ends every sandbox. */
  stop(): Promise<void>
}

export function createSandboxManager(options: ManagerOptions): SandboxManager {
  const { hub, substrates, owner, runnerUrl, logLevel, connectMs, log } = options
  const stopping = new AbortController()
  const reaper = createReaper(log)
  const orders = createOrders({ owner, runnerUrl, logLevel })
  const launcher = createLauncher({ hub, substrates, orders, reaper, connectMs })
  const pools = createWarmPools(options.warm, { launcher, reaper, log, stopping: stopping.signal })
  const table = createWorkerTable({ launcher, reaper, pools })
  const leases = createLeases(table)
  const metrics = createMetrics(options.registry, table, pools)
  const watchIdle = createIdleWatch(table, options.idle, log)
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
    for (let waitMs = firstSweepMs; !stopping.signal.aborted; waitMs = Math.min(waitMs * 2, lastSweepMs)) {
      try {
        const count = await reaper.sweep(substrate, owner())
        if (count > 0) log.info({ provider: substrate.name, count }, 'sandboxes of a former process were destroyed')
        return
      } catch (err) {
        log.warn({ err, provider: substrate.name }, 'a sandbox provider did not say what was left behind')
        await pause(waitMs)
      }
    }
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
    workers: {
      substrates: substrates.names,
      ...(substrates.fallback === undefined ? {} : { defaultSubstrate: substrates.fallback }),
      prepare: (session, resume, signal) => prepareRun(table, session, resume, signal, metrics),
      link: (session) => createLink(session, table, launcher),
      callTool: createToolCall(table, log),
      leases: leases.list,
      lease: leases.one,
      invalidate: leases.invalidate,
      async release(session) {
        await table.remove(session)?.close(sessionShutDown())
      },
      sawProfile: pools.follow,
    },
    start() {
      timers.add(setInterval(watchIdle, Math.min(tickMs, options.idle.pauseMs)).unref())
      timers.add(setInterval(() => void pools.look(), lookMs).unref())
      void begin()
    },
    async stop() {
      for (const timer of timers) clearInterval(timer)
      stopping.abort(runnerStopping())
      for (const worker of table.all()) void worker.close(runnerStopping())
      await atMost(stopMs, reaper.stop())
    },
  }
}
