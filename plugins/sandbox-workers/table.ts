import type { RunnerSession } from '#contracts/runner'
import { createSessionWorker, type SessionWorker, type SessionWorkerDeps } from './worker.ts'

/** The session workers of a runner. */
export interface WorkerTable {
  /** That of a session; a new one without a sandbox when it had none. */
  of(session: RunnerSession): SessionWorker
  find(tenantId: string, sessionId: string): SessionWorker | undefined
  all(): readonly SessionWorker[]
  remove(session: RunnerSession): SessionWorker | undefined
}

export function createWorkerTable(deps: SessionWorkerDeps): WorkerTable {
  const workers = new Map<string, SessionWorker>()
  const keyOf = (tenantId: string, sessionId: string): string => `${tenantId}\n${sessionId}`
  return {
    of(session) {
      const key = keyOf(session.tenantId, session.id)
      const worker = workers.get(key) ?? createSessionWorker(session, deps)
      workers.set(key, worker)
      return worker
    },
    find: (tenantId, sessionId) => workers.get(keyOf(tenantId, sessionId)),
    all: () => [...workers.values()],
    remove(session) {
      const key = keyOf(session.tenantId, session.id)
      const worker = workers.get(key)
      workers.delete(key)
      return worker
    },
  }
}
