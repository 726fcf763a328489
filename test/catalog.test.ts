import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { definePlugin } from '#kernel'
import { Database, sqlState } from '#contracts/database'
import { databasePlugin, freshDatabase, testKernel } from '#testing'
import { rowSecurityProblems } from '../plugins/database/migrate.ts'

/** The real plugin, with a pool of as many connections. */
async function open(t: TestContext, poolSize = 1): Promise<Database> {
  const entry = await databasePlugin(await freshDatabase(t))
  let database: Database | undefined
  const reader = definePlugin({
    name: 'reader',
    requires: { database: Database },
    setup: async ({ deps }) => {
      database = deps.database
      return {}
    },
  })
  await testKernel(t, [{ ...entry, config: { ...(entry.config as object), poolSize } }, reader], { listeners: [] })
  return database!
}

const policy = (setting: string): string =>
  `USING (tenant_id = NULLIF(current_setting('${setting}', true), '')) WITH CHECK (tenant_id = NULLIF(current_setting('${setting}', true), ''))`

const secured = (name: string, columns: string): { text: string }[] => [
  { text: `CREATE TABLE ${name} (tenant_id text NOT NULL, ${columns})` },
  { text: `ALTER TABLE ${name} ENABLE ROW LEVEL SECURITY` },
  { text: `ALTER TABLE ${name} FORCE ROW LEVEL SECURITY` },
  { text: `CREATE POLICY tenant ON ${name} ${policy('app.tenant_id')}` },
]
const notes = secured('notes', 'id int, text text, PRIMARY KEY (tenant_id, id)')

test('T1: every table keeps its tenants apart, and nothing looks past row security', async (t) => {
  const { system } = await open(t)
  assert.deepEqual(await system(rowSecurityProblems), [])
})

test('T1: the check finds each way to get it wrong', async (t) => {
  const { system, systemBatch } = await open(t)
  const wrong: [statements: string[], problem: RegExp][] = [
    [['CREATE TABLE bad (id int PRIMARY KEY)'], /table bad has no tenant_id/],
    [['ALTER TABLE notes ALTER tenant_id DROP NOT NULL'], /column "tenant_id" is in a primary key|no tenant_id/],
    [['ALTER TABLE notes DISABLE ROW LEVEL SECURITY'], /notes has row security not ENABLEd/],
    [['ALTER TABLE notes NO FORCE ROW LEVEL SECURITY'], /notes has row security not FORCEd/],
    [['DROP POLICY tenant ON notes'], /notes has no policy/],
    [[`ALTER POLICY tenant ON notes USING (true)`], /notes has no policy/],
    [[`ALTER POLICY tenant ON notes WITH CHECK (true)`], /notes has no policy/],
    [
      [`ALTER POLICY tenant ON notes USING (tenant_id = current_setting('app.tenant_id', true))`],
      /notes has no policy/,
    ],
    [[`CREATE POLICY extra ON notes FOR SELECT USING (id > 0)`], /policy extra, which shows more/],
    [[`CREATE POLICY extra ON notes ${policy('app.other')}`], /policy extra, which shows more/],
    [['CREATE UNIQUE INDEX by_text ON notes (text)'], /unique by by_text without tenant_id/],
    [['ALTER TABLE notes DROP CONSTRAINT notes_pkey'], /has no primary key/],
    [
      [
        'ALTER TABLE notes ADD CONSTRAINT up UNIQUE (id)',
        'CREATE TABLE bad (id int PRIMARY KEY REFERENCES notes (id))',
      ],
      /bad refers to notes by bad_id_fkey without tenant_id/,
    ],
    [['CREATE VIEW seen AS SELECT * FROM notes'], /view seen is not WITH \(security_invoker/],
    [['CREATE MATERIALIZED VIEW seen AS SELECT * FROM notes'], /materialized view seen has no row security/],
    [[`CREATE FUNCTION f() RETURNS int SECURITY DEFINER LANGUAGE sql RETURN 1`], /function f is SECURITY DEFINER/],
  ]
  await systemBatch(notes)
  const rollback = new Error('undo')
  for (const [statements, problem] of wrong) {
    const attempt = system(async (tx) => {
      for (const text of statements) await tx.query({ text })
      assert.match((await rowSecurityProblems(tx)).join('\n'), problem)
      throw rollback
    })
    // PostgreSQL refuses some mistakes by itself, which is as good.
    await assert.rejects(attempt, (error: Error) => error === rollback || problem.test(error.message), statements[0])
  }
  assert.deepEqual(await system(rowSecurityProblems), [])
})

test('T1: a view of the invoker, and a table that is found by the hash of a token, are fine', async (t) => {
  const { system, systemBatch } = await open(t)
  await systemBatch([
    ...secured('tokens', 'id int, hash bytea NOT NULL UNIQUE, PRIMARY KEY (tenant_id, id)'),
    {
      text: `CREATE POLICY lookup ON tokens FOR SELECT USING (hash = decode(NULLIF(current_setting('app.auth_hash', true), ''), 'hex'))`,
    },
    { text: 'CREATE VIEW seen WITH (security_invoker = true) AS SELECT id FROM tokens' },
  ])
  assert.deepEqual(await system(rowSecurityProblems), [])
})

test('T2: no tenant outlives its transaction on a shared connection, whatever ends it', async (t) => {
  const { tenant, batch, system, systemBatch } = await open(t)
  await systemBatch(notes)
  const add = (id: string, n: number) => ({ text: 'INSERT INTO notes VALUES ($1, $2)', values: [id, n] })
  const seen = { text: `SELECT tenant_id FROM notes` }
  const setting = { text: `SELECT NULLIF(current_setting('app.tenant_id', true), '') AS tenant` }
  const endings: ((id: string, n: number) => Promise<unknown>)[] = [
    (id, n) => batch(id, [add(id, n)]),
    (id, n) => tenant(id, (tx) => tx.query(add(id, n))),
    (id) => batch(id, [{ text: 'SELECT 1/0' }]),
    (id, n) =>
      tenant(id, async (tx) => {
        await tx.query(add(id, n))
        throw new Error('thrown by the work')
      }),
    (id) =>
      tenant(id, async (tx) => {
        await tx.query({ text: `SELECT set_config('statement_timeout', '10', true)` })
        await tx.query({ text: 'SELECT pg_sleep(60)' })
      }),
    (id) => batch(id, [{ text: 'SELECT pg_terminate_backend(pg_backend_pid())' }]),
  ]
  for (const [i, ending] of [...endings, ...endings].entries()) {
    const id = i % 2 === 0 ? 'acme' : 'globex'
    await ending(id, i).catch(() => {})
    assert.deepEqual(await systemBatch([setting, seen]), [[{ tenant: null }], []], `after ending ${i}`)
    assert.deepEqual(await system((tx) => tx.query(seen)), [])
    for (const other of ['acme', 'globex']) {
      const [rows] = await batch<[{ tenant_id: string }[]]>(other, [seen])
      assert.ok(rows.every((row) => row.tenant_id === other))
    }
  }
  // This proves that there was something to leak.
  assert.equal((await batch('acme', [seen]))[0]!.length, 2)
  assert.equal((await batch('globex', [seen]))[0]!.length, 2)
  await assert.rejects(batch('acme', [add('globex', 99)]), (error) => sqlState(error) === '42501')
})

test('T3: a sweep without a tenant changes nothing, so it goes through the tenants', async (t) => {
  const { batch, system, systemBatch } = await open(t)
  await systemBatch(notes)
  for (const id of ['acme', 'globex'])
    await batch(id, [{ text: `INSERT INTO notes VALUES ($1, 1, 'old')`, values: [id] }])
  const sweep = { text: `UPDATE notes SET text = 'swept' RETURNING tenant_id` }
  assert.deepEqual(await system((tx) => tx.query(sweep)), [])
  const [tenants] = await systemBatch<[{ id: string }[]]>([{ text: 'SELECT id FROM tenants ORDER BY id' }])
  const swept = []
  for (const { id } of tenants) swept.push(...(await batch(id, [sweep]))[0]!)
  assert.deepEqual(swept, [{ tenant_id: 'acme' }, { tenant_id: 'globex' }])
})
