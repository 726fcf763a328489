import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'

/** Between two rounds, and between two tenants of a round: it only finds what nobody was woken for. */
const restMs = 30_000
const stepMs = 20

/**
 * Goes through all tenants again and again, for messages of processes that died and for notifications that were lost. Row
 * security hides every message from a transaction without a tenant, so each is woken for itself.
 */
export function startRounds(database: Database, wake: (tenantId: string) => void, log: FastifyBaseLogger): () => void {
  const stopping = new AbortController()
  const rest = (ms: number): Promise<unknown> => sleep(ms, undefined, { signal: stopping.signal, ref: false })
  const rounds = async (): Promise<void> => {
    for (;;) {
      try {
        const [tenants] = await database.systemBatch<[{ id: string }[]]>([
          { name: 'webhooks-tenants', text: 'SELECT id FROM tenants WHERE deleted_at IS NULL' },
        ])
        for (const { id } of tenants) {
          wake(id)
          await rest(stepMs)
        }
      } catch (err) {
        if (stopping.signal.aborted) return
        log.warn({ err }, 'the tenants of the webhook outbox could not be listed')
      }
      await rest(restMs)
    }
  }
  rounds().catch(() => {})
  return () => stopping.abort()
}
