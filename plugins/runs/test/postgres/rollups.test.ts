import assert from 'node:assert/strict'
import { test } from 'node:test'
import pg from 'pg'
import type { Database } from '#contracts/database'
import type { Profile } from '#contracts/profiles'
import { freshDatabase } from '#testing'
import { migrate } from '../../../database/migrate.ts'
import { openStores } from './stores.ts'

const profile = { name: 'p', runtime: 'general', model: 'a/m', limits: {} } as unknown as Profile

/** The first answer of the database that is there; a round is over when its timer's work is. */
async function edgeOf(db: Database, tenant: string): Promise<string> {
  for (;;) {
    const [[row]] = await db.batch<[{ edge: string }[]]>(tenant, [
      { text: 'SELECT rolled_until::text AS edge FROM rollup_edges' },
    ])
    if (row) return row.edge
  }
}

test('a process in which runs of a tenant have ended adds them up by itself, and a tenant that fails stops no other', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] })
  const stores = await openStores(t)
  const store = await stores.open()
  for (const [n, tenantId] of ['acme', 'globex'].entries()) {
    const run = { tenantId, runId: `run-${n}`, sessionId: `sess-${n}` }
    const started = await store.start({ ...run, task: { profile: 'p', prompt: 'x' }, create: { profile } })
    assert.ok(started.kind === 'started')
    await store.finish({ claim: started.claim, status: 'ok', sessionStatus: 'idle', result: 'y', tail: undefined })
  }
  // Of the other one the first statement fails.
  await stores.db.systemBatch([
    { text: `ALTER TABLE rollup_edges ADD CONSTRAINT not_acme CHECK (tenant_id <> 'acme')` },
  ])
  t.mock.timers.tick(30_000)
  assert.ok(Date.parse(await edgeOf(stores.db, 'globex')) < Date.now() - 59_000, 'a minute back')
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
