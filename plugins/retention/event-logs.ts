import type { TenantTx } from '#contracts/database'
import { logDeletedStage } from '#contracts/run-event'
import type { Batch } from './batches.ts'

interface Seen {
  readonly id: string
  /** When the run was started, as text. */
  readonly time: string
  /** The run ended before the time asked for. */
  readonly due: boolean
  readonly gone: boolean
}

/**
 * Cuts the event logs of runs that ended before `before` to their last event, and leaves the runs. The last event says no more than the run does. With
 * it every reader of the log still gets an end, and a conversation that is restored from logs keeps its answers. An event before it says that the rest
 * was deleted.
 *
 * The walk goes on where the pass before it stopped, and then looks at the runs that had not ended for long enough when they were passed.
 */
export const oldLogs =
  (before: Date): Batch =>
  async (tx, limit, place) => {
    const from = place?.[0]
    const seen = await (from === undefined ? nextRuns(tx, before, limit) : leftRuns(tx, before, limit, from))
    const due = seen.filter((run) => run.due).map(({ id }) => id)
    // A log may be large. Then the same runs are seen again by the next batch.
    if ((await deleteEvents(tx, due, limit)) >= limit) return { deleted: {}, next: place ?? [] }
    const logs = await cut(tx, due)
    const last = seen.at(-1)
    if (from === undefined) await pass(tx, seen)
    else await settle(tx, seen)
    if (seen.length === limit) return { deleted: { logs }, next: from === undefined ? [] : [last!.id] }
    return { deleted: { logs }, next: from === undefined ? [''] : undefined }
  }

async function nextRuns(tx: TenantTx, before: Date, limit: number): Promise<Seen[]> {
  const [place] = await tx.query<{ time: string; id: string }>({
    name: 'retention-logs-place',
    text: 'SELECT started_at::text AS time, run_id AS id FROM run_logs_seen WHERE tenant_id = $1',
    values: [tx.tenantId],
  })
  // Without a name, so that it is planned for the size that the table has by then.
  return tx.query({
    text: `SELECT id, started_at::text AS time, coalesce(finished_at < $2::timestamptz, false) AS due, false AS gone FROM runs
           WHERE tenant_id = $1 AND started_at < $2::timestamptz AND (started_at, id) > ($4::timestamptz, $5::text)
           ORDER BY started_at, id LIMIT $3`,
    values: [tx.tenantId, before, limit, place?.time ?? '-infinity', place?.id ?? ''],
  })
}

const leftRuns = (tx: TenantTx, before: Date, limit: number, from: string): Promise<Seen[]> =>
  tx.query({
    name: 'retention-logs-left',
    text: `SELECT l.run_id AS id, '' AS time, coalesce(r.finished_at < $2::timestamptz, false) AS due, r.id IS NULL AS gone
           FROM (SELECT run_id FROM run_logs_left WHERE tenant_id = $1 AND run_id > $4 ORDER BY run_id LIMIT $3) l
           LEFT JOIN LATERAL (SELECT id, finished_at FROM runs WHERE tenant_id = $1 AND id = l.run_id OFFSET 0) r ON true
           ORDER BY l.run_id`,
    values: [tx.tenantId, before, limit, from],
  })

// Rows to delete or to write are found first, by their keys, and then taken by their place. The statements have no name, so each is planned for the size that
// the table has by then: by a plan from when it was small it was read whole.
const lastOf = (columns: string): string => `
  SELECT ${columns} FROM unnest($2::text[]) AS due (id) CROSS JOIN LATERAL (
    SELECT ctid, * FROM run_events WHERE tenant_id = $1 AND run_id = due.id ORDER BY first_seq DESC LIMIT 1) l`

/** Deletes at most `limit` rows of the logs, but not the last of each. Resolves to how many it deleted. */
async function deleteEvents(tx: TenantTx, runs: readonly string[], limit: number): Promise<number> {
  if (runs.length === 0) return 0
  const gone = await tx.query({
    text: `DELETE FROM run_events WHERE tenant_id = $1 AND ctid = ANY (ARRAY(
             SELECT e.ctid FROM (${lastOf('l.run_id, l.first_seq')}) last CROSS JOIN LATERAL (
               SELECT ctid FROM run_events WHERE tenant_id = $1 AND run_id = last.run_id AND first_seq < last.first_seq OFFSET 0) e
             LIMIT $3)) RETURNING 1`,
    values: [tx.tenantId, runs, limit],
  })
  return gone.length
}

// The first of two events says that the run began, and nothing that was said: the event in its place would be larger. The last line is found in the escaped form of the bytes, which never fails, whatever a worker has sent. What is written anew is no deletion, so no
// trigger subtracts its bytes.
const cutText = `
  WITH last AS MATERIALIZED (
    ${lastOf('l.ctid AS place, octet_length(l.lines) AS bytes')} WHERE l.first_seq + l.count > 3
  ), cut AS (
    UPDATE run_events e SET first_seq = e.first_seq + e.count - 2, count = 2, lines = convert_to(format(
        E'{"type":"progress","runId":%s,"sessionId":%s,"seq":%s,"at":"%s","stage":"${logDeletedStage}","message":"%s"}\\n',
        to_json(e.run_id), (SELECT to_json(r.session_id) FROM runs r WHERE r.tenant_id = $1 AND r.id = e.run_id),
        e.first_seq + e.count - 2, to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'The events before this one were deleted, because they were older than event logs are kept.'), 'UTF8')
      || decode(split_part(encode(e.lines, 'escape'), E'\\n', e.count), 'escape') || '\\x0a'::bytea
    WHERE e.tenant_id = $1 AND e.ctid = ANY (ARRAY(SELECT place FROM last))
    RETURNING e.run_id, octet_length(e.lines) AS bytes
  ), freed AS (
    UPDATE tenant_storage SET bytes = greatest(0, bytes - coalesce(
      (SELECT sum(bytes) FROM last) - (SELECT sum(bytes) FROM cut), 0)) WHERE tenant_id = $1 AND EXISTS (SELECT FROM cut)
  ), files AS (
    INSERT INTO erased_runs (tenant_id, run_id) SELECT $1, run_id FROM cut ON CONFLICT DO NOTHING
  ), objects AS (
    DELETE FROM linked_object_runs WHERE tenant_id = $1 AND ctid = ANY (ARRAY(
      SELECT l.ctid FROM cut CROSS JOIN LATERAL (
        SELECT ctid, key FROM linked_object_runs WHERE tenant_id = $1 AND run_id = cut.run_id OFFSET 0) l
      CROSS JOIN LATERAL (SELECT input FROM runs WHERE tenant_id = $1 AND id = cut.run_id OFFSET 0) r
      WHERE position(l.key IN coalesce(r.input::text, '')) = 0))
  )
  SELECT count(*)::int AS logs FROM cut`

/**
 * Leaves the last event of each log, with one that says that the others were deleted. Run files go as well, and objects that were linked from the log
 * alone: what the input of the run names stays with the run. Resolves to how many logs it cut.
 */
async function cut(tx: TenantTx, runs: readonly string[]): Promise<number> {
  if (runs.length === 0) return 0
  const values = [tx.tenantId, runs]
  const [row] = await tx.query<{ logs: number }>({ text: cutText, values })
  return row!.logs
}

/** Moves the place of the walk behind these runs, and notes those that are not due yet. */
async function pass(tx: TenantTx, seen: readonly Seen[]): Promise<void> {
  const last = seen.at(-1)
  if (!last) return
  await tx.query({
    name: 'retention-logs-pass',
    text: `WITH noted AS (
             INSERT INTO run_logs_left (tenant_id, run_id) SELECT $1, unnest($4::text[]) ON CONFLICT DO NOTHING)
           INSERT INTO run_logs_seen (tenant_id, started_at, run_id) VALUES ($1, $2::timestamptz, $3)
           ON CONFLICT (tenant_id) DO UPDATE SET started_at = excluded.started_at, run_id = excluded.run_id`,
    values: [tx.tenantId, last.time, last.id, seen.filter(({ due }) => !due).map(({ id }) => id)],
  })
}

/** Forgets those of the noted runs that are done. */
async function settle(tx: TenantTx, seen: readonly Seen[]): Promise<void> {
  const done = seen.filter(({ due, gone }) => due || gone).map(({ id }) => id)
  if (done.length === 0) return
  await tx.query({
    name: 'retention-logs-settle',
    text: 'DELETE FROM run_logs_left WHERE tenant_id = $1 AND run_id = ANY($2)',
    values: [tx.tenantId, done],
  })
}
