import assert from 'node:assert/strict'
import { test } from 'node:test'
import pg from 'pg'
import type { Statement, TenantTx } from '#contracts/database'
import { freshDatabase } from '#testing'
import { migrate } from '../plugins/database/migrate.ts'
import { readOnceGrown } from '../plugins/runs/test/postgres/pages.ts'
import { openStores } from '../plugins/runs/test/postgres/stores.ts'
import { chat, run, stage } from './retention/stage.ts'

/** Runs that each were delegated by the run that `parent` names, as SQL. */
const delegated = (tenant: string, name: string, parent: string, count: number, endUser = 'NULL'): string =>
  `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, ordinal, finished_at, end_user_id, parent)
   SELECT '${tenant}', '${name}' || n, 's' || n, 'p', 'ok', 'x', 'x', 1, 1, now(), ${endUser}, jsonb_build_object('runId', ${parent}, 'depth', 1)
   FROM generate_series(1, ${count}) n`

test('runs that were delegated before there were entries are found by their parents, of every tenant, and go as the others', async (t) => {
  const dsn = await freshDatabase(t)
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    await client.query(`DROP TABLE run_children; DROP FUNCTION note_parent CASCADE;
      CREATE OR REPLACE FUNCTION forget_people() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
      DELETE FROM schema_migrations WHERE number IN (106, 107)`)
    for (const tenant of ['acme', 'globex']) {
      await client.query(`SELECT set_config('app.tenant_id', $1, false)`, [tenant])
      await client.query(delegated(tenant, 'old', `'top'`, 3))
      await client.query(`UPDATE runs SET parent = NULL WHERE id = 'old2'`)
    }
    assert.deepEqual(await migrate(dsn), ['0106_children_of_runs', '0107_children_of_former_runs'])
    // A release before this one goes on beside it.
    await client.query(delegated('globex', 'new', `'old3'`, 1))
  } finally {
    await client.end()
  }
  const { db, open } = await openStores(t, dsn)
  const store = await open()
  const found = async (tenant: string, parent: string) =>
    (await store.listRuns(tenant, { parent })).items.map(({ runId }) => runId).toSorted()
  for (const tenant of ['acme', 'globex']) assert.deepEqual(await found(tenant, 'top'), ['old1', 'old3'])
  assert.deepEqual([await found('acme', 'old3'), await found('globex', 'old3')], [[], ['new1']])
  for (const tenant of ['acme', 'globex']) await db.unit(tenant, { text: `DELETE FROM runs WHERE id = 'old1'` })
  const entries = { text: 'SELECT run_id AS id FROM run_children ORDER BY 1' }
  assert.deepEqual(await db.unit('acme', entries), [{ id: 'old3' }])
  assert.deepEqual(await db.unit('globex', entries), [{ id: 'new1' }, { id: 'old3' }])
})

test('what an erasure deletes with the runs of a person is found in pages that do not grow with what the tenant has delegated', async (t) => {
  const { sql, call, database } = await stage(t)
  const ann = [
    ...chat('acme', 'a1', 0, 'conv_a', 'ann'),
    ...run('acme', 'run_below_chat', 0, 'sess-1', { parent: 'run_a1' }),
    ...run('acme', 'run_top', 0, 'sess-2', { endUser: 'ann' }),
    ...run('acme', 'run_below', 0, 'sess-3', { endUser: 'ann', parent: 'run_top' }),
    ...run('acme', 'run_deepest', 0, 'sess-4', { parent: 'run_below' }),
  ]
  await sql('acme', ...ann)
  const sent = new Map<string, Statement>()
  const note = (statement: Statement): Statement => {
    const asked = JSON.stringify([statement.text, statement.values])
    if (/RECURSIVE tree|end-user-runs/.test(`${statement.name} ${statement.text}`)) sent.set(asked, statement)
    return statement
  }
  const reads = database.as('reads')
  const { batch, tenant } = reads
  t.mock.method(reads, 'batch', (of: string, statements: readonly Statement[]) => batch(of, statements.map(note)))
  t.mock.method(reads, 'tenant', (of: string, work: (tx: TenantTx) => Promise<unknown>) =>
    tenant(of, (tx) => work({ ...tx, query: (statement) => tx.query(note(statement)) })),
  )
  const erased = (await call('DELETE', '/api/end-users/ann', 'acme')).json()
  assert.deepEqual([erased.runs, erased.pending], [5, 0])
  t.mock.restoreAll()
  assert.ok(sent.size >= 5)
  const others = delegated('acme', 'other', `'parent' || n / 10`, 50_000)
  // Another person has many of them.
  const bob = delegated('acme', 'bob', `'other' || n`, 2_000, `'bob'`)
  const trees = [...sent.values()].filter(({ name }) => name === undefined)
  const lists = [...sent.values()].filter(({ name }) => name !== undefined)
  const grown = [...ann, others, bob]
  const read = [
    ...(await readOnceGrown(reads, 'acme', trees, grown)),
    ...(await readOnceGrown(reads, 'acme', lists, [])),
  ]
  for (const { name, pages } of read) assert.ok(pages < 45, `${pages} pages: ${name}`)
})
