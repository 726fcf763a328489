import type { Database } from '#contracts/database'
import { endOf } from '#contracts/run-event'
import type { RunFilter, RunStore } from '#contracts/run-store'
import type { RunStatus } from '#contracts/runs'
import {
  type ChunkRow,
  type DurableRow,
  durableColumns,
  prepared,
  read,
  type RunRow,
  runById,
  runColumns,
  sessionColumns,
  type SessionRow,
  toChunk,
  toDurable,
  toRun,
  toSession,
} from './rows.ts'

const runMatches = `tenant_id = $1 AND ($2::text IS NULL OR profile = $2) AND ($3::text IS NULL OR session_id = $3)
  AND ($4::text IS NULL OR status = $4) AND ($5::timestamptz IS NULL OR started_at >= $5)
  AND ($6::timestamptz IS NULL OR started_at < $6) AND ($7::text IS NULL OR parent ->> 'runId' = $7)`
// Not a named statement, so that it is planned with its values and the filter at hand decides the index.
const listRuns = `SELECT ${runColumns} FROM runs WHERE ${runMatches} ORDER BY started_at DESC, id DESC LIMIT $8 OFFSET $9`
const countRuns = `SELECT count(*)::int AS total FROM runs WHERE ${runMatches}`

// One statement, so status and chunks are of one instant. The first chunk may begin before the event asked for.
const logAfter = prepared(
  'run-log-after',
  `SELECT r.status, e.first_seq, e.count, e.lines
   FROM runs r LEFT JOIN LATERAL (
     SELECT * FROM (
       SELECT *, sum(octet_length(page.lines)) OVER (ORDER BY page.first_seq) - octet_length(page.lines) AS before
       FROM (
         SELECT first_seq, count, lines FROM run_events
         WHERE tenant_id = r.tenant_id AND run_id = r.id AND first_seq + count > :after + 1 AND first_seq >= coalesce((
           SELECT max(first_seq) FROM run_events WHERE tenant_id = r.tenant_id AND run_id = r.id AND first_seq <= :after + 1
         ), 1)
         ORDER BY first_seq LIMIT 256
       ) page
     ) sized WHERE before < 1048576
   ) e ON true
   WHERE r.tenant_id = :tenant AND r.id = :run ORDER BY e.first_seq`,
)

const lastChunk = prepared(
  'run-last-chunk',
  `SELECT first_seq, count, lines FROM run_events WHERE tenant_id = :tenant AND run_id = :run ORDER BY first_seq DESC LIMIT 1`,
)

// Runs that were never begun have no ordinal: a session's stream does not know them.
const runsOfSession = prepared(
  'session-runs-after',
  `SELECT s.status, r.id, r.ordinal
   FROM sessions s LEFT JOIN LATERAL (
     SELECT id, ordinal FROM runs WHERE tenant_id = s.tenant_id AND session_id = s.id AND ordinal > :ordinal
     ORDER BY ordinal LIMIT 100
   ) r ON true
   WHERE s.tenant_id = :tenant AND s.id = :session ORDER BY r.ordinal`,
)

const durableById = prepared(
  'session-durable',
  `SELECT ${durableColumns} FROM sessions WHERE tenant_id = :tenant AND id = :session`,
)
const sessionById = prepared(
  'session-by-id',
  `SELECT ${sessionColumns} FROM sessions WHERE tenant_id = :tenant AND id = :session`,
)
// The specification lists "live session records": without sessions that were shut down.
const sessionMatches = `tenant_id = $1 AND status <> 'shutdown' AND ($2::text IS NULL
  OR position(lower($2) IN lower(id)) > 0 OR position(lower($2) IN lower(profile)) > 0)`
const listSessions = `SELECT ${sessionColumns} FROM sessions WHERE ${sessionMatches}
  ORDER BY created_at DESC, id DESC LIMIT $3 OFFSET $4`
const countSessions = `SELECT count(*)::int AS total FROM sessions WHERE ${sessionMatches}`

export function createReads(db: Database) {
  const reads = db.as('reads')
  return {
    async findRun(tenantId, runId) {
      const [row] = await db.unit<RunRow>(tenantId, runById({ tenant: tenantId, run: runId }))
      return row && toRun(row)
    },
    async listRuns(tenantId, filter: RunFilter) {
      const { profile, sessionId, status, from, to, parent } = filter
      const matching = [tenantId, profile, sessionId, status, from, to, parent].map((value) => value ?? null)
      const [count, rows] = await reads.batch<[{ total: number }[], RunRow[]]>(tenantId, [
        { text: countRuns, values: matching },
        { text: listRuns, values: [...matching, filter.limit ?? null, filter.offset ?? 0] },
      ])
      return { runs: rows.map(toRun), total: count[0]?.total ?? 0 }
    },
    async readLog(tenantId, runId, afterSeq) {
      type LogRow = { status: RunStatus } & (ChunkRow | { first_seq: null })
      const rows = await read<LogRow>(reads, tenantId, logAfter({ tenant: tenantId, run: runId, after: afterSeq }))
      if (!rows[0]) return undefined
      return {
        status: rows[0].status,
        chunks: rows.flatMap((row) => (row.first_seq === null ? [] : [toChunk(row)])),
      }
    },
    async readEnding(tenantId, runId) {
      const [row] = await read<ChunkRow>(reads, tenantId, lastChunk({ tenant: tenantId, run: runId }))
      const chunk = row && toChunk(row)
      return chunk && endOf(chunk)
    },
    async runsOfSession(tenantId, sessionId, ordinal) {
      type Row = { status: SessionRow['status'] } & ({ id: string; ordinal: number } | { id: null })
      const rows = await db.unit<Row>(tenantId, runsOfSession({ tenant: tenantId, session: sessionId, ordinal }))
      if (!rows[0]) return undefined
      return {
        status: rows[0].status,
        runs: rows.flatMap((row) => (row.id === null ? [] : [{ runId: row.id, ordinal: row.ordinal }])),
      }
    },
    async findSession(tenantId, sessionId) {
      const [row] = await db.unit<DurableRow>(tenantId, durableById({ tenant: tenantId, session: sessionId }))
      return row && toDurable(row)
    },
    async getSession(tenantId, sessionId) {
      const [row] = await db.unit<SessionRow>(tenantId, sessionById({ tenant: tenantId, session: sessionId }))
      return row && toSession(row)
    },
    async listSessions(tenantId, filter) {
      const matching = [tenantId, filter.q === undefined || filter.q === '' ? null : filter.q]
      const [count, rows] = await reads.batch<[{ total: number }[], SessionRow[]]>(tenantId, [
        { text: countSessions, values: matching },
        { text: listSessions, values: [...matching, filter.limit ?? null, filter.offset ?? 0] },
      ])
      return { sessions: rows.map(toSession), total: count[0]?.total ?? 0 }
    },
  } satisfies Partial<RunStore>
}
