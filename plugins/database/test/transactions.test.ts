import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { isAppError } from '#kernel'
import { sqlState, type TenantTx } from '#contracts/database'
import { openTransactions } from './pooled.ts'

async function open(t: TestContext, size = 1) {
  const database = await openTransactions(t, size)
  await database.systemBatch([{ text: 'CREATE TABLE notes (id int PRIMARY KEY)' }])
  const ids = async () => (await database.systemBatch([{ text: 'SELECT id FROM notes ORDER BY id' }]))[0]
  return { ...database, ids }
}

const insert = (id: number) => ({ name: 'insert', text: 'INSERT INTO notes VALUES ($1)', values: [id] })
const boom = new Error('boom')

test('a transaction sets its tenant, commits when its work resolves, and gives the value on', async (t) => {
  const { tenant, ids } = await open(t)
  const value = await tenant('acme', async (tx) => {
    assert.equal(tx.tenantId, 'acme')
    await tx.query(insert(1))
    return tx.query({
      text: `SELECT current_setting('app.tenant_id') AS id, pg_current_xact_id_if_assigned() IS NULL AS fresh`,
    })
  })
  assert.deepEqual(value, [{ id: 'acme', fresh: false }])
  assert.deepEqual(await ids(), [{ id: 1 }])
})

test('a transaction rolls back when its work throws, and the error is the one thrown', async (t) => {
  const { tenant, ids, pool } = await open(t)
  await assert.rejects(
    tenant('acme', async (tx) => {
      await tx.query(insert(1))
      throw boom
    }),
    boom,
  )
  await assert.rejects(
    tenant('acme', () => Promise.reject(boom)),
    boom,
  )
  assert.deepEqual(await ids(), [])
  assert.deepEqual(pool.counts(), { inUse: 0, waiting: 0 })
})

test('a commit that became a rollback rejects, although the work swallowed the error', async (t) => {
  const { tenant, ids } = await open(t)
  await assert.rejects(
    tenant('acme', async (tx) => {
      await tx.query(insert(1))
      await tx.query({ text: 'SELECT 1/0' }).catch(() => {})
      return 'fine'
    }),
    (error: Error) => /rolled back/.test(error.message) && sqlState(error.cause) === '22012',
  )
  assert.deepEqual(await ids(), [])
})

test('an opening whose first statement fails is still one transaction', async (t) => {
  const { system, ids } = await open(t)
  await assert.rejects(
    system(async (tx) => {
      await tx.query({ text: 'SELECT 1/0' }).catch(() => {})
      await tx.query(insert(1))
    }),
    (error) => sqlState(error) === '25P02',
  )
  await assert.rejects(
    system(async (tx) => {
      // The statement was never sent, so no transaction has begun: what follows must not run outside of one.
      await tx.query({ text: 'SELECT $1', values: [1n, { toJSON: () => assert.fail('unreadable') }] }).catch(() => {})
      await tx.query(insert(2))
      throw boom
    }),
    boom,
  )
  assert.deepEqual(await ids(), [])
})

test('queries started together run in order, and those not awaited belong to the transaction', async (t) => {
  const { tenant, ids } = await open(t)
  await tenant('acme', async (tx) => {
    await Promise.all([tx.query(insert(1)), tx.query(insert(2)), tx.query(insert(3))])
    void tx.query(insert(4))
  })
  assert.deepEqual(await ids(), [{ id: 1 }, { id: 2 }, { id: 3 }, { id: 4 }])
})

test('statements that travel together have their rows each, and those at the end run last, or undo everything', async (t) => {
  const { tenant, ids } = await open(t)
  const count = { text: 'SELECT count(*)::int AS n FROM notes' }
  const seen = await tenant('acme', async (tx) => {
    tx.atEnd(insert(3))
    const rows = await tx.queries<[object[], object[]]>([insert(1), count])
    await tx.query(insert(2))
    return [...rows, await tx.query(count)]
  })
  assert.deepEqual(seen, [[], [{ n: 1 }], [{ n: 2 }]])
  assert.deepEqual(await ids(), [{ id: 1 }, { id: 2 }, { id: 3 }])
  // Nothing else was asked: the one at the end is a transaction by itself.
  await tenant('acme', async (tx) => tx.atEnd(insert(4)))
  const twice = tenant('acme', async (tx) => (tx.atEnd(insert(4)), tx.query(insert(5))))
  await assert.rejects(twice, (error) => sqlState(error) === '23505')
  const thrown = tenant('acme', async (tx) => (tx.atEnd(insert(6)), await tx.query(insert(7)), Promise.reject(boom)))
  await assert.rejects(thrown, boom)
  assert.equal((await ids())!.length, 4)
})

test('a transaction that leaked out of its function refuses to work', async (t) => {
  const { tenant, ids } = await open(t)
  let leaked: TenantTx | undefined
  await tenant('acme', async (tx) => void (leaked = tx))
  await assert.rejects(leaked!.query(insert(1)), /transaction is over/)
  assert.deepEqual(await ids(), [])
})

test('a connection that the server ends is a retryable 503, and the next one works', async (t) => {
  const { tenant, ids, pool } = await open(t)
  const kill = { text: 'SELECT pg_terminate_backend(pg_backend_pid())' }
  await assert.rejects(
    tenant('acme', async (tx) => {
      await tx.query(insert(1))
      await tx.query(kill)
    }),
    (error) => isAppError(error) && error.code === 'unavailable' && error.status === 503 && error.retryable,
  )
  assert.deepEqual(await ids(), [])
  assert.deepEqual(pool.counts(), { inUse: 0, waiting: 0 })
})

test('a statement that takes too long keeps its code', async (t) => {
  const { tenant } = await open(t)
  await assert.rejects(
    tenant('acme', async (tx) => {
      await tx.query({ text: `SELECT set_config('statement_timeout', '20', true)` })
      await tx.query({ text: 'SELECT pg_sleep(60)' })
    }),
    (error) => sqlState(error) === '57014',
  )
})

test('connections have the limits that keep one caller from holding the database', async (t) => {
  const { systemBatch } = await open(t)
  const names = ['statement_timeout', 'idle_in_transaction_session_timeout', 'application_name', 'TimeZone']
  const [rows] = await systemBatch<[{ value: string }[]]>([
    { text: 'SELECT current_setting(name) AS value FROM unnest($1::text[]) AS name', values: [names] },
  ])
  assert.deepEqual(
    rows.map((row) => row.value),
    ['30s', '1min', 'agent-orc', 'UTC'],
  )
})

test('units that share a transaction each have their own tenant and rows, and a refused one fails alone', async (t) => {
  const { unit, ids } = await open(t, 3)
  const add = (id: number, tenant: string) =>
    unit<{ id: number; tenant: string }>(tenant, {
      name: 'unit-insert',
      text: `INSERT INTO notes VALUES ($1) RETURNING id, current_setting('app.tenant_id') AS tenant`,
      values: [id],
    })
  const wanted = [1, 2, 3, 4, 5, 3, 6, 7].map((id, i) => ({ id, tenant: i % 2 === 0 ? 'acme' : 'globex' }))
  const settled = await Promise.allSettled(wanted.map(({ id, tenant }) => add(id, tenant)))
  const refused = settled.flatMap((s, i) => (s.status === 'rejected' ? [{ i, state: sqlState(s.reason) }] : []))
  assert.equal(refused.length, 1)
  assert.equal(refused[0]!.state, '23505')
  assert.equal(wanted[refused[0]!.i]!.id, 3)
  settled.forEach((s, i) => {
    if (s.status === 'fulfilled') assert.deepEqual(s.value, [wanted[i]])
  })
  assert.deepEqual(
    await ids(),
    [1, 2, 3, 4, 5, 6, 7].map((id) => ({ id })),
  )
})

test(
  'a row that a transaction of a tenant keeps locked holds up no unit of another tenant',
  { timeout: 20_000 },
  async (t) => {
    const { tenant, unit } = await open(t, 8)
    await tenant('acme', (tx) => tx.query(insert(1)))
    const found = { name: 'find', text: 'SELECT id FROM notes WHERE id = 1 FOR UPDATE' }
    const waiting: Promise<object[]>[] = []
    await tenant('acme', async (tx) => {
      await tx.query(found)
      // As many as there are lanes, and one more.
      for (let i = 0; i < 3; i++) waiting.push(unit('acme', found, { order: `session-${i}` }))
      // Its transaction goes on for as long as this takes.
      assert.deepEqual(await unit('globex', { name: 'one', text: 'SELECT 1 AS one' }), [{ one: 1 }])
    })
    assert.deepEqual(await Promise.all(waiting), [[{ id: 1 }], [{ id: 1 }], [{ id: 1 }]])
  },
)
