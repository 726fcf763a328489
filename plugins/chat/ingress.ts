import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { createTenantWalk, type TenantWalk } from './tenant-walk.ts'

// A minute is counted 5 s after it is over. A run that is committed later still is found by the overlap of the next count:
// no transaction of ours takes 5 minutes.
const count = {
  name: 'chat-ingress',
  text: `WITH before AS (SELECT counted_until FROM ingress_watermarks WHERE tenant_id = $1),
         closed AS (
           INSERT INTO ingress_watermarks AS mark (tenant_id, counted_until)
           VALUES ($1, date_trunc('minute', now() - interval '5 seconds'))
           ON CONFLICT (tenant_id) DO UPDATE SET counted_until = EXCLUDED.counted_until
             WHERE mark.counted_until < EXCLUDED.counted_until
           RETURNING counted_until)
         INSERT INTO usage_meters AS meter (tenant_id, meter, subject, minute, amount, recorded_at)
         SELECT $1, 'ingress', run.published_id, date_trunc('minute', run.created_at), count(*),
           date_trunc('minute', run.created_at)
         FROM closed, public_runs run
         WHERE run.tenant_id = $1 AND run.created_at < closed.counted_until
           AND run.created_at >= coalesce((SELECT counted_until FROM before), '-infinity') - interval '5 minutes'
         GROUP BY run.published_id, date_trunc('minute', run.created_at)
         ON CONFLICT (tenant_id, meter, subject, minute) DO UPDATE SET amount = EXCLUDED.amount
           WHERE meter.amount <> EXCLUDED.amount`,
}

/** After a chat its minute has to be over, and late commits to be in. */
const lingerMs = 3 * 60_000
const everyMs = 30_000
const walkMs = 10 * 60_000

/**
 * The meter `ingress`: accepted public chats by agent and minute. Nothing is counted in memory; the runs themselves are, so
 * what failed, or what a gateway accepted that has died since, is counted later. The amount of a minute is set, never added
 * to, so that a count repeated after a crash changes nothing; of several gateways that count at once one does, behind the
 * lock on the watermark.
 */
export const createIngress = (database: Database, log: FastifyBaseLogger, now?: () => number): TenantWalk =>
  createTenantWalk({
    database,
    everyMs,
    lingerMs,
    walkMs,
    visit: (tenantId) => database.batch(tenantId, [{ ...count, values: [tenantId] }]),
    // Once for all tenants: when the database is away it is away for each of them.
    onTurn(_everybody, [err, ...more]) {
      if (err !== undefined) log.error({ err, failures: more.length + 1 }, 'ingress.flush_failed')
    },
    now,
  })
