import type { FastifyBaseLogger } from 'fastify'
import { isClientId } from '#contracts/ids'
import type { RunStore } from '#contracts/run-store'
import type { RunnerLink, RunnerPool, VfsLease, WorkerLease } from '#contracts/runner'
import { noSandboxWorker, noVfsSession, runnerFailed } from './errors.ts'
import { fanOut } from './fan-out.ts'

export interface LeaseService {
  workers(tenantId: string): Promise<WorkerLease[]>
  worker(tenantId: string, sessionId: string): Promise<WorkerLease>
  vfs(tenantId: string): Promise<VfsLease[]>
  vfsOf(tenantId: string, sessionId: string): Promise<VfsLease>
}

/** What sessions hold outside of the runners, as the runners tell it. */
export function createLeaseService(
  store: Pick<RunStore, 'findSession'>,
  pool: RunnerPool,
  log: FastifyBaseLogger,
): LeaseService {
  /** The runner of a tenant's session. Undefined for an unknown or foreign session, and for a runner that was removed. */
  const runnerOf = async (tenantId: string, sessionId: string): Promise<RunnerLink | undefined> => {
    const session = isClientId(sessionId) ? await store.findSession(tenantId, sessionId) : undefined
    return session && pool.owner(sessionId, session.runner)
  }
  const ask = async <T>(
    tenantId: string,
    sessionId: string,
    question: (link: RunnerLink) => Promise<T | undefined>,
  ): Promise<T | undefined> => {
    const link = await runnerOf(tenantId, sessionId)
    if (!link) return undefined
    try {
      return await question(link)
    } catch (cause) {
      log.warn({ err: cause, sessionId }, 'a runner did not answer for a lease')
      throw runnerFailed({ cause, retryable: true })
    }
  }
  return {
    workers: (tenantId) => fanOut(pool, (link, signal) => link.workerLeases(tenantId, signal), log),
    async worker(tenantId, sessionId) {
      const lease = await ask(tenantId, sessionId, (link) => link.workerLease(tenantId, sessionId))
      if (!lease) throw noSandboxWorker()
      return lease
    },
    vfs: (tenantId) => fanOut(pool, (link, signal) => link.vfsLeases(tenantId, signal), log),
    async vfsOf(tenantId, sessionId) {
      const lease = await ask(tenantId, sessionId, (link) => link.vfsLease(tenantId, sessionId))
      if (!lease) throw noVfsSession()
      return lease
    },
  }
}
