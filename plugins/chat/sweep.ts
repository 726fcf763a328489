import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import type { RunDispatch, RunSummary } from '#contracts/runs'
import type { Instance } from './instance.ts'
import {
  deadGateways,
  forgetGateways,
  type Orphan,
  takeOverLimit,
  takeOverOrphans,
  tenantIds,
} from './orphans.store.ts'
import { errorOutcome, outcomeOfSummary } from './outcome.ts'
import type { Watchers } from './watchers.ts'

const everyMs = 2_000
/** Between questions to a conductor that does not answer: what became of a run must be known, not guessed. */
const askAgainMs = 1_000

interface Dependencies {
  readonly database: Database
  readonly dispatch: RunDispatch
  readonly instance: Instance
  readonly watchers: Watchers
  readonly beginning: ReadonlySet<string>
  readonly log: FastifyBaseLogger
}

export interface Sweep {
  /** Has this process's own open runs of a tenant looked over as well: a write of it may have happened unseen. */
  doubt(tenantId: string): void
  /** Closes or takes over the open runs of dead gateways; `everywhere`: also of those long forgotten. */
  run(everywhere?: boolean): Promise<void>
  start(): void
  stop(): Promise<void>
}

type Counts = Record<'taken_over' | 'finished' | 'lost', number>

/** Crash recovery. Tenants are walked one by one, because row security hides their rows from a statement without one. */
export function createSweep(deps: Dependencies): Sweep {
  const { database, dispatch, instance, watchers, beginning, log } = deps
  const doubtful = new Set<string>()
  const swept = new Set<string>()
  const stopped = new AbortController()
  let timer: NodeJS.Timeout | undefined
  let running: Promise<void> = Promise.resolve()

  const ask = async (orphan: Orphan, signal: AbortSignal): Promise<RunSummary | undefined> => {
    for (;;) {
      try {
        return await dispatch.find(orphan.tenantId, orphan.runId)
      } catch (err) {
        log.warn({ err, publicRunId: orphan.publicRunId }, 'the conductor could not be asked about an orphan run')
        await sleep(askAgainMs, undefined, { signal })
      }
    }
  }

  const adopt = async (orphan: Orphan): Promise<keyof Counts> => {
    const own = watchers.get(orphan.publicRunId)
    if (own) {
      // Watched here all the time: this process itself was declared dead and came back.
      own.owner = instance.id
      return 'taken_over'
    }
    // Begun here since the question was put; its watcher comes.
    if (beginning.has(orphan.publicRunId)) return 'taken_over'
    const watcher = watchers.open({ ...orphan, owner: instance.id }, async (signal) => {
      const summary = await ask(orphan, signal)
      if (!summary) return { over: errorOutcome('lost') }
      const over = outcomeOfSummary(summary)
      if (over) return { over }
      return { sessionId: summary.sessionId, events: dispatch.follow(orphan.tenantId, orphan.runId, 0, signal) }
    })
    const outcome = await watcher.dispatched
    if (!outcome) return 'taken_over'
    return outcome.status === 'lost' ? 'lost' : 'finished'
  }

  const sweepTenant = async (tenantId: string, counts: Counts): Promise<void> => {
    const isDoubtful = doubtful.delete(tenantId)
    try {
      for (let more = true; more && !stopped.signal.aborted;) {
        const known = isDoubtful ? [...beginning, ...[...watchers].map((w) => w.publicRunId)] : undefined
        const orphans = await takeOverOrphans(database, tenantId, instance.id, known)
        for (const result of await Promise.all(orphans.map(adopt))) counts[result]++
        more = orphans.length === takeOverLimit
      }
    } catch (err) {
      doubtful.add(tenantId)
      log.warn({ err, tenantId }, 'orphan runs of a tenant could not be swept; they are tried again')
    }
  }

  const run = async (everywhere = false): Promise<void> => {
    const gateways = await deadGateways(database)
    const due = gateways.filter(({ id, forgotten }) => forgotten || !swept.has(id))
    const walk = everywhere || due.length > 0 ? await tenantIds(database) : [...doubtful]
    const counts: Counts = { taken_over: 0, finished: 0, lost: 0 }
    for (const tenantId of walk) {
      if (stopped.signal.aborted) return
      await sweepTenant(tenantId, counts)
    }
    const swept_runs = counts.taken_over + counts.finished + counts.lost
    if (everywhere || swept_runs > 0) log.info({ swept: swept_runs, ...counts }, 'crash.recovery.sweep')
    if (doubtful.size > 0) return
    // A dead gateway is swept at once, and again when nothing it sent can still arrive; then its row may go.
    for (const { id } of due) swept.add(id)
    const forgotten = due.filter((gateway) => gateway.forgotten).map(({ id }) => id)
    if (forgotten.length > 0) await forgetGateways(database, forgotten)
    for (const id of forgotten) swept.delete(id)
  }

  return {
    doubt: (tenantId) => void doubtful.add(tenantId),
    run,
    start() {
      let busy = false
      let first = true
      const turn = (): void => {
        if (busy) return
        busy = true
        running = run(first)
          .then(() => {
            first = false
          })
          .catch((err: unknown) => log.warn({ err }, 'the sweep of orphan runs failed; it is tried again'))
          .finally(() => {
            busy = false
          })
      }
      timer = setInterval(turn, everyMs).unref()
      turn()
    },
    async stop() {
      clearInterval(timer)
      stopped.abort()
      await running
    },
  }
}
