import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AppError } from '#kernel'
import type { Database } from '#contracts/database'
import { Fleet } from '#contracts/runner'
import { fake } from '#testing'
import { tenantedTables } from '../../plugins/retention/tables.ts'
import { chat, run, stage } from './stage.ts'

/** Tables in which the text is found, in any column of any row that the tenant, or anybody, sees. */
async function tablesWith(database: Database, tenantId: string, text: string): Promise<string[]> {
  const [tables] = await database.systemBatch<[{ name: string }[]]>([
    {
      text: `SELECT c.oid::regclass::text AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE c.relkind = 'r' AND n.nspname NOT IN ('information_schema', 'pg_catalog', 'pg_toast') ORDER BY 1`,
    },
  ])
  const found: string[] = []
  for (const { name } of tables) {
    // Bytes are shown as hex: their text is looked for as such, too.
    const look = `SELECT 1 FROM ${name} t WHERE position($1 IN t::text) > 0 OR position($2 IN t::text) > 0 LIMIT 1`
    const values = [text, Buffer.from(text).toString('hex')]
    const [rows] = await database.batch<[object[]]>(tenantId, [{ text: look, values }])
    if (rows.length > 0) found.push(name)
  }
  return found
}

const belongings = [
  `INSERT INTO profiles (tenant_id, name, id, document) VALUES ('globex', 'p', 'prof_1', '{"instructions": "secret of globex"}')`,
  `INSERT INTO published_agents (tenant_id, id, profile_name, slug, rate_limit_rpm, sync_max_duration_seconds)
   VALUES ('globex', 'pub', 'p', 'p', 1, 1)`,
  `INSERT INTO published_agent_keys (tenant_id, id, published_id, label, key_hash) VALUES ('globex', 'key_1', 'pub', 'l', 'h')`,
  `INSERT INTO tenant_api_keys (tenant_id, id, label, role, key_hash, created_by) VALUES ('globex', 'tak_1', 'l', 'owner', 'h', 'x')`,
  `INSERT INTO audit_entries (tenant_id, id, actor_key, actor_role, action) VALUES ('globex', 'aud_1', 'k', 'admin', 'secret of globex')`,
  `INSERT INTO audit_outcomes (tenant_id, entry_id, status) VALUES ('globex', 'aud_1', 200)`,
  `INSERT INTO run_queue_tenants (tenant_id) VALUES ('globex')`,
  `INSERT INTO idempotency_keys (tenant_id, scope, key, fingerprint, plan, expires_at) VALUES ('globex', 's', 'k', 'x', '{}', now())`,
  `INSERT INTO usage_meters (tenant_id, meter, subject, minute, amount) VALUES ('globex', 'ingress', 'pub', now(), 1)`,
]

test('an erased tenant is in no table any more, those of plugins included, and the operators have the proof', async (t) => {
  const { pass, sql, count, call, database } = await stage(t, { operatorTenant: 'acme' })
  // As the migration of a plugin from outside makes it.
  await database.systemBatch(
    [
      'CREATE TABLE notes (tenant_id text NOT NULL, id int, text text, PRIMARY KEY (tenant_id, id))',
      'ALTER TABLE notes ENABLE ROW LEVEL SECURITY',
      'ALTER TABLE notes FORCE ROW LEVEL SECURITY',
      `CREATE POLICY tenant ON notes USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
       WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))`,
      'CREATE TABLE notes_of_notes (tenant_id text, id int, note int, PRIMARY KEY (tenant_id, id), FOREIGN KEY (tenant_id, note) REFERENCES notes (tenant_id, id))',
    ].map((text) => ({ text })),
  )
  await sql('globex', ...chat('globex', 'a', 0, 'conv_a', 'ann'), ...belongings)
  await sql(
    'globex',
    `INSERT INTO notes VALUES ('globex', 1, 'secret of globex')`,
    `INSERT INTO notes_of_notes VALUES ('globex', 1, 1)`,
  )
  await sql('acme', ...chat('acme', 'b', 0, 'conv_b', 'ann'), `INSERT INTO notes VALUES ('acme', 1, 'x')`)
  // Rows that refer go before those that they refer to.
  const tables = (await database.system((tx) => tenantedTables(tx))).map(({ name }) => name)
  assert.ok(tables.indexOf('notes_of_notes') < tables.indexOf('notes'))
  assert.ok((await tablesWith(database, 'globex', 'secret of')).includes('session_state'))

  assert.equal((await call('DELETE', '/api/tenants/globex?erase=true', 'acme')).statusCode, 204)
  const lost = await call('PATCH', '/api/tenants/globex', 'acme', { deleted: false })
  assert.deepEqual([lost.statusCode, lost.json().error], [409, 'tenant_erased'])
  await pass()
  const shown = (await call('GET', '/api/tenants/globex?includeDeleted=true', 'acme')).json()
  assert.equal(typeof shown.erasure.erasedAt, 'string')
  assert.deepEqual(
    [shown.name, shown.erasure.rows.messages, shown.erasure.rows.notes, shown.erasure.rows.audit_entries],
    ['globex', 2, 1, 1],
  )
  const [entry] = (await call('GET', '/api/audit', 'acme')).json()
  assert.deepEqual(
    [entry.action, entry.target, entry.status, entry.detail.rows],
    ['tenants.erase', 'globex', 200, shown.erasure.rows],
  )
  // The id stays, so that it is never given again: in the row of the tenant and in the operators' log.
  assert.deepEqual(await tablesWith(database, 'globex', 'globex'), ['tenants'])
  assert.deepEqual(await tablesWith(database, 'globex', 'secret of'), [])
  assert.deepEqual([await count('acme', 'messages'), await count('acme', 'notes')], [2, 1])
  // Once is enough.
  await pass()
  assert.equal((await call('GET', '/api/audit', 'acme')).json().length, 1)
})

test('a deleted tenant is erased after the days of the role file, not before, and until then it can be brought back', async (t) => {
  const { pass, sql, count, call } = await stage(t, { eraseAfter: 3 })
  await sql('globex', ...run('globex', 'run_1', 0))
  await call('DELETE', '/api/tenants/globex')
  await pass()
  assert.equal(await count('globex', 'runs'), 1)
  const back = await call('PATCH', '/api/tenants/globex', 'default', { deleted: false })
  assert.deepEqual([back.statusCode, back.json().deletedAt, back.json().erasure], [200, null, undefined])
  await call('DELETE', '/api/tenants/globex')
  await sql('globex', `UPDATE tenants SET erase_at = now() WHERE id = 'globex'`)
  await pass()
  assert.equal(await count('globex', 'runs'), 0)
})

test('a tenant is not erased while something of it is executed', async (t) => {
  const { pass, sql, count, call } = await stage(t)
  await sql('globex', ...run('globex', 'run_1', 0), `UPDATE runs SET status = 'running', finished_at = NULL`)
  await call('DELETE', '/api/tenants/globex?erase=true')
  await pass()
  assert.deepEqual([await count('globex', 'runs'), await count('globex', 'run_events')], [1, 1])
  await sql('globex', `UPDATE runs SET status = 'cancelled', finished_at = now()`)
  await pass()
  assert.deepEqual([await count('globex', 'runs'), await count('globex', 'run_events')], [0, 0])
})

test('an erasure that was cut off goes on, and counts every row once', async (t) => {
  const { pass, sql, call, database } = await stage(t, { operatorTenant: 'acme' })
  await sql('globex', ...chat('globex', 'a', 0, 'conv_a'), ...chat('globex', 'b', 0, 'conv_b'))
  await call('DELETE', '/api/tenants/globex?erase=true')
  // A trigger that refuses stands for the process that dies there: its batch is rolled back with its count.
  await database.systemBatch([
    { text: `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END'` },
    { text: 'CREATE TRIGGER no BEFORE DELETE ON runs FOR EACH ROW EXECUTE FUNCTION no()' },
  ])
  await assert.rejects(pass())
  const half = (await call('GET', '/api/tenants/globex?includeDeleted=true')).json().erasure
  assert.equal(half.erasedAt, null)
  await database.systemBatch([{ text: 'DROP TRIGGER no ON runs' }])
  await pass()
  const { erasure } = (await call('GET', '/api/tenants/globex?includeDeleted=true')).json()
  assert.deepEqual([erasure.rows.runs, erasure.rows.messages, erasure.rows.conversations], [2, 4, 2])
  const log = (await call('GET', '/api/audit', 'acme')).json()
  assert.deepEqual(
    log.map(({ status }: { status: number | null }) => status),
    [200, 500],
  )
})

test('what a plugin keeps elsewhere is erased with the tenant, part by part and counted, and not under a legal hold', async (t) => {
  let left = 25
  const erased: string[] = []
  const objects = {
    erase: async (tenantId: string) => {
      erased.push(tenantId)
      const deleted = Math.min(left, 10)
      left -= deleted
      return { deleted, more: left > 0 }
    },
  }
  const { pass, call } = await stage(t, { operatorTenant: 'acme' }, undefined, { objects })
  const shown = async () => (await call('GET', '/api/tenants/globex?includeDeleted=true', 'acme')).json()
  assert.equal((await call('DELETE', '/api/tenants/globex?erase=true', 'acme')).statusCode, 204)
  await call('PATCH', '/api/tenants/globex', 'acme', { legalHold: true })
  await pass()
  assert.deepEqual([left, erased], [25, []])
  await call('PATCH', '/api/tenants/globex', 'acme', { legalHold: false })
  await pass()
  assert.equal(left, 0)
  assert.ok(erased.every((id) => id === 'globex'))
  assert.equal((await shown()).erasure.rows.objects, 25)
})

test('runners are told of every session of an erased tenant; one that does not answer holds the erasure up for a day, and is then in the proof', async (t) => {
  const told: string[] = []
  let away = true
  const link = (hash: string) => ({
    hash,
    deleteSession: async (tenantId: string, id: string) => {
      if (hash === 'gone' && away) throw new AppError('runner_unreachable', 503, { retryable: true })
      if (tenantId === 'initech' && id === 'sess-run_003') throw new Error('this one fails')
      told.push(`${hash} ${tenantId} ${id}`)
    },
  })
  const links: Readonly<Record<string, object>> = { here: link('here'), gone: link('gone') }
  const fleet = fake(Fleet, { owner: (_: string, runner = 'none') => links[runner] } as unknown as Fleet)
  const { pass, sql, count, call, database } = await stage(t, { operatorTenant: 'acme' }, undefined, {}, [fleet])
  await database.systemBatch([{ text: `INSERT INTO tenants (id, name) VALUES ('initech', 'Initech')` }])
  for (const tenant of ['globex', 'initech'])
    await sql(
      tenant,
      ...Array.from({ length: 120 }, (_, i) => run(tenant, `run_${String(i).padStart(3, '0')}`, 0)).flat(),
      ...run(tenant, 'run_away', 0),
      ...run(tenant, 'run_old', 0),
      `UPDATE sessions SET runner_hash = CASE id WHEN 'sess-run_away' THEN 'gone' WHEN 'sess-run_old' THEN 'removed' ELSE 'here' END`,
    )
  await sql('acme', ...run('acme', 'run_mine', 0), `UPDATE sessions SET runner_hash = 'here'`)
  for (const tenant of ['globex', 'initech']) await call('DELETE', `/api/tenants/${tenant}?erase=true`, 'acme')
  // The day begins when a runner does not answer, not when the erasure was due.
  await sql('initech', `UPDATE tenants SET erase_at = now() - interval '25 hours' WHERE id = 'initech'`)
  const shown = async (tenant: string) =>
    (await call('GET', `/api/tenants/${tenant}?includeDeleted=true`, 'acme')).json().erasure
  await pass()
  assert.equal(told.length, 239, 'one that fails keeps no other one of its runner from being told')
  assert.deepEqual([await count('globex', 'sessions'), await count('globex', 'runs')], [1, 122])
  assert.equal((await shown('globex')).erasedAt, null)
  const [waiting] = (await call('GET', '/api/audit', 'acme')).json()
  assert.deepEqual([waiting.status, waiting.detail], [202, { untold_sessions: 2 }])
  await sql('initech', `UPDATE tenants SET untold_since = now() - interval '25 hours' WHERE id = 'initech'`)
  await pass()
  assert.equal(await count('globex', 'sessions'), 1)
  const late = await shown('initech')
  assert.equal(typeof late.erasedAt, 'string')
  assert.deepEqual([late.rows.sessions, late.rows.untold_sessions, late.rows.runs], [122, 2, 122])
  away = false
  await pass()
  const { erasedAt, rows } = await shown('globex')
  assert.deepEqual([typeof erasedAt, rows.sessions, rows.untold_sessions], ['string', 122, undefined])
  assert.deepEqual(new Set(told).size, 240)
  assert.deepEqual(told.at(-1), 'gone globex sess-run_away')
  assert.equal(await count('acme', 'sessions'), 1)
})

test('a try of an erasure that fails, or for which there is no time, says so in the audit log', async (t) => {
  let fails: 'fails' | 'hangs' | 'works' = 'fails'
  const turn = new AbortController()
  const objects = {
    async erase() {
      if (fails === 'fails') throw new AppError('storage_unavailable', 503)
      if (fails === 'hangs') turn.abort()
      return { deleted: 0, more: fails === 'hangs' }
    },
  }
  const { pass, call } = await stage(t, { operatorTenant: 'acme' }, undefined, { objects })
  await call('DELETE', '/api/tenants/globex?erase=true', 'acme')
  await assert.rejects(pass())
  fails = 'hangs'
  await assert.rejects(pass(turn.signal))
  fails = 'works'
  await pass()
  const entries = (await call('GET', '/api/audit?action=tenants.erase', 'acme')).json<{ status: number | null }[]>()
  assert.deepEqual(
    entries.map(({ status }) => status),
    [200, 202, 503],
  )
})
