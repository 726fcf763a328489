import pg from 'pg'
import { retry } from '../../../kernel/kit/retry.ts'

/** The tenant that is measured; nine others have a hundredth as many runs each, between its own. */
export const tenant = 'default'
const others = Array.from({ length: 9 }, (_, i) => `other${i}`)
const rolledUp = 'run_rollups, run_totals, run_durations, session_ends, run_marks, rollup_edges'

// A superuser's: row security would have each tenant seeded apart, and its rows would lie apart.
const seeds = (count: number): string[] => {
  const of = `CASE WHEN n % 100 < 9 THEN 'other' || n % 100 ELSE '${tenant}' END`
  const all = Math.round(count / 0.91)
  const at = `now() - interval '30 days' + n * interval '30 days' / ${all}`
  const profile = (n: string): string => `'profile' || (${n}) / 5 % 20`
  const status = `(CASE WHEN n % 100 < 94 THEN 'ok' WHEN n % 100 < 97 THEN 'error' WHEN n % 100 < 98 THEN 'cancelled' ELSE 'interrupted' END)`
  // Those under a hundredth of all are the others', so the tenant's own have every status all the same.
  const mixed = status.replaceAll('n % 100', '(n / 7) % 100')
  return [
    `TRUNCATE runs, sessions, run_meters, run_events, usage_meters, run_logs_seen, run_logs_left, ${rolledUp} CASCADE`,
    `INSERT INTO sessions (tenant_id, id, profile, runtime, profile_snapshot, status, created_at, last_used_at, last_prompt,
       last_run_status, run_count)
     SELECT tenant, 'sess_' || lpad(session::text, 12, '0') || tenant, ${profile('session * 5')}, 'general', '{}', 'idle', ${at}, ${at}, 'Hello there',
       'ok', 5
     FROM (SELECT n, n / 500 * 100 + n % 100 AS session, ${of} AS tenant FROM generate_series(1, ${all}) n WHERE n / 100 % 5 = 0) run`,
    `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, started_at, finished_at, result, ordinal)
     SELECT tenant, 'run_' || lpad(n::text, 12, '0'), 'sess_' || lpad(session::text, 12, '0') || tenant, ${profile('session * 5')}, ${mixed},
       'What is the weather like in the town where I was born?', 'inst_before', 1, ${at} - interval '3 seconds' - (n % 40) * interval '100 milliseconds',
       ${at}, 'It rains, as it has done all week; take an umbrella.', 1 + n / 100 % 5
     FROM (SELECT n, n / 500 * 100 + n % 100 AS session, ${of} AS tenant FROM generate_series(1, ${all}) n) run`,
    `INSERT INTO run_meters (tenant_id, recorded_at, run_id, session_id, profile, status, started_at, model, input_tokens, output_tokens, cost_microcents)
     SELECT tenant_id, finished_at, id, session_id, profile, status, started_at, 'builtin/demo', 900, 200, 4000 FROM runs`,
    // Every tenth run has its log still, so that what deletes logs finds its rows in a table that has grown.
    `INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
     SELECT tenant_id, id, 1, 2, convert_to(E'{"type":"assistant"}\n{"type":"result"}\n', 'UTF8') FROM runs WHERE id LIKE '%5'`,
    `INSERT INTO tenants (id, name) SELECT unnest('{${others.join()}}'::text[]), 'Other' ON CONFLICT DO NOTHING`,
    // A conductor that was there meanwhile has found nothing to add up.
    `TRUNCATE ${rolledUp}`,
    'VACUUM ANALYZE',
    'CHECKPOINT',
  ]
}

/** So many ended runs of the tenant within the last 30 days, evenly, of 20 profiles, five runs to a session. */
export const seed = (dsn: string, count: number): Promise<void> => run(dsn, seeds(count))

/** What autovacuum does with new rows after a while. */
export const settle = (dsn: string): Promise<void> => run(dsn, [`VACUUM ANALYZE ${rolledUp}`])

/** The conductor locks the same tables in an order of its own. Who loses a deadlock has changed nothing, and asks again. */
const deadlocked = {
  firstMs: 100,
  longestMs: 1_000,
  most: 20,
  mayPass: (error: unknown) => error instanceof pg.DatabaseError && error.code === '40P01',
}

async function run(dsn: string, statements: readonly string[]): Promise<void> {
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    await client.query(`SET synchronous_commit = off; SET maintenance_work_mem = '512MB'`)
    for (const text of statements) await retry(() => client.query(text), deadlocked)
  } finally {
    await client.end()
  }
}
