import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { Sweep, tenantIds } from '#kit'
import type { EndedAt } from './ends.ts'
import { prepared } from './rows.ts'

/** Runs per step. A step takes a fraction of a second and holds no lock that a run waits for. */
const stepRuns = 20_000
/** Figures reach back 30 days, so roll-ups are kept a little longer. */
const kept = `interval '32 days'`

// Creates no edge for a tenant that is erased or never ran anything.
const begin = prepared(
  'rollup-begin',
  `INSERT INTO rollup_edges (tenant_id) SELECT :tenant WHERE EXISTS (SELECT 1 FROM run_meters WHERE tenant_id = :tenant)
   ON CONFLICT DO NOTHING`,
)
// One step at a time: a conductor that finds the tenant locked leaves it to the lock's holder.
const lock = prepared(
  'rollup-lock',
  'SELECT rolled_until::text AS from FROM rollup_edges WHERE tenant_id = :tenant FOR UPDATE SKIP LOCKED',
)
// A row carries the time at which its transaction began writing, so a commit may later reveal an older row. The edge therefore stays before the
// oldest transaction that has written.
const reach = prepared(
  'rollup-reach',
  `WITH safe AS MATERIALIZED (
     SELECT least(clock_timestamp() - :lagMs * interval '1 millisecond', (
       SELECT min(xact_start) FROM pg_stat_activity
       WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
     )) AS at
   ), next AS (
     SELECT recorded_at AS at FROM run_meters
     WHERE tenant_id = :tenant AND recorded_at >= :from::timestamptz AND recorded_at < (SELECT at FROM safe)
     ORDER BY recorded_at OFFSET :size LIMIT 1
   )
   SELECT coalesce((SELECT at FROM next), safe.at)::text AS until, EXISTS (SELECT 1 FROM next) AS more,
     EXISTS (
       SELECT 1 FROM run_meters WHERE tenant_id = :tenant AND recorded_at >= :from::timestamptz AND recorded_at < safe.at
     ) AS some,
     coalesce((SELECT at FROM next), safe.at) > :from::timestamptz AS further
   FROM safe`,
)

const ended = `tenant_id = :tenant AND recorded_at >= :from::timestamptz AND recorded_at < :until::timestamptz`
const spans = '(VALUES (1), (5), (60), (1440)) spans (span)'
const binOf = (time: string): string => `date_bin(span * interval '1 minute', ${time}, '2000-01-01T00:00:00Z')`
const counters = [
  ['ok', `count(*) FILTER (WHERE status = 'ok')`],
  ['error', `count(*) FILTER (WHERE status = 'error')`],
  ['cancelled', `count(*) FILTER (WHERE status = 'cancelled')`],
  ['interrupted', `count(*) FILTER (WHERE status = 'interrupted')`],
  ...['input_tokens', 'output_tokens', 'cached_tokens', 'tool_calls'].map((one) => [one, `sum(${one})`]),
  ['cost_microcents', 'coalesce(sum(cost_microcents), 0)'],
  ['unpriced', 'count(*) FILTER (WHERE cost_microcents IS NULL)'],
  ['sessions', '0'],
]
const names = counters.map(([name]) => name)

// Adds up by the minute first, so that the longer spans add up few rows. What all profiles add up to follows by a trigger on these rows.
const addRuns = prepared(
  'rollup-runs',
  `WITH minutes AS MATERIALIZED (
     SELECT date_trunc('minute', recorded_at) AS minute, profile, max(recorded_at) AS last_at,
       ${counters.map(([name, value]) => `${value} AS ${name}`).join(', ')}
     FROM run_meters WHERE ${ended} AND recorded_at >= now() - ${kept} GROUP BY 1, 2
   )
   INSERT INTO run_rollups AS r (tenant_id, span, at, profile, last_at, ${names.join(', ')})
   SELECT :tenant, span, ${binOf('minute')}, profile, max(last_at), ${names.map((name) => `sum(${name})`).join(', ')}
   FROM minutes CROSS JOIN ${spans} GROUP BY 2, 3, 4
   ON CONFLICT (tenant_id, span, at, profile) DO UPDATE SET
     last_at = greatest(r.last_at, excluded.last_at), ${names.map((name) => `${name} = r.${name} + excluded.${name}`).join(', ')}`,
)
const addDurations = prepared(
  'rollup-durations',
  `WITH minutes AS MATERIALIZED (
     SELECT date_trunc('minute', recorded_at) AS minute,
       floor(ln(greatest(date_part('epoch', recorded_at - started_at), 0.001)) / ln(1.05))::int AS bin, count(*) AS runs,
       sum(date_part('epoch', recorded_at - started_at)) AS seconds
     FROM run_meters WHERE ${ended} AND recorded_at >= now() - ${kept} GROUP BY 1, 2
   )
   INSERT INTO run_durations AS d (tenant_id, span, at, bin, runs, seconds)
   SELECT :tenant, span, ${binOf('minute')}, bin, sum(runs), sum(seconds)
   FROM minutes CROSS JOIN ${spans} GROUP BY 2, 3, 4
   ON CONFLICT (tenant_id, span, at, bin) DO UPDATE SET runs = d.runs + excluded.runs, seconds = d.seconds + excluded.seconds`,
)
// A session counts where its last run ended, so a new end moves its count. OFFSET keeps the look-ups by key: a join reads all sessions of the
// tenant when it is planned while there are few.
const moveSessions = prepared(
  'rollup-sessions',
  `WITH last AS MATERIALIZED (
     SELECT session_id, min(profile) AS profile, max(recorded_at) AS last_at
     FROM run_meters WHERE ${ended} AND recorded_at >= now() - ${kept} GROUP BY session_id
   ), before AS MATERIALIZED (
     SELECT e.profile, e.last_at FROM last CROSS JOIN LATERAL (
       SELECT profile, last_at FROM session_ends WHERE tenant_id = :tenant AND session_id = last.session_id OFFSET 0
     ) e WHERE e.last_at >= now() - ${kept}
   ), moved AS (
     INSERT INTO session_ends (tenant_id, session_id, profile, last_at) SELECT :tenant, session_id, profile, last_at FROM last
     ON CONFLICT (tenant_id, session_id) DO UPDATE SET profile = excluded.profile, last_at = excluded.last_at
   ), changes AS (
     SELECT profile, last_at, 1 AS sessions FROM last UNION ALL SELECT profile, last_at, -1 FROM before
   )
   INSERT INTO run_rollups AS r (tenant_id, span, at, profile, ${names.join(', ')})
   SELECT :tenant, span, ${binOf('last_at')}, profile, ${names.map((name) => (name === 'sessions' ? 'sum(sessions)' : '0')).join(', ')}
   FROM changes CROSS JOIN ${spans} GROUP BY 2, 3, 4
   ON CONFLICT (tenant_id, span, at, profile) DO UPDATE SET sessions = r.sessions + excluded.sessions`,
)

// No running run is older than the longest timeout, a day.
const markRuns = prepared(
  'rollup-mark-runs',
  `WITH over AS (
     DELETE FROM run_marks m WHERE tenant_id = :tenant AND status = 'running'
       AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.tenant_id = :tenant AND r.id = m.run_id AND r.status = 'running')
   )
   INSERT INTO run_marks (tenant_id, status, started_at, run_id, profile)
   SELECT :tenant, status, started_at, run_id, profile FROM run_meters m WHERE ${ended} AND status <> 'ok'
     AND EXISTS (SELECT 1 FROM runs r WHERE r.tenant_id = :tenant AND r.id = m.run_id)
   UNION ALL
   SELECT :tenant, status, started_at, id, profile FROM runs
   WHERE tenant_id = :tenant AND status = 'running' AND started_at < :until::timestamptz
     AND started_at >= greatest(:from::timestamptz, now() - interval '25 hours')
   ON CONFLICT DO NOTHING`,
)

const old = (table: string, time: string): string =>
  `DELETE FROM ${table} WHERE ctid = ANY (ARRAY(
     SELECT ctid FROM ${table} WHERE tenant_id = :tenant AND ${time} < now() - ${kept} LIMIT ${stepRuns}))`
const inSpans = (table: string): string => old(table, 'span IN (1, 5, 60, 1440) AND at')
// Retention deletes marks together with their runs. Every other deletion of runs starts with the oldest ones. Each status is asked in the order of its
// index: of a bound that it has yet to read the planner expects a third of all marks behind it, and reads them all.
const forgetMarks = prepared(
  'rollup-forget-marks',
  `DELETE FROM run_marks WHERE tenant_id = :tenant AND ctid = ANY (ARRAY(
     SELECT old.ctid FROM (VALUES ('error'), ('cancelled'), ('interrupted')) ended (status), LATERAL (
       SELECT m.ctid FROM run_marks m WHERE m.tenant_id = :tenant AND m.status = ended.status
         AND m.started_at < (SELECT started_at FROM runs WHERE tenant_id = :tenant ORDER BY started_at, id LIMIT 1)
       ORDER BY m.started_at LIMIT ${stepRuns}) old))`,
)
const forget = [
  forgetMarks,
  prepared('rollup-forget-runs', inSpans('run_rollups')),
  prepared('rollup-forget-totals', inSpans('run_totals')),
  prepared('rollup-forget-durations', inSpans('run_durations')),
  prepared('rollup-forget-sessions', old('session_ends', 'last_at')),
]
const moveEdge = prepared(
  'rollup-edge',
  'UPDATE rollup_edges SET rolled_until = :until::timestamptz WHERE tenant_id = :tenant',
)

/** How many milliseconds after its last end a tenant is looked at. By then the edge is past that end. */
const wakeMs = 3 * 60_000
const roundMs = 30_000
/** Each process looks at every tenant this often, for runs of processes that died and for roll-ups that are too old. */
const allMs = 60 * 60_000

interface RollupsOptions {
  readonly log: FastifyBaseLogger
  readonly endedAt: EndedAt
  /** Milliseconds. Younger rows are left for the next step, because a transaction reads its clock some time before it commits. */
  readonly lagMs?: number
}

/**
 * Adds up ended runs in the background. Any process may do so for any tenant: a step happens completely or not at all, and the row of the tenant's
 * edge serves as its lock.
 */
export class Rollups {
  readonly #db: Database
  readonly #options: RollupsOptions
  readonly #sweep: Sweep
  #allAt = 0
  #closed = false

  constructor(db: Database, options: RollupsOptions) {
    this.#db = db
    this.#options = options
    const failed = (err: unknown): void =>
      options.log.warn({ err }, 'the tenants whose runs have to be added up could not be listed')
    this.#sweep = new Sweep(roundMs, () => this.#rollDue(), failed)
  }

  open(): void {
    this.#allAt = performance.now() + roundMs
    this.#sweep.start()
  }
  close(): Promise<void> {
    this.#closed = true
    return this.#sweep.stop()
  }

  async #rollDue(): Promise<void> {
    const { endedAt, log } = this.#options
    const now = performance.now()
    const due = new Set(endedAt.keys())
    for (const [tenantId, at] of endedAt) if (at < now - wakeMs) endedAt.delete(tenantId)
    const all = now >= this.#allAt
    if (all) {
      for await (const tenantId of tenantIds(this.#db, 'stored')) due.add(tenantId)
      this.#allAt = now + allMs
    }
    // Tenants take turns step by step, so that one with millions of runs does not delay the others.
    for (const tenantId of due) {
      if (this.#closed) return
      due.delete(tenantId)
      try {
        if (await this.#step(tenantId, stepRuns, all)) due.add(tenantId)
      } catch (err) {
        log.warn({ err, tenantId }, 'adding up runs failed; figures are read from the runs themselves')
      }
    }
  }

  /** Adds up ended runs, `size` per transaction, until the edge is as far as it may be, and deletes roll-ups that are too old. */
  async roll(tenantId: string, size = stepRuns): Promise<void> {
    while (!this.#closed && (await this.#step(tenantId, size, true)));
  }

  /** False: there is nothing more to do for now. */
  #step(tenantId: string, size: number, forgets: boolean): Promise<boolean> {
    const { lagMs = 60_000 } = this.#options
    return this.#db.tenant(tenantId, async (tx) => {
      const tenant = tx.tenantId
      await tx.query(begin({ tenant }))
      const [edge] = await tx.query<{ from: string }>(lock({ tenant }))
      if (!edge) return false
      const [next] = await tx.query<Reach>(reach({ tenant, from: edge.from, size, lagMs }))
      const { until, some, more, further } = next!
      if (!further) return false
      const values = { tenant, from: edge.from, until }
      if (some) for (const add of [addRuns, addDurations, moveSessions]) await tx.query(add(values))
      await tx.query(markRuns(values))
      if (forgets && !more) for (const old of forget) await tx.query(old({ tenant }))
      await tx.query(moveEdge(values))
      return more
    })
  }
}

interface Reach {
  readonly until: string
  /** Some runs ended before the new edge. */
  readonly some: boolean
  /** More runs ended after the new edge and may be added up. */
  readonly more: boolean
  readonly further: boolean
}
