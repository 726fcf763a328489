import type { TenantTx } from '#contracts/database'
import type { RetentionName } from '#contracts/retention'
import type { Batch, Done, Place } from './batches.ts'
import { clearConversations, closeIdle, idleConversations } from './conversations.ts'
import { oldLogs } from './event-logs.ts'

interface Row {
  readonly deleted: number
  readonly place: string[] | null
}

/** Deletes records of one kind that are older than `before`. The statements walk along an index from the oldest row, and skip rows that must stay. */
export function batchOf(kind: RetentionName, before: Date): Batch {
  if (kind === 'messages') return (tx, limit, place) => oldConversations(tx, before, limit, place)
  if (kind === 'logs') return oldLogs(before)
  if (kind === 'audit') return (tx, limit) => oldEntries(tx, before, limit)
  if (kind === 'meters') return (tx, limit) => oldMeters(tx, before, limit)
  const text = walks[kind]
  return async (tx, limit, place) => {
    const [row] = await tx.query<Row>({
      name: `retention-${kind}`,
      text,
      values: [tx.tenantId, before, limit, place?.[0] ?? null, place?.[1] ?? null],
    })
    return { deleted: { [kind]: row!.deleted }, next: row!.place ?? undefined }
  }
}

const seen = (table: string, time: string, columns: string): string => `
  seen AS MATERIALIZED (
    SELECT id, ${time} AS time${columns} FROM ${table}
    WHERE tenant_id = $1 AND ${time} < $2::timestamptz AND ($4::timestamptz IS NULL OR (${time}, id) > ($4, $5::text))
    ORDER BY ${time}, id LIMIT $3)`
// With fewer rows than asked for, the walk has ended and `place` is null.
const answer = `
  SELECT (SELECT count(*)::int FROM gone) AS deleted, (
    SELECT CASE WHEN count(*) < $3 THEN NULL ELSE (
      SELECT ARRAY[time::text, id] FROM seen ORDER BY time DESC, id DESC LIMIT 1) END FROM seen) AS place`
const resting = (session: string): string => `
  NOT EXISTS (SELECT FROM sessions s WHERE s.tenant_id = $1 AND s.id = ${session} AND s.claim_run IS NOT NULL)
  AND NOT EXISTS (SELECT FROM run_queue q WHERE q.tenant_id = $1 AND q.session_id = ${session})`

const walks = {
  // Two kinds of old runs stay: all runs of a session that executes, and runs whose webhook message is not delivered yet.
  runs: `WITH ${seen('runs', 'started_at', ', finished_at, session_id, status')}, due AS MATERIALIZED (
      SELECT id, time, status FROM seen WHERE finished_at < $2::timestamptz AND ${resting('seen.session_id')}
        AND NOT EXISTS (SELECT FROM webhook_deliveries w WHERE w.tenant_id = $1 AND w.run_id = seen.id AND w.state = 'pending')
    ), events AS (
      DELETE FROM run_events WHERE tenant_id = $1 AND run_id = ANY (ARRAY(SELECT id FROM due))
    ), deliveries AS (
      DELETE FROM webhook_deliveries WHERE tenant_id = $1 AND run_id = ANY (ARRAY(SELECT id FROM due))
    ), marks AS (
      DELETE FROM run_marks m USING due
      WHERE m.tenant_id = $1 AND m.status = due.status AND m.started_at = due.time AND m.run_id = due.id
    ), gone AS (
      DELETE FROM runs WHERE tenant_id = $1 AND id = ANY (ARRAY(SELECT id FROM due)) RETURNING id
    ), noted AS (
      INSERT INTO erased_runs (tenant_id, run_id) SELECT $1, id FROM gone ON CONFLICT DO NOTHING
    ) ${answer}`,
  // A child run is deleted by its own end. Whatever belongs to a run is deleted with it.
  workflows: `WITH ${seen('workflow_runs', 'created_at', ', finished_at')}, gone AS (
      DELETE FROM workflow_runs WHERE tenant_id = $1 AND id = ANY (ARRAY(SELECT id FROM seen WHERE finished_at < $2::timestamptz))
      RETURNING id
    ), history AS (
      DELETE FROM workflow_firings WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM workflow_firings WHERE tenant_id = $1 AND at < $2::timestamptz AND outcome <> 'queued' LIMIT $3))
    ) ${answer}`,
  webhooks: `WITH ${seen('webhook_deliveries', 'created_at', ', state')}, gone AS (
      DELETE FROM webhook_deliveries WHERE tenant_id = $1 AND id = ANY (ARRAY(SELECT id FROM seen WHERE state <> 'pending')) RETURNING id
    ) ${answer}`,
  // The conditions are checked again under the lock of the row, so that a run that has just claimed the session keeps it.
  sessions: `WITH ${seen('sessions', 'created_at', ', last_used_at')}, gone AS (
      DELETE FROM sessions s WHERE s.tenant_id = $1 AND s.id = ANY (ARRAY(SELECT id FROM seen WHERE last_used_at < $2::timestamptz))
        AND s.last_used_at < $2::timestamptz AND s.claim_run IS NULL
        AND NOT EXISTS (SELECT FROM run_queue q WHERE q.tenant_id = $1 AND q.session_id = s.id) RETURNING id
    ), state AS (
      DELETE FROM session_state WHERE tenant_id = $1 AND session_id = ANY (ARRAY(SELECT id FROM gone))
    ), ends AS (
      DELETE FROM session_ends WHERE tenant_id = $1 AND session_id = ANY (ARRAY(SELECT id FROM gone))
    ) ${answer}`,
} as const

const ended = (count: number, limit: number): Place => (count < limit ? undefined : [])

/** Deletes whole conversations. One with a newer message keeps all its messages, since its agent remembers them. */
async function oldConversations(tx: TenantTx, before: Date, limit: number, place: Place): Promise<Done> {
  const { ids, next } = await idleConversations(tx, before, limit, place)
  const closed = await closeIdle(tx, ids, { before })
  const { messages, publicRuns } = await clearConversations(tx, closed, limit, 'keep')
  // Conversations may have more public runs than one batch deletes. The walk then repeats this page: the rows of the conversations are gone, but
  // their remaining public runs are still found.
  return { deleted: { messages }, next: publicRuns >= limit ? (place ?? []) : next }
}

/** Deletes entries whose outcome is old as well. The setting opens the guard of the log for this transaction. */
async function oldEntries(tx: TenantTx, before: Date, limit: number): Promise<Done> {
  const values = [tx.tenantId, before, limit]
  await openAuditLog(tx)
  const found = await tx.query<{ id: string }>({
    text: `SELECT e.id FROM audit_entries e WHERE e.tenant_id = $1 AND e.at < $2::timestamptz AND NOT EXISTS (
             SELECT FROM audit_outcomes o WHERE o.tenant_id = $1 AND o.entry_id = e.id AND o.at >= $2::timestamptz)
           ORDER BY e.at, e.id LIMIT $3`,
    values,
  })
  const ids = found.map(({ id }) => id)
  const of = { values: [tx.tenantId, ids] }
  await tx.query({ text: 'DELETE FROM audit_outcomes WHERE tenant_id = $1 AND entry_id = ANY($2)', ...of })
  await tx.query({ text: 'DELETE FROM audit_entries WHERE tenant_id = $1 AND id = ANY($2)', ...of })
  return { deleted: { audit: ids.length }, next: ended(ids.length, limit) }
}

/** Makes the guard of the audit log permit deletions until the transaction ends. */
export const openAuditLog = (tx: TenantTx): Promise<object[]> =>
  tx.query({ text: `SELECT set_config('app.audit_retention', 'on', true)` })

// The index of `usage_meters` begins with the meter, not the time. The few meters are therefore read from it one by one.
const meters = [
  `DELETE FROM run_meters WHERE tenant_id = $1 AND (recorded_at, run_id) IN (
     SELECT recorded_at, run_id FROM run_meters WHERE tenant_id = $1 AND recorded_at < $2::timestamptz ORDER BY recorded_at LIMIT $3)
   RETURNING 1`,
  `WITH RECURSIVE kinds AS (
     SELECT min(meter) AS meter FROM usage_meters WHERE tenant_id = $1
     UNION ALL SELECT (SELECT min(m.meter) FROM usage_meters m WHERE m.tenant_id = $1 AND m.meter > kinds.meter)
     FROM kinds WHERE kinds.meter IS NOT NULL
   ), due AS (
     SELECT old.meter, old.subject, old.minute FROM kinds CROSS JOIN LATERAL (
       SELECT meter, subject, minute FROM usage_meters u
       WHERE u.tenant_id = $1 AND u.meter = kinds.meter AND u.recorded_at < $2::timestamptz ORDER BY u.recorded_at LIMIT $3) old LIMIT $3
   )
   DELETE FROM usage_meters u USING due
   WHERE u.tenant_id = $1 AND u.meter = due.meter AND u.subject = due.subject AND u.minute = due.minute RETURNING 1`,
]

// What the meters of runs were added up to goes by whole days, since all shorter spans end within one. The ends of sessions go with the spans that count
// them: otherwise the next run of a session would subtract it from a span that is gone.
const day = `date_bin('1 day', $2::timestamptz, '2000-01-01T00:00:00Z')`
const earlier = (table: string, time: string): string =>
  `DELETE FROM ${table} WHERE ctid = ANY (ARRAY(
     SELECT ctid FROM ${table} WHERE tenant_id = $1 AND ${time} < ${day} LIMIT $3)) RETURNING 1`
const addedUp = [
  ...['run_rollups', 'run_totals', 'run_durations'].map((table) => earlier(table, 'span IN (1, 5, 60, 1440) AND at')),
  earlier('session_ends', 'last_at'),
]
// Whoever adds up locks this row as well, so after the last batch there is neither an old span nor a session that is counted in one.
const edge = 'SELECT FROM rollup_edges WHERE tenant_id = $1 FOR UPDATE'

async function oldMeters(tx: TenantTx, before: Date, limit: number): Promise<Done> {
  const counts: number[] = []
  await tx.query({ text: edge, values: [tx.tenantId] })
  for (const text of [...meters, ...addedUp])
    counts.push((await tx.query({ text, values: [tx.tenantId, before, limit] })).length)
  const deleted = counts.slice(0, meters.length).reduce((a, b) => a + b)
  return { deleted: { meters: deleted }, next: ended(Math.max(...counts), limit) }
}
