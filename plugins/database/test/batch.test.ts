import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { isAppError } from '#kernel'
import { sqlState, violatedConstraint } from '#contracts/database'
import { openTransactions } from './pooled.ts'

async function open(t: TestContext, size = 2) {
  const database = await openTransactions(t, size)
  await database.system((tx) => tx.query({ text: 'CREATE TABLE notes (id int PRIMARY KEY, text text)' }))
  return database
}

const insert = (id: number, text = 'x') => ({
  name: 'insert_note',
  text: 'INSERT INTO notes VALUES ($1, $2) RETURNING id',
  values: [id, text],
})
const count = { name: 'count_notes', text: 'SELECT count(*) AS n FROM notes' }
const tenant = { text: `SELECT current_setting('app.tenant_id', true) AS id` }

test('a batch is one transaction: statements see each other, and the tenant is set before the first', async (t) => {
  const { batch } = await open(t)
  assert.deepEqual(await batch('acme', [tenant, insert(1), insert(2), count]), [
    [{ id: 'acme' }],
    [{ id: 1 }],
    [{ id: 2 }],
    [{ n: 2 }],
  ])
  assert.deepEqual(await batch('acme', []), [])
})

test('an error in any statement undoes the whole batch, is the first one, and leaves the connection usable', async (t) => {
  const { batch, pool } = await open(t, 1)
  for (const position of [0, 1, 2, 3]) {
    const statements = [insert(1), insert(2), insert(3)]
    statements.splice(position, 0, { name: `broken_${position}`, text: 'SELECT $1::int / 0, $2', values: [1, 'x'] })
    await assert.rejects(
      batch('acme', [...statements, { text: 'SELECT nothing' }]),
      (error) => sqlState(error) === '22012',
    )
    assert.deepEqual(await batch('acme', [count]), [[{ n: 0 }]])
  }
  assert.deepEqual(pool.counts(), { inUse: 0, waiting: 0 })
})

test('a statement that cannot be prepared does not poison its name', async (t) => {
  const { batch, systemBatch } = await open(t, 1)
  const late = { name: 'late', text: 'SELECT id FROM late' }
  await assert.rejects(batch('acme', [insert(1), late]), (error) => sqlState(error) === '42P01')
  await systemBatch([{ text: 'CREATE TABLE late (id int)' }])
  assert.deepEqual(await batch('acme', [insert(1), late]), [[{ id: 1 }], []])
  assert.deepEqual(await batch('acme', [late, insert(2)]), [[], [{ id: 2 }]])
})

test('a named statement is prepared once per connection', async (t) => {
  const { batch, systemBatch } = await open(t, 1)
  for (let id = 0; id < 3; id++) await batch('acme', [insert(id), insert(id + 10), count])
  const prepared = {
    text: `SELECT name, generic_plans + custom_plans AS runs FROM pg_prepared_statements ORDER BY name`,
  }
  const [rows] = await systemBatch<[{ name: string; runs: number }[]]>([prepared])
  assert.deepEqual(
    rows.filter(({ runs }) => runs > 1),
    [
      { name: 'ao_set_requests', runs: 3 },
      { name: 'count_notes', runs: 3 },
      { name: 'insert_note', runs: 6 },
    ],
  )
})

test('a statement is planned anew when its tables may have grown, and reads the right columns behind that', async (t) => {
  const { batch, systemBatch } = await open(t, 1)
  for (let id = 0; id < 320; id += 10)
    await batch(
      'acme',
      Array.from({ length: 10 }, (_, i) => insert(id + i)),
    )
  const plans = `SELECT generic_plans + custom_plans AS runs FROM pg_prepared_statements WHERE name = 'insert_note'`
  assert.deepEqual(await systemBatch([{ text: plans }]), [[{ runs: 20 }]])
  assert.deepEqual(await batch('acme', [insert(320)]), [[{ id: 320 }]])
})

test('one name for two texts is refused before anything is sent', async (t) => {
  const { batch } = await open(t, 1)
  await batch('acme', [count])
  await assert.rejects(batch('acme', [insert(1), { name: 'count_notes', text: 'SELECT 1' }]), /two different texts/)
  assert.deepEqual(await batch('acme', [count]), [[{ n: 0 }]])
})

test('a violated constraint keeps its code and name, and its row is not told', async (t) => {
  const { batch } = await open(t)
  await batch('acme', [insert(1, 'secret-canary')])
  await assert.rejects(batch('acme', [insert(1, 'secret-canary')]), (error: Error) => {
    assert.equal(sqlState(error), '23505')
    assert.equal(violatedConstraint(error), 'notes_pkey')
    assert.equal('detail' in error, false)
    assert.match(error.stack!, /batch\.test\.ts/)
    return true
  })
})

test('a constraint deferred to the commit fails the batch', async (t) => {
  const { batch, systemBatch } = await open(t)
  await systemBatch([{ text: 'CREATE TABLE due (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)' }])
  const due = { name: 'due', text: 'INSERT INTO due VALUES (1)' }
  await assert.rejects(batch('acme', [due, due]), (error) => sqlState(error) === '23505')
  assert.deepEqual(await systemBatch([{ text: 'SELECT id FROM due' }]), [[]])
})

test('a migration under a prepared statement is a retryable failure once, then the new shape', async (t) => {
  const { batch, systemBatch } = await open(t, 1)
  const all = { name: 'all_notes', text: 'SELECT * FROM notes' }
  await batch('acme', [insert(1), all])
  await systemBatch([{ text: `ALTER TABLE notes ADD COLUMN mark text NOT NULL DEFAULT 'new'` }])
  await assert.rejects(batch('acme', [all]), (error) => isAppError(error) && error.retryable && error.status === 503)
  assert.deepEqual(await batch('acme', [all]), [[{ id: 1, text: 'x', mark: 'new' }]])
})

test('settings of a system batch last no longer than its transaction', async (t) => {
  const { systemBatch } = await open(t, 1)
  const read = { text: `SELECT current_setting('app.auth_hash', true) AS hash` }
  assert.deepEqual(await systemBatch([read], { 'app.auth_hash': 'abc' }), [[{ hash: 'abc' }]])
  assert.deepEqual(await systemBatch([read]), [[{ hash: '' }]])
})

test('many callers share few connections, each with its own answer', async (t) => {
  const { batch } = await open(t, 3)
  const echo = (i: number) =>
    batch<[{ i: number }[]]>('acme', [{ name: 'echo', text: 'SELECT $1::int AS i', values: [i] }])
  const answers = await Promise.all(Array.from({ length: 200 }, (_, i) => echo(i)))
  assert.deepEqual(
    answers.map(([[row]]) => row?.i),
    Array.from({ length: 200 }, (_, i) => i),
  )
})
