import type { Database } from '#contracts/database'
import { endOf } from '#contracts/run-event'
import type { RunFilter, RunStore } from '#contracts/run-store'
import type { RunPreview, RunStatus } from '#contracts/runs'
import type { Session } from '#contracts/sessions'
import { type ListSql, readList } from '#kit/lists'
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
  AND ($6::timestamptz IS NULL OR started_at < $6)`
const runList = {
  columns: '*',
  shown: previewColumns,
  from: 'runs',
  where: runMatches,
  order: { started_at: 'timestamptz', id: 'text' },
  newestFirst: true,
  // Rows of a page. Each has at most 16 KB, if every character of its texts takes four bytes.
  atOnce: 64,
} as const

// Runs are found by their parent in `run_children`. Neither table is joined: both are looked up by their keys, whatever PostgreSQL knows of their sizes.
const childList = {
  ...runList,
  from: `(SELECT r.* FROM run_children c CROSS JOIN LATERAL (
            SELECT * FROM runs WHERE tenant_id = $1 AND id = c.run_id OFFSET 0) r
          WHERE c.tenant_id = $1 AND c.parent_id = $7) runs`,
  named: 'runs',
} as const
const children = 'SELECT run_id FROM run_children WHERE tenant_id = :tenant AND parent_id ='

interface Delegated {
  readonly id: string
  readonly cents: number
}
const delegated = prepared(
  'run-delegated-cents',
  `WITH RECURSIVE below AS (
     SELECT run_id AS child, run_id AS id FROM (${children} :run) c
     UNION ALL
     SELECT b.child, c.run_id FROM below b CROSS JOIN LATERAL (${children} b.id OFFSET 0) c
   )
   SELECT child AS id, sum(coalesce(usage ->> 'costCents', usage ->> 'knownCostCents')::numeric)::float8 AS cents
   FROM below b CROSS JOIN LATERAL (SELECT usage FROM runs WHERE tenant_id = :tenant AND id = b.id OFFSET 0) r
   WHERE usage IS NOT NULL GROUP BY child`,
)

// Up to the run that nobody delegated, then down to all that it led to. A workflow that started that run has no row here.
const inTree = prepared(
  'run-delegated-in-tree',
  `WITH RECURSIVE above AS (
     SELECT id, parent ->> 'runId' AS parent, 0 AS level FROM runs WHERE tenant_id = :tenant AND id = :run
     UNION ALL
     SELECT r.id, r.parent ->> 'runId', a.level + 1 FROM above a
     CROSS JOIN LATERAL (SELECT id, parent FROM runs WHERE tenant_id = :tenant AND id = a.parent OFFSET 0) r
   ), below AS (
     SELECT run_id AS id FROM (${children} (SELECT id FROM above ORDER BY level DESC LIMIT 1)) c
     UNION ALL
     SELECT c.run_id FROM below b CROSS JOIN LATERAL (${children} b.id OFFSET 0) c
   )
   SELECT id FROM below LIMIT :most::bigint`,
)

// Finds runs by status ($2). Runs that are not `ok` are marked up to the edge of the roll-ups; after the edge they are found in the meters and
// among the newest runs. Runs that are `ok` are the majority, and the ordinary list finds them.
const place = 'tenant_id, id, started_at'
const ofRun = `SELECT r.tenant_id, r.id, r.started_at, r.profile`
const foundBy: Readonly<Partial<Record<RunStatus, string>>> = {
  queued: `${ofRun} FROM run_queue q JOIN runs r ON r.tenant_id = $1 AND r.id = q.run_id
    WHERE q.tenant_id = $1 AND r.status = $2`,
  running: `${ofRun} FROM run_marks m JOIN runs r ON r.tenant_id = $1 AND r.id = m.run_id AND r.status = $2
    WHERE m.tenant_id = $1 AND m.status = $2
    UNION ALL SELECT ${place}, profile FROM runs
    WHERE tenant_id = $1 AND status = $2 AND started_at >= greatest(rolled_until(), now() - interval '25 hours')`,
}
// The inner selects have no conditions, so that each side is read in the order of its index.
const found = 'tenant_id, run_id AS id, started_at, profile, status'
const foundEnded = `SELECT ${found}, 'infinity'::timestamptz AS recorded_at FROM run_marks
  UNION ALL SELECT ${found}, recorded_at FROM run_meters`
const isFoundEnded = 'tenant_id = $1 AND status = $2 AND recorded_at >= rolled_until()'
const listOfStatus = (status: RunStatus) => ({
  ...runList,
  columns: place,
  from: `(${foundBy[status] ?? foundEnded}) found`,
  named: 'found',
  joined: `JOIN runs USING (${place})`,
  where: `($3::text IS NULL OR profile = $3) AND ($4::timestamptz IS NULL OR started_at >= $4)
    AND ($5::timestamptz IS NULL OR started_at < $5) ${foundBy[status] === undefined ? `AND ${isFoundEnded}` : ''}`,
})

// One statement, so that status and chunks show the same instant. The first chunk may begin before the requested event.
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

// Runs that were never begun have no ordinal, and a session's stream leaves them out.
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
// The specification lists "live session records", so sessions that were shut down are left out.
const isLive = `tenant_id = $1 AND status <> 'shutdown'`
// No index supports a substring search, so only the newest sessions are searched. A complete id is found in any session.
// Ids and names of profiles are ASCII, whose letters the collation "C" knows as well as any other, at less cost.
const isIn = (text: string): string => `position(lower($2) IN lower((${text}) COLLATE "C")) > 0`
// Both at once, which most sessions are not found by: one text costs half of two. What is found there may be part of one and part of the other.
const namedLike = `${isIn('id || profile')} AND (${isIn('id')} OR ${isIn('profile')})`
/** How many of the newest sessions a text search reads. */
const mostSearched = 10_000
const sessionList = {
  columns: sessionColumns,
  from: 'sessions',
  where: isLive,
  order: { created_at: 'timestamptz', id: 'text' },
  newestFirst: true,
  // Rows of a page. Each has at most 16 KB: the preview of the last prompt has up to 4,000 characters.
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
      const run = (list: Omit<ListSql, 'values'>, values: readonly unknown[]) =>
        readList<PreviewRow, RunPreview>(
          { database: db, tenantId },
          { ...list, values: [tenantId, ...values.map((value) => value ?? null)] },
          filter,
          toPreview,
        )
      if (parent !== undefined) return run(childList, [profile, sessionId, status, from, to, parent])
      // A session has few runs, so the ordinary list serves this filter.
      if (status === undefined || status === 'ok' || sessionId !== undefined)
        return run(runList, [profile, sessionId, status, from, to])
      return run(listOfStatus(status), [status, profile, from, to])
    },
    async delegatedCents(tenantId, runId) {
      const rows = await read<Delegated>(reads, tenantId, delegated({ tenant: tenantId, run: runId }))
      return new Map(rows.map(({ id, cents }) => [id, cents]))
    },
    async delegatedInTree(tenantId, run, most) {
      const rows = await read<{ id: string }>(reads, tenantId, inTree({ tenant: tenantId, run, most }))
      return rows.map(({ id }) => id)
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
      const { q = '', ...page } = filter
      const found = (list: Partial<ListSql>) =>
        readList<SessionRow, Session>(
          { database: db, tenantId },
          { ...sessionList, ...list } as ListSql,
          page,
          toSession,
        )
      if (q === '') return found({ values: [tenantId] })
      const among = await found({ among: { first: mostSearched, where: namedLike }, values: [tenantId, q] })
      if (among.total > 0 || !among.more) return among
      // Nothing by that text, so it may be the id of an older one. Most texts are not.
      const [older] = await db.unit<SessionRow>(tenantId, sessionById({ tenant: tenantId, session: q }))
      if (!older) return { items: [], total: 0 }
      return found({ where: `${isLive} AND id = $2`, values: [tenantId, q] })
    },
  } satisfies Partial<RunStore>
}
