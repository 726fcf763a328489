import assert from 'node:assert/strict'
import { test } from 'node:test'
import pg from 'pg'
import { freshDatabase } from '#testing'
import { migrate } from '../../plugins/database/migrate.ts'
import { readMigrations } from '../../plugins/database/migrations.ts'

/** The migrations of the first release: its processes must go on working on every later schema. */
const released = 6

interface Column {
  readonly name: string
  readonly type: string
  readonly required: boolean
}

const columnsOf = async (client: pg.Client): Promise<Map<string, Column>> => {
  const { rows } = await client.query<Column>(
    `SELECT table_name || '.' || column_name AS name, udt_name AS type,
            is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO' AND is_generated = 'NEVER' AS required
     FROM information_schema.columns WHERE table_schema = 'public'`,
  )
  return new Map(rows.map((row) => [row.name, row]))
}

const tableOf = (column: string): string => column.slice(0, column.indexOf('.'))

// As the first release writes them: these columns and no others, in the shapes of its stores.
const writes: readonly string[] = [
  `INSERT INTO instances (id, kind, lease_until) VALUES ('inst_1', 'conductor', now() + interval '12 seconds')`,
  `INSERT INTO tenant_api_keys (tenant_id, id, label, role, key_hash, created_by)
   VALUES ('default', 'tak_1', 'old', 'owner', '\\x01', 'bootstrap')`,
  `WITH run AS (
     INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, metadata, claim_owner, claim_epoch)
     SELECT 'default', 'run_1', 'sess_1', 'p', 'running', 'hello', NULL, 'inst_1', 1
     WHERE EXISTS (SELECT 1 FROM instances WHERE id = 'inst_1' AND NOT dead) ON CONFLICT DO NOTHING RETURNING id)
   INSERT INTO sessions (tenant_id, id, profile, runtime, profile_snapshot, status, last_prompt, run_count,
                         claim_owner, claim_run, claim_epoch)
   SELECT 'default', 'sess_1', 'p', 'general', '{}'::jsonb, 'running', 'hello', 1, 'inst_1', 'run_1', 1 FROM run`,
  `INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines) VALUES ('default', 'run_1', 1, 1, '{}')`,
  `WITH ended AS (
     UPDATE runs SET status = 'ok', finished_at = clock_timestamp(), result = 'done', usage = '{}'::json
     WHERE tenant_id = 'default' AND id = 'run_1' AND finished_at IS NULL AND claim_epoch = 1 RETURNING id, session_id)
   UPDATE sessions s SET status = 'idle', claim_owner = NULL, claim_run = NULL, last_run_status = 'ok', last_used_at = now()
   WHERE s.tenant_id = 'default' AND s.id = (SELECT session_id FROM ended) AND s.claim_run = 'run_1'`,
  `INSERT INTO session_state (tenant_id, session_id, content_type, bytes, runtime_session_id)
   VALUES ('default', 'sess_1', 'application/json', '{}', NULL)`,
  `INSERT INTO conversations (tenant_id, id, published_id, end_user_id) VALUES ('default', 'conv_1', 'pub_1', NULL)`,
  `INSERT INTO public_runs (tenant_id, id, published_id, conversation_id, run_id, owner_instance, end_user_id)
   VALUES ('default', 'prun_1', 'pub_1', 'conv_1', 'run_1', 'inst_1', NULL)`,
  `INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content)
   VALUES ('default', 'conv_1', 'prun_1', 'user', 'hello')`,
  `UPDATE public_runs SET status = 'ok', error_code = NULL, error_message = NULL, last_seq = 2, finished_at = now()
   WHERE tenant_id = 'default' AND id = 'prun_1' AND owner_instance = 'inst_1' AND finished_at IS NULL`,
]

test('O6: a process of the first release goes on working on the newest schema: no column of it is gone, changed or suddenly required', async (t) => {
  const dsn = await freshDatabase(t)
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    await client.query('DROP SCHEMA public, pgboss CASCADE; CREATE SCHEMA public')
    const all = await readMigrations()
    await migrate(
      dsn,
      all.filter(({ number }) => number <= released),
    )
    const before = await columnsOf(client)
    assert.ok(before.size > 50, 'the first release has its columns')
    await client.query('BEGIN')
    await client.query(`SELECT set_config('app.tenant_id', 'default', true)`)
    for (const text of writes) assert.equal((await client.query(text)).rowCount, 1, text)
    await client.query('ROLLBACK')

    await migrate(dsn, all)
    const after = await columnsOf(client)
    const tables = new Set([...before.keys()].map(tableOf))
    for (const { name, type, required } of before.values()) {
      const now = after.get(name)
      assert.ok(now, `${name} is gone`)
      assert.equal(now.type, type, `${name} has another type`)
      if (!required) assert.equal(now.required, false, `${name} is required now`)
    }
    for (const { name, required } of after.values()) {
      if (before.has(name) || !tables.has(tableOf(name))) continue
      assert.equal(required, false, `${name} is new and required: the first release does not fill it`)
    }
    await client.query('BEGIN')
    await client.query(`SELECT set_config('app.tenant_id', 'default', true)`)
    for (const text of writes) assert.equal((await client.query(text)).rowCount, 1, text)
    await client.query('COMMIT')
  } finally {
    await client.end()
  }
})
