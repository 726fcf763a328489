import type { FastifyBaseLogger } from 'fastify'
import type { Database, Statement } from '#contracts/database'
import { tenantIds } from '#kit'
import { lock } from './bank/statements.ts'
import type { Writer } from './bank/write.ts'
import { mine } from './mining.ts'
import type { VectorList } from './search/vectors.ts'

/**
 * Milliseconds that deleting and embedding may each take for one tenant in a pass, so that other tenants get their turn. The rest of the work
 * follows in the next pass.
 */
const usualTurnMs = 20_000
/** The most rows that one transaction deletes. */
const atOnce = 200

// Expired memories are never shown. Under a legal hold they are kept all the same.
const expired = (tenantId: string): Statement => ({
  name: 'memory-expired',
  text: `DELETE FROM memories WHERE tenant_id = $1 AND id = ANY (ARRAY(
           SELECT m.id FROM memories m WHERE m.tenant_id = $1 AND m.expires_at <= now() AND NOT EXISTS (SELECT FROM tenants WHERE id = $1 AND legal_hold)
           ORDER BY m.expires_at LIMIT ${atOnce})) RETURNING 1`,
  values: [tenantId],
})
/** Deletes the recalled memories of runs that no longer exist, because no conversation is restored from them any more. */
const orphaned = (tenantId: string): Statement => ({
  name: 'memory-recalls-orphaned',
  text: `DELETE FROM memory_recalls WHERE tenant_id = $1 AND run_id = ANY (ARRAY(
           SELECT r.run_id FROM memory_recalls r WHERE r.tenant_id = $1 AND r.at < now() - interval '1 hour'
             AND NOT EXISTS (SELECT FROM runs o WHERE o.tenant_id = $1 AND o.id = r.run_id) LIMIT ${atOnce})) RETURNING 1`,
  values: [tenantId],
})

/** Forgets erasures after 90 days. No run lasts that long, so no run that began before the erasure is left. */
const forgotten = (tenantId: string): Statement => ({
  name: 'memory-erasures-forgotten',
  text: `DELETE FROM memory_erasures WHERE tenant_id = $1 AND at < now() - interval '90 days'`,
  values: [tenantId],
})

export interface SweepParts {
  readonly database: Database
  readonly vectors: VectorList | undefined
  readonly writer: Writer
  readonly log: Pick<FastifyBaseLogger, 'warn'>
  readonly turnMs?: number
}

/** For all tenants: deletes expired rows, makes memories from conversations, and embeds memories without a vector. */
export async function sweepTenants(parts: SweepParts, signal: AbortSignal): Promise<void> {
  const { database, vectors, writer, log, turnMs = usualTurnMs } = parts
  const turn = (): AbortSignal => AbortSignal.any([signal, AbortSignal.timeout(turnMs)])
  const reads = database.as('reads')
  for await (const id of tenantIds(reads, 'stored')) {
    const deleting = turn()
    for (let full = true; full && !deleting.aborted;) {
      const [, gone, recalls] = await reads.batch<[object[], object[], object[]]>(id, [
        { ...lock, values: [id] },
        expired(id),
        orphaned(id),
        forgotten(id),
      ])
      full = gone.length === atOnce || recalls.length === atOnce
    }
    if (signal.aborted) return
    await mine({ database, writer, log }, id, signal).catch((err: unknown) => {
      log.warn({ err, tenant: id }, 'conversations could not be mined; it is tried again')
    })
    await vectors?.embed(id, turn()).catch((err: unknown) => {
      log.warn({ err, tenant: id }, 'memories could not be embedded; it is tried again')
    })
  }
}
