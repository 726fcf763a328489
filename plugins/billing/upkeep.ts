import type { FastifyBaseLogger } from 'fastify'
import type { Gauge } from 'prom-client'
import type { Database, Statement } from '#contracts/database'
import type { Prices } from '#contracts/prices'
import { tenantIds } from '#kit'
import { reconcile } from './reconcile.ts'

// The statement that ends a run normally releases the run's hold. This statement releases holds whose run is gone or has ended without it.
const releaseAbandoned = (tenantId: string): Statement => ({
  text: `SELECT billing_release($1, h.run_id) FROM billing_holds h
         WHERE h.tenant_id = $1 AND h.created_at < now() - interval '5 minutes' AND NOT EXISTS (
           SELECT 1 FROM runs r WHERE r.tenant_id = $1 AND r.id = h.run_id AND r.finished_at IS NULL)`,
  values: [tenantId],
})
const expire = (tenantId: string): Statement => ({
  text: `SELECT billing_expire($1) FROM (SELECT 1 FROM billing_accounts WHERE tenant_id = $1 FOR UPDATE) locked`,
  values: [tenantId],
})
// Deletes uses of past periods without holds, so that an end user who chatted once leaves no row.
const forgetUses = (tenantId: string): Statement => ({
  text: `DELETE FROM billing_budget_uses WHERE tenant_id = $1 AND held = 0 AND period < (now() AT TIME ZONE 'UTC')::date - 40`,
  values: [tenantId],
})
// Charges storage once for each day that has begun, by the bytes stored when this statement runs.
const chargeStorage = (tenantId: string, perGibDay: number, prices: string): Statement => ({
  text: `SELECT billing_debit($1, round(s.bytes * $2::numeric / 1073741824)::bigint, 'usage', 'storage',
           to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD'), NULL, $3)
         FROM tenant_storage s JOIN billing_accounts a ON a.tenant_id = $1
         WHERE s.tenant_id = $1 AND s.bytes * $2::numeric / 1073741824 >= 1`,
  values: [tenantId, perGibDay, prices],
})

/** How far back the hourly check looks at single runs. Two days make up for a missed day; the command checks all runs. */
const lookedAtMs = 2 * 24 * 3_600_000

interface Upkeep {
  readonly database: Database
  readonly prices: Prices | undefined
  readonly signal: AbortSignal
  readonly log: FastifyBaseLogger
  /** The number of inconsistencies found, plus the checks that failed. */
  readonly audited: Gauge
}

/** Periodic work for every tenant. Each step is idempotent. A failure for one tenant is logged and does not stop the others. */
export async function upkeep({ database, prices, signal, log, audited }: Upkeep): Promise<void> {
  const perGibDay = prices?.services.storedGibDay ?? 0
  const storage = (id: string): Statement[] => (perGibDay > 0 ? [chargeStorage(id, perGibDay, prices!.version)] : [])
  let found = 0
  for await (const id of tenantIds(database.as('reads'), 'active')) {
    if (signal.aborted) return
    try {
      await database.batch(id, [expire(id), releaseAbandoned(id), forgetUses(id), ...storage(id)])
      const wrong = await reconcile(database, id, new Date(Date.now() - lookedAtMs))
      found += wrong.length
      for (const one of wrong) log.error({ tenantId: id, ...one }, 'the ledger does not add up')
    } catch (err) {
      if (signal.aborted) return
      found++
      log.error({ err, tenantId: id }, 'the upkeep of the ledger failed')
    }
  }
  audited.set(found)
}
