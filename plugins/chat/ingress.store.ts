import type { Database } from '#contracts/database'

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

/**
 * Counts a tenant's accepted chats of the minutes that are over since the last count, and a few before. The amount of a
 * minute is set, never added to, so that a count repeated after a crash changes nothing; of several gateways that count at
 * once one does, behind the lock on the watermark.
 */
export const countIngress = (database: Database, tenantId: string): Promise<unknown> =>
  database.batch(tenantId, [{ ...count, values: [tenantId] }])
