import type { FastifyBaseLogger } from 'fastify'
import { errorTable } from '#kernel'
import { isClientId } from '#contracts/ids'
import type { VfsLease, WorkerLease } from '#contracts/leases'
import type { RunStore } from '#contracts/run-store'
import type { Fleet, RunnerLink } from '#contracts/runner'
import type { Session } from '#contracts/sessions'

/** Strings with spaces are those of specification 4.7. Another tenant's session gets the same answer as a missing one. */
export const sessionErrors = errorTable('sessions', {
  notFound: { status: 404, message: 'No such session.' },
  noSandboxWorker: { code: 'no sandbox worker', status: 404, message: 'This session has no sandbox worker.' },
  noVfsSession: { code: 'no vfs session', status: 404, message: 'This session has no VirtualFS lease.' },
  sessionBusy: {
    status: 409,
    retry: 'later',
    message: 'The session is executing a run; cancel the run first.',
  },
  upstream: { status: 502, retry: true, message: "The session's runner did not answer; try again." },
})

export const createSessionService = (store: RunStore, fleet: Fleet, log: FastifyBaseLogger) => ({
  async get(tenantId: string, sessionId: string): Promise<Session> {
    const session = isClientId(sessionId) ? await store.getSession(tenantId, sessionId) : undefined
    if (!session) throw sessionErrors.notFound()
    return session
  },
  /** Ends the session here and on its runner. Idempotent; 409 `session_busy` while a run is under way. */
  async shutdown(tenantId: string, sessionId: string): Promise<void> {
    const state = isClientId(sessionId) ? await store.shutdownSession(tenantId, sessionId) : undefined
    if (state === undefined) throw sessionErrors.notFound()
    if (state === 'running') throw sessionErrors.sessionBusy()
    // Once this row is written no run can start in the session again. A runner that cannot be told keeps the session only until it restarts.
    const runner = (await store.findSession(tenantId, sessionId))?.runner
    await fleet
      .owner(sessionId, runner)
      ?.deleteSession(tenantId, sessionId)
      .catch((err: unknown) => log.warn({ err, sessionId }, 'a runner could not be told that a session is over'))
  },
})
export type SessionService = ReturnType<typeof createSessionService>

/** Milliseconds that all runners together may take. A runner that has not answered by then is left out. Specification 4.7. */
const windowMs = 2_000

/** The sandbox workers and VFS leases of sessions, as the runners report them. */
export function createLeaseService(store: Pick<RunStore, 'findSession'>, fleet: Fleet, log: FastifyBaseLogger) {
  /** Asks the runner of a tenant's session. Undefined for an unknown or foreign session, and when the runner was removed. */
  const ask = async <T>(
    tenantId: string,
    sessionId: string,
    question: (link: RunnerLink) => Promise<T | undefined>,
  ): Promise<T | undefined> => {
    const session = isClientId(sessionId) ? await store.findSession(tenantId, sessionId) : undefined
    const link = session && fleet.owner(sessionId, session.runner)
    if (!link) return undefined
    try {
      return await question(link)
    } catch (cause) {
      log.warn({ err: cause, sessionId }, 'a runner did not answer for a lease')
      throw sessionErrors.upstream({ cause })
    }
  }
  return {
    workers: async (tenantId: string) =>
      merged(await fleet.askAll((link, signal) => link.workerLeases(tenantId, signal), windowMs)),
    async worker(tenantId: string, sessionId: string): Promise<WorkerLease> {
      const lease = await ask(tenantId, sessionId, (link) => link.workerLease(tenantId, sessionId))
      if (!lease) throw sessionErrors.noSandboxWorker()
      return lease
    },
    vfs: async (tenantId: string) =>
      merged(await fleet.askAll((link, signal) => link.vfsLeases(tenantId, signal), windowMs)),
    async vfsOf(tenantId: string, sessionId: string): Promise<VfsLease> {
      const lease = await ask(tenantId, sessionId, (link) => link.vfsLease(tenantId, sessionId))
      if (!lease) throw sessionErrors.noVfsSession()
      return lease
    },
  }
}
export type LeaseService = ReturnType<typeof createLeaseService>

/**
 * The runners' entries, sorted by session. If two runners report a session, because one has an old copy, only the entry of the runner that comes
 * first in the registry is shown.
 */
function merged<T extends { readonly sessionId: string }>(answers: readonly (readonly T[])[]): T[] {
  const bySession = new Map<string, T>()
  for (const lease of answers.flat()) if (!bySession.has(lease.sessionId)) bySession.set(lease.sessionId, lease)
  return [...bySession.values()].toSorted((a, b) => (a.sessionId < b.sessionId ? -1 : 1))
}
