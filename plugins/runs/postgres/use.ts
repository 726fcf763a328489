import type { Database } from '#contracts/database'
import type { RunStore } from '#contracts/run-store'
import type { Instance } from './instance.ts'
import { prepared } from './rows.ts'

// The update itself counts what other processes hold, behind the row lock, so that two processes that ask at once cannot both get the remainder. A
// process that is dead, or whose lease has expired, counts as holding nothing.
const hold = prepared(
  'run-shares-hold',
  `INSERT INTO run_shares AS s (tenant_id, held)
   VALUES (:tenant, jsonb_build_object(:owner::text, least(:wanted::int, :max::int)))
   ON CONFLICT (tenant_id) DO UPDATE SET held = (
     SELECT coalesce(jsonb_object_agg(o.key, o.value::int), '{}') || jsonb_build_object(
       :owner::text, greatest(0, least(:wanted::int, :max::int - coalesce(sum(o.value::int), 0)))
     )
     FROM jsonb_each_text(s.held) o JOIN instances i ON i.id = o.key AND NOT i.dead AND i.lease_until > now()
     WHERE o.key <> :owner::text
   )
   RETURNING (held ->> :owner::text)::int AS count`,
)
const held = prepared(
  'run-shares-held',
  `SELECT coalesce(sum(o.value::int), 0)::int AS count
   FROM run_shares s, jsonb_each_text(s.held) o JOIN instances i ON i.id = o.key AND NOT i.dead AND i.lease_until > now()
   WHERE s.tenant_id = :tenant`,
)
// Each process keeps one row per hour, so at most 24 per day: few rows, however much is written.
const addLogBytes = prepared(
  'run-log-bytes',
  `WITH added AS (
     INSERT INTO usage_meters AS m (tenant_id, meter, subject, minute, amount)
     VALUES (:tenant, 'event_log_bytes', :owner, date_trunc('hour', now()), :bytes)
     ON CONFLICT (tenant_id, meter, subject, minute) DO UPDATE
       SET amount = m.amount + excluded.amount, recorded_at = now()
   )
   SELECT :bytes::float8 + coalesce(sum(amount), 0)::float8 AS count FROM usage_meters
   WHERE tenant_id = :tenant AND meter = 'event_log_bytes' AND minute >= date_trunc('day', now(), 'UTC')`,
)
const sessions = prepared(
  'sessions-count',
  `SELECT count(*)::int AS count FROM (
     SELECT 1 FROM sessions WHERE tenant_id = :tenant AND status <> 'shutdown' LIMIT :most
   ) counted`,
)
const waiting = prepared('queue-count', 'SELECT count(*)::int AS count FROM run_queue WHERE tenant_id = :tenant')

type Counts = Pick<RunStore, 'holdRuns' | 'countHeld' | 'countLogBytes' | 'countSessions' | 'countWaiting'>

/** How much each tenant uses of what its limits bound. `db` serves claims, `database` serves slow queries. */
export function createTenantUse(db: Database, database: Database, instance: Instance): Counts {
  const reads = database.as('reads')
  const count = async (on: Database, tenantId: string, statement: ReturnType<typeof held>, order?: string) =>
    (await on.unit<{ count: number }>(tenantId, statement, order === undefined ? {} : { order }))[0]!.count
  return {
    holdRuns: (tenantId, wanted, max) =>
      count(db, tenantId, hold({ tenant: tenantId, owner: instance.id, wanted, max }), `run_shares ${tenantId}`),
    countHeld: (tenantId) => count(db, tenantId, held({ tenant: tenantId })),
    countLogBytes: (tenantId, bytes) =>
      count(db, tenantId, addLogBytes({ tenant: tenantId, owner: instance.id, bytes }), `log_bytes ${tenantId}`),
    async countSessions(tenantId, most) {
      const [[row]] = await reads.batch<[{ count: number }[]]>(tenantId, [sessions({ tenant: tenantId, most })])
      return row!.count
    },
    countWaiting: (tenantId) => count(db, tenantId, waiting({ tenant: tenantId })),
  }
}
