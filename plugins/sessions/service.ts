import type { FastifyBaseLogger } from 'fastify'
import { isClientId } from '#contracts/ids'
import type { RunStore } from '#contracts/run-store'
import type { Fleet } from '#contracts/runner'
import type { Session } from '#contracts/sessions'
import { sessionErrors } from './errors.ts'

export interface SessionService {
  get(tenantId: string, sessionId: string): Promise<Session>
  /** Ends the session here and on its runner. Idempotent; 409 `session_busy` while a run is under way. */
  shutdown(tenantId: string, sessionId: string): Promise<void>
}

export const createSessionService = (store: RunStore, fleet: Fleet, log: FastifyBaseLogger): SessionService => ({
  async get(tenantId, sessionId) {
    const session = isClientId(sessionId) ? await store.getSession(tenantId, sessionId) : undefined
    if (!session) throw sessionErrors.notFound()
    return session
  },
  async shutdown(tenantId, sessionId) {
    const state = isClientId(sessionId) ? await store.shutdownSession(tenantId, sessionId) : undefined
    if (state === undefined) throw sessionErrors.notFound()
    if (state === 'running') throw sessionErrors.sessionBusy()
    // With this row no run can start in the session again, so a runner that cannot be told only keeps it until it restarts.
    const runner = (await store.findSession(tenantId, sessionId))?.runner
    await fleet
      .owner(sessionId, runner)
      ?.deleteSession(tenantId, sessionId)
      .catch((err: unknown) => log.warn({ err, sessionId }, 'a runner could not be told that a session is over'))
  },
})
