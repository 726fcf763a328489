import type { FastifyBaseLogger } from 'fastify'
import { isClientId } from '#contracts/ids'
import type { RunStore } from '#contracts/run-store'
import type { VfsLease, WorkerLease } from '#contracts/leases'
import type { Fleet, RunnerLink } from '#contracts/runner'
import { sessionErrors } from './errors.ts'

/** How long all runners together may take; one that has not answered by then is left out. Specification 4.7. */
const windowMs = 2_000

export interface LeaseService {
  workers(tenantId: string): Promise<WorkerLease[]>
  worker(tenantId: string, sessionId: string): Promise<WorkerLease>
  vfs(tenantId: string): Promise<VfsLease[]>
  vfsOf(tenantId: string, sessionId: string): Promise<VfsLease>
}

/** The sandbox workers and VFS leases of sessions, as the runners report them. */
export function createLeaseService(
  store: Pick<RunStore, 'findSession'>,
  fleet: Fleet,
  log: FastifyBaseLogger,
): LeaseService {
  /** The runner of a tenant's session. Undefined for an unknown or foreign session, and for a runner that was removed. */
  const runnerOf = async (tenantId: string, sessionId: string): Promise<RunnerLink | undefined> => {
    const session = isClientId(sessionId) ? await store.findSession(tenantId, sessionId) : undefined
    return session && fleet.owner(sessionId, session.runner)
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
      throw sessionErrors.upstream({ cause })
    }
  }
  return {
    workers: (tenantId) => leasesOfAll(fleet, (link, signal) => link.workerLeases(tenantId, signal), log),
    async worker(tenantId, sessionId) {
      const lease = await ask(tenantId, sessionId, (link) => link.workerLease(tenantId, sessionId))
      if (!lease) throw sessionErrors.noSandboxWorker()
      return lease
    },
    vfs: (tenantId) => leasesOfAll(fleet, (link, signal) => link.vfsLeases(tenantId, signal), log),
    async vfsOf(tenantId, sessionId) {
      const lease = await ask(tenantId, sessionId, (link) => link.vfsLease(tenantId, sessionId))
      if (!lease) throw sessionErrors.noVfsSession()
      return lease
    },
  }
}

/**
 * Asks every runner that is not away, and merges what comes within the window, sorted by session. A session that two
 * runners name, because one of them has an old copy, is shown once: as the runner has it that comes first in the registry.
 */
export async function leasesOfAll<T extends { readonly sessionId: string }>(
  fleet: Pick<Fleet, 'all' | 'describe'>,
  ask: (link: RunnerLink, signal: AbortSignal) => Promise<readonly T[]>,
  log: Pick<FastifyBaseLogger, 'warn'>,
  ms = windowMs,
): Promise<T[]> {
  const links = fleet.all()
  const present = fleet.describe().flatMap((member, i) => (member.state === 'unreachable' ? [] : [links[i]!]))
  const signal = AbortSignal.timeout(ms)
  const answers = await Promise.all(
    present.map((link) =>
      within(ask(link, signal), signal).catch((err: unknown) => {
        log.warn({ err, runner: link.hash }, 'a runner did not list its leases')
        return []
      }),
    ),
  )
  const bySession = new Map<string, T>()
  for (const lease of answers.flat()) if (!bySession.has(lease.sessionId)) bySession.set(lease.sessionId, lease)
  return [...bySession.values()].toSorted((a, b) => (a.sessionId < b.sessionId ? -1 : 1))
}

/** Rejects when the signal aborts, whether or not the asked runner's link observes it. */
const within = <T>(answer: Promise<T>, signal: AbortSignal): Promise<T> =>
  new Promise((resolve, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true })
    answer.then(resolve, reject)
  })
