import type { FastifyBaseLogger } from 'fastify'
import { interruptedBy, type NextOutcome, type RunStore } from '#contracts/run-store'
import type { Cancel } from './cancellation.ts'

export interface QueueDeps {
  readonly store: RunStore
  readonly log: FastifyBaseLogger
  readonly cancel: Cancel
  readonly begin: (next: NextOutcome & { kind: 'started' }) => void
  /** Whether a run of this session could go anywhere now. While it could not, it keeps its place in the line. */
  readonly ready: (sessionId: string) => boolean
}

/**
 * Starts whatever is first in a session's line, if the session is free, and frees it for an interrupt. Called whenever that
 * may be so, by every conductor; the store lets one of them do it.
 */
export type Advance = (tenantId: string, sessionId: string) => void

export function createQueue({ store, log, cancel, begin, ready }: QueueDeps): Advance {
  /** Sessions looked at now; true when there was another call meanwhile. */
  const looking = new Map<string, boolean>()

  const look = async (tenantId: string, sessionId: string): Promise<void> => {
    while (ready(sessionId)) {
      const next = await store.claimNext(tenantId, sessionId)
      if (next.kind === 'started') return begin(next)
      if (next.kind === 'none') return
      await cancel(tenantId, next.runId, { status: 'cancelled', ...interruptedBy(next.interrupt) })
    }
  }
  return (tenantId, sessionId) => {
    const key = `${tenantId}\n${sessionId}`
    if (looking.has(key)) return void looking.set(key, true)
    const round = async (): Promise<void> => {
      do {
        looking.set(key, false)
        await look(tenantId, sessionId)
      } while (looking.get(key))
    }
    round()
      // Every conductor's sweep comes back to it.
      .catch((err: unknown) => log.warn({ err, sessionId }, 'the next run of a session could not be started yet'))
      .finally(() => looking.delete(key))
  }
}
