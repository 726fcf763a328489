import type { Database } from '#contracts/database'
import { endOf } from '#contracts/run-event'
import type { RunFilter, RunStore } from '#contracts/run-store'
import type { RunPreview, RunStatus } from '#contracts/runs'
import type { Session } from '#contracts/sessions'
import { readList } from '#kit/lists'
import {
  type ChunkRow,
  type DurableRow,
  durableColumns,
  prepared,
  previewColumns,
  type PreviewRow,
  read,
  type RunRow,
  runById,
  sessionColumns,
  type SessionRow,
  toChunk,
  toDurable,
  toPreview,
  toRun,
  toSession,
} from './rows.ts'

const runMatches = `tenant_id = $1 AND ($2::text IS NULL OR profile = $2) AND ($3::text IS NULL OR session_id = $3)
  AND ($4::text IS NULL OR status = $4) AND ($5::timestamptz IS NULL OR started_at >= $5)
  AND ($6::timestamptz IS NULL OR started_at < $6) AND ($7::text IS NULL OR parent ->> 'runId' = $7)`
const runList = {
  columns: '*',
  shown: previewColumns,
  from: 'runs',
  where: runMatches,
  order: { started_at: 'timestamptz', id: 'text' },
  newestFirst: true,
  // Of 16 KB at most, if every character of their texts takes four bytes.
  atOnce: 64,
} as const

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
const sessionList = {
  columns: sessionColumns,
  from: 'sessions',
  where: sessionMatches,
  order: { created_at: 'timestamptz', id: 'text' },
  newestFirst: true,
  // Of 16 KB at most: a last prompt has 4,000 characters.
  atOnce: 64,
} as const

export function createReads(db: Database) {
  const reads = db.as('reads')
  return {
    async findRun(tenantId, runId) {
      const [row] = await db.unit<RunRow>(tenantId, runById({ tenant: tenantId, run: runId }))
      return row && toRun(row)
    },
    async listRuns(tenantId, filter: RunFilter) {
      const { profile, sessionId, status, from, to, parent } = filter
      const values = [tenantId, profile, sessionId, status, from, to, parent].map((value) => value ?? null)
      return readList<PreviewRow, RunPreview>({ database: db, tenantId }, { ...runList, values }, filter, toPreview)
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
      const values = [tenantId, filter.q === undefined || filter.q === '' ? null : filter.q]
      return readList<SessionRow, Session>({ database: db, tenantId }, { ...sessionList, values }, filter, toSession)
    },
  } satisfies Partial<RunStore>
}
