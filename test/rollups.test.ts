import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import pg from 'pg'
import { pino } from 'pino'
import type { Statement } from '#contracts/database'
import { freshDatabase } from '#testing'
import { migrate } from '../plugins/database/migrate.ts'
import { Rollups } from '../plugins/runs/postgres/rollups.ts'
import { startConductor } from './conductor.ts'

const same = (actual: Record<string, unknown>, expected: Record<string, unknown>, when: string) => {
  for (const [asked, answer] of Object.entries(expected)) assert.deepEqual(actual[asked], answer, `${asked}, ${when}`)
}
const log = pino({ level: 'silent' })
const tables = ['rollup_edges', 'run_rollups', 'run_totals', 'run_durations', 'session_ends', 'run_marks']
const statuses = `(ARRAY['ok', 'ok', 'error', 'cancelled', 'interrupted'])[1 + n % 5]`

/** Runs that ended, one every so many seconds, the first of them so long ago: three profiles, sessions that come back. */
const runs = (name: string, count: number, apart: number, before: string): Statement => ({
  text: `WITH ended AS (
      INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, started_at, finished_at)
      SELECT 'acme', '${name}' || n, 'sess' || n % 17, 'p' || n % 17 % 3, ${statuses}, 'x', 'inst', 1, at - n % 13 * interval '1 second', at
      FROM (SELECT n, now() - interval '${before}' + n * ${apart} * interval '1 second' AS at FROM generate_series(1, ${count}) n) run
      RETURNING *
    )
    INSERT INTO run_meters (tenant_id, recorded_at, run_id, session_id, profile, status, started_at, input_tokens, output_tokens, cost_microcents)
    SELECT tenant_id, finished_at, id, session_id, profile, status, started_at, 3, 5, CASE WHEN status <> 'error' THEN 7 END FROM ended`,
})

async function stage(t: TestContext) {
  const { database, issue, call } = await startConductor(t)
  const { token } = await issue('acme', 'owner')
  const get = async (url: string) => {
    const reply = await call(token, 'GET', url)
    assert.equal(reply.statusCode, 200, url)
    return reply.json<unknown>()
  }
  /** By what was asked. */
  const answers = async () => {
    const found: Record<string, unknown> = {}
    for (const window of ['1h', '24h', '7d', '30d']) {
      const of = async (name: string) =>
        (found[`${name} ${window}`] = (await get(`/api/${name}?window=${window}`)) as object)
      // The mean of a bin of durations is no moment of a run, and where the window begins and ends is the moment of the question.
      Object.assign(await of('stats/overview'), { start: '', end: '', durationMs: null })
      Object.assign(await of('usage'), { start: '', end: '' })
      await of('stats/agents')
      const { buckets } = (await get(`/api/stats/timeseries?window=${window}`)) as {
        buckets: { runs: { total: number } }[]
      }
      found[`series ${window}`] = buckets.filter((bucket) => bucket.runs.total > 0)
    }
    const queries = ['error', 'cancelled', 'interrupted', 'running', 'ok', 'error&profile=p1', 'error&sessionId=sess2']
    for (const query of queries) found[query] = await get(`/api/runs?status=${query}`)
    return found
  }
  const all = (text: (table: string) => string) =>
    database.batch(
      'acme',
      tables.map((table) => ({ text: text(table) })),
    )
  const edge = async () => {
    const [[row]] = await database.batch<[{ at: string }[]]>('acme', [
      { text: 'SELECT rolled_until::text AS at FROM rollup_edges' },
    ])
    return row?.at
  }
  const rollups = (lagMs?: number) =>
    new Rollups(database, { log, endedAt: new Map(), ...(lagMs === undefined ? {} : { lagMs }) })
  return { database, answers, all, edge, rollups, get }
}

test('figures and lists by status are the same however far the runs are added up', async (t) => {
  const { database, answers, all, rollups } = await stage(t)
  // None near the beginning of a window, which moves on while this runs.
  await database.batch('acme', [
    runs('old', 300, 8_000, '30 days 20 hours'),
    runs('week', 40, 7_200, '3 days 12:00:00'),
    runs('late', 50, 61, '00:57:00'),
    { text: `UPDATE runs SET status = 'running', finished_at = NULL WHERE id = 'late3'` },
    { text: `DELETE FROM run_meters WHERE run_id = 'late3'` },
  ])
  const raw = await answers()
  await rollups(4 * 60_000).roll('acme', 70)
  same(await answers(), raw, 'rolled in small steps')
  // Sessions go on, one run ends that was running, and two conductors find that out at once.
  const more: Statement[] = [
    runs('next', 34, 2, '00:02:30'),
    // A window ends at a whole millisecond: what ended within the present one may be behind it.
    { text: `UPDATE runs SET status = 'error', finished_at = now() - interval '1 second' WHERE id = 'late3'` },
    {
      text: `INSERT INTO run_meters (tenant_id, recorded_at, run_id, session_id, profile, status, started_at)
        SELECT tenant_id, finished_at, id, session_id, profile, status, started_at FROM runs WHERE id = 'late3'`,
    },
  ]
  await database.batch('acme', more)
  const mixed = await answers()
  await all((table) => `DELETE FROM ${table}`)
  same(mixed, await answers(), 'half of them rolled')
  await Promise.all([rollups().roll('acme', 50), rollups().roll('acme', 50)])
  same(await answers(), mixed, 'by two at once')
})

test('what a transaction has written that is still open is added up once it is there', async (t) => {
  const { database, edge, get, rollups } = await stage(t)
  // Without the minute that hides such a transaction.
  const first = rollups(0)
  const total = async () => ((await get('/api/stats/overview?window=24h')) as { runs: { total: number } }).runs.total
  await database.batch('acme', [runs('a', 10, 60, '01:00:00')])
  const written = Promise.withResolvers<void>()
  const held = Promise.withResolvers<void>()
  const open = database.tenant('acme', async (tx) => {
    await tx.query(runs('b', 5, 0, '00:00:00'))
    written.resolve()
    await held.promise
  })
  await written.promise
  await first.roll('acme')
  const before = await edge()
  assert.equal(await total(), 10)
  held.resolve()
  await open
  assert.equal(await total(), 15)
  await first.roll('acme')
  assert.notEqual(await edge(), before)
  assert.equal(await total(), 15)
})

test('durations are told within 2.5 %, and nothing that no window reaches is kept', async (t) => {
  const { database, rollups, get } = await stage(t)
  const took = async () => ((await get('/api/stats/overview?window=30d')) as { durationMs: object }).durationMs
  const meters = (from: number, to: number, before: string): Statement => ({
    text: `INSERT INTO run_meters (tenant_id, recorded_at, run_id, session_id, profile, status, started_at)
      SELECT 'acme', at, '${before}' || n, 's', 'p', 'ok', at - n * interval '10 milliseconds'
      FROM (SELECT n, now() - interval '${before}' + n * interval '1 second' AS at FROM generate_series(${from}, ${to}) n) run`,
  })
  await database.batch('acme', [meters(1, 2_000, '29 days')])
  const near = (value: number, exact: number) => assert.ok(Math.abs(value / exact - 1) < 0.025, `${value} for ${exact}`)
  for (const rolled of [false, true]) {
    if (rolled) await rollups().roll('acme')
    const { p50, p95 } = (await took()) as { p50: number; p95: number }
    near(p50, 10_005)
    near(p95, 19_000)
  }
  await database.batch('acme', [
    { text: `UPDATE run_rollups SET at = at - interval '4 days'` },
    // It has moved to where they are now, and left a sum of nothing.
    { text: 'DELETE FROM run_totals WHERE ok = 0' },
    { text: `UPDATE run_durations SET at = at - interval '4 days'` },
    { text: `UPDATE session_ends SET last_at = last_at - interval '4 days'` },
  ])
  await rollups().roll('acme')
  const counts = tables.slice(1, 5).map((table) => ({ text: `SELECT count(*)::int AS count FROM ${table}` }))
  assert.deepEqual(
    (await database.batch('acme', counts)).flat(),
    counts.map(() => ({ count: 0 })),
  )
})

test('what is known of runs that are gone is forgotten, and nothing of those that are there', async (t) => {
  const { database, rollups } = await stage(t)
  await database.batch('acme', [runs('gone', 20, 60, '3 days'), runs('kept', 20, 60, '2 days')])
  const roll = async () => {
    await rollups().roll('acme')
    const marks = { text: 'SELECT run_id FROM run_marks ORDER BY run_id' }
    return (await database.batch<[{ run_id: string }[]]>('acme', [marks]))[0].map((mark) => mark.run_id)
  }
  const marked = await roll()
  // Three of five end otherwise than well.
  assert.equal(marked.length, 24)
  await database.batch('acme', [{ text: `DELETE FROM runs WHERE id LIKE 'gone%'` }])
  assert.deepEqual(
    await roll(),
    marked.filter((id) => id.startsWith('kept')),
  )
})

test('what was added up by profile before there were totals is in them, of every tenant, and what a former release adds up after', async (t) => {
  const dsn = await freshDatabase(t)
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  const amounts = ['input_tokens', 'output_tokens', 'cached_tokens', 'tool_calls', 'cost_microcents', 'unpriced']
  const names = ['ok', 'error', 'cancelled', 'interrupted', ...amounts]
  /** Adds up the same as every release: new rows and more of those that are there. */
  const add = async (tenant: string, profiles: readonly string[], ok: number) => {
    await client.query(`SELECT set_config('app.tenant_id', $1, false)`, [tenant])
    await client.query(
      `INSERT INTO run_rollups AS r (tenant_id, span, at, profile, ${names.join(', ')}, sessions)
       SELECT $1, span, '2026-01-01T00:00:00Z', profile, $3::bigint, ${names.slice(1).map((_, i) => i + 2)}, 1
       FROM (VALUES (1), (5), (60), (1440)) spans (span), unnest($2::text[]) profile
       ON CONFLICT (tenant_id, span, at, profile) DO UPDATE SET sessions = r.sessions + 1, ${names.map((name) => `${name} = r.${name} + excluded.${name}`)}`,
      [tenant, profiles, ok],
    )
  }
  const totals = async (tenant: string) => {
    await client.query(`SELECT set_config('app.tenant_id', $1, false)`, [tenant])
    const { rows } = await client.query<Record<string, string>>(
      `SELECT span, ${names.join(', ')} FROM run_totals ORDER BY span`,
    )
    return rows.map((row) => [row['span'], ...names.map((name) => Number(row[name]))])
  }
  const expected = (ok: number, times: number) =>
    [1, 5, 60, 1440].map((span) => [span, ok, ...names.slice(1).map((_, i) => (i + 2) * times)])

  try {
    await client.query(`DROP TABLE run_totals; DROP FUNCTION add_to_run_totals CASCADE;
      DELETE FROM schema_migrations WHERE name LIKE '%run_totals%'`)
    await add('acme', ['p', 'q', 'r'], 100)
    await add('globex', ['p'], 7)
    assert.deepEqual(await migrate(dsn), ['0100_run_totals'])
    assert.deepEqual(await totals('acme'), expected(300, 3))
    assert.deepEqual(await totals('globex'), expected(7, 1))
    await add('acme', ['q', 's'], 1)
    assert.deepEqual(await totals('acme'), expected(302, 5))
    // Sessions that move change no counter.
    await client.query('UPDATE run_rollups SET sessions = 0')
    assert.deepEqual(await totals('acme'), expected(302, 5))
    assert.deepEqual(await totals('globex'), expected(7, 1))
  } finally {
    await client.end()
  }
})
