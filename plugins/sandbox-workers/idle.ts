import type { FastifyBaseLogger } from 'fastify'
import type { WorkerTable } from './table.ts'
import type { SessionWorker } from './worker.ts'

/** After a pause that failed. */
const retryMs = 30_000

export interface IdleLimits {
  /** An idle sandbox is put to sleep after this. */
  readonly pauseMs: number
  /** One that slept so long is ended; the next use starts another one with the same conversation. */
  readonly destroyMs: number
}

/** Puts idle sandboxes to sleep, and ends those that nobody came back to. Returns what looks once. */
export function createIdleWatch(table: WorkerTable, limits: IdleLimits, log: FastifyBaseLogger): () => void {
  const busy = new WeakSet<SessionWorker>()
  const notBefore = new WeakMap<SessionWorker, number>()
  const attempt = async (worker: SessionWorker, work: () => Promise<unknown>): Promise<void> => {
    busy.add(worker)
    try {
      await work()
    } catch (err) {
      notBefore.set(worker, Date.now() + retryMs)
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
