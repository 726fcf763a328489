import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { isAppError } from '#kernel'
import type { Work } from '#contracts/database'
import { divide, Shares } from '../pool.ts'
import { openTransactions } from './pooled.ts'

const turn = () => new Promise((resolve) => setImmediate(resolve))

/** Shares whose work begins and ends when the test says so. */
function scripted(size: number) {
  const shares = new Shares({ claims: size, requests: size, reads: size })
  const begun: string[] = []
  const ends = new Map<string, () => void>()
  const start = (tenant: string, name: string, work: Work = 'reads') =>
    shares.within(work, tenant, async () => {
      begun.push(name)
      await new Promise<void>((resolve) => ends.set(name, resolve))
      return name
    })
  const end = async (name: string) => {
    ends.get(name)!()
    await turn()
  }
  return { shares, begun, start, end }
}

test('a tenant has at most half of the connections of a kind of work, and those that wait take turns', async () => {
  const { shares, begun, start, end } = scripted(4)
  const all = ['a1', 'a2', 'a3', 'a4', 'a5'].map((name) => start('a', name))
  assert.deepEqual(begun, ['a1', 'a2'])
  all.push(start('b', 'b1'), start('c', 'c1'), start('c', 'c2'), start('d', 'd1'))
  assert.deepEqual(begun, ['a1', 'a2', 'b1', 'c1'], 'what a leaves is for others at once')
  all.push(start('a', 'q', 'requests'), start('a', 'k', 'claims'))
  assert.deepEqual(begun.slice(4), ['q', 'k'], 'other work has connections of its own')
  assert.deepEqual(shares.waiting(), { claims: 0, requests: 0, reads: 5, figures: 0 })
  for (const name of ['b1', 'c1', 'a1', 'a2', 'c2', 'd1', 'a3', 'a4', 'a5', 'q', 'k']) await end(name)
  assert.deepEqual(begun.slice(6), ['c2', 'd1', 'a3', 'a4', 'a5'])
  assert.equal((await Promise.all(all)).length, 11)
  assert.deepEqual(shares.waiting(), { claims: 0, requests: 0, reads: 0, figures: 0 })
})

test('figures are reads of which a tenant has one at a time, and they leave one connection to lists', async () => {
  const { shares, begun, start, end } = scripted(3)
  const all = [start('a', 'a1', 'figures'), start('a', 'a2', 'figures'), start('b', 'b1', 'figures')]
  all.push(start('c', 'c1', 'figures'))
  await turn()
  assert.deepEqual(begun, ['a1', 'b1'])
  all.push(start('a', 'list'))
  await turn()
  assert.deepEqual(begun.slice(2), ['list'])
  assert.deepEqual(shares.waiting(), { claims: 0, requests: 0, reads: 0, figures: 2 })
  for (const name of ['b1', 'a1', 'list', 'c1', 'a2']) await end(name)
  assert.equal((await Promise.all(all)).length, 5)
})

test('figures wait longer than the longest statements before them: a list that is halfway does not break off', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { begun, start, end } = scripted(3)
  const all = [start('a', 'a1', 'figures'), start('b', 'b1', 'figures'), start('c', 'next part', 'figures')]
  t.mock.timers.tick(15_000)
  await turn()
  await end('a1')
  assert.deepEqual(begun, ['a1', 'b1', 'next part'])
  for (const name of ['b1', 'next part']) await end(name)
  await Promise.all(all)
})

test('two hundred figures of a tenant wait and no more, while others wait as well', async () => {
  const { shares, begun, start, end } = scripted(2)
  const all = [start('a', 'a1', 'figures')]
  for (let i = 0; i < 200; i++) all.push(start('a', `w${i}`, 'figures'))
  await assert.rejects(start('a', 'more', 'figures'), (error) => isAppError(error) && error.code === 'database_busy')
  all.push(start('b', 'b1', 'figures'))
  assert.equal(shares.waiting().figures, 201)
  for (let ended = 0; ended < all.length; await turn()) while (ended < begun.length) await end(begun[ended++]!)
  assert.equal((await Promise.all(all)).length, 202)
})

test('tenants whose backlogs are long are served one after the other, whoever came first', async () => {
  const { begun, start, end } = scripted(1)
  const all = [...['a1', 'a2', 'a3'].map((name) => start('a', name)), start('b', 'b1'), start('b', 'b2')]
  for (const name of ['a1', 'a2', 'b1', 'a3', 'b2']) await end(name)
  assert.deepEqual(begun, ['a1', 'a2', 'b1', 'a3', 'b2'])
  await Promise.all(all)
})

test('who waits too long hears 503 database_busy, and its place goes to the next one', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { shares, begun, start, end } = scripted(1)
  const first = start('a', 'a1', 'requests')
  const late = start('b', 'b1', 'requests')
  t.mock.timers.tick(4_000)
  const next = start('c', 'c1', 'requests')
  t.mock.timers.tick(1_000)
  await assert.rejects(late, (error) => isAppError(error) && error.code === 'database_busy' && error.retryable)
  await end('a1')
  assert.deepEqual(begun, ['a1', 'c1'])
  await end('c1')
  await Promise.all([first, next])
  assert.deepEqual(shares.waiting(), { claims: 0, requests: 0, reads: 0, figures: 0 })
})

test('work that fails gives its place on', async () => {
  const { shares, start, end, begun } = scripted(1)
  await assert.rejects(
    shares.within('reads', 'a', () => Promise.reject(new Error('broken'))),
    /broken/,
  )
  const next = start('b', 'b1')
  assert.deepEqual(begun, ['b1'])
  await end('b1')
  await next
})

test('the kinds of work together never need more connections than there are, from five on', () => {
  for (let size = 5; size <= 100; size++) {
    for (const percent of [10, 30, 45]) {
      const { claims, requests, reads } = divide({ size, lanes: 2, requestsPercent: percent, readsPercent: percent })
      assert.ok(2 + claims + requests + reads <= size, `${size} at ${percent}`)
      assert.ok(Math.min(claims, requests, reads) >= 1)
    }
  }
  assert.deepEqual(divide({ size: 10, lanes: 2, requestsPercent: 40, readsPercent: 40 }), {
    claims: 2,
    requests: 3,
    reads: 3,
  })
})

/** Ten connections as a process has them, and reads of `acme` that hold theirs until the test lets go. */
async function besieged(t: TestContext) {
  const limits = divide({ size: 10, lanes: 2, requestsPercent: 40, readsPercent: 40 })
  const { of, unit, shares } = await openTransactions(t, 10, limits)
  const [reads, requests, claims] = [of('reads'), of('requests'), of('claims')]
  const opened = Promise.withResolvers<void>()
  const gate = Promise.withResolvers<void>()
  const locked = claims.system(async (tx) => {
    await tx.query({ text: 'SELECT pg_advisory_xact_lock(1)' })
    opened.resolve()
    await gate.promise
  })
  await opened.promise
  const slow = Array.from({ length: 300 }, () =>
    reads.batch('acme', [{ name: 'slow', text: 'SELECT pg_advisory_xact_lock_shared(1)' }]),
  )
  const letGo = async () => {
    gate.resolve()
    await locked
    return Promise.all(slow)
  }
  return { reads, requests, claims, unit, shares, letGo }
}

test('300 slow reads of one tenant hold two connections: claims, requests and reads of others go on at once', async (t) => {
  const { reads, requests, claims, unit, shares, letGo } = await besieged(t)
  assert.equal(shares.waiting().reads, 298)
  const one = [{ text: 'SELECT 1 AS n' }]
  for (let i = 0; i < 20; i++) {
    await reads.batch('globex', one)
    await requests.batch('globex', one)
    await requests.batch('acme', one)
    await requests.systemBatch(one)
    await claims.tenant('globex', (tx) => tx.query(one[0]!))
    await unit('acme', one[0]!)
  }
  assert.equal(shares.waiting().reads, 298, 'none of them was let in meanwhile')
  assert.equal((await letGo()).length, 300)
})

test('no request or read of a tenant takes more than one processor', async (t) => {
  const { of } = await openTransactions(t, 1)
  const eager = ['parallel_setup_cost', 'parallel_tuple_cost', 'min_parallel_table_scan_size'].map((name) => ({
    text: `SELECT set_config('${name}', '0', true)`,
  }))
  const explain = { text: 'EXPLAIN SELECT count(*) FROM pg_proc' }
  for (const work of ['requests', 'reads'] as const) {
    const rows = await of(work).batch<object[][]>('acme', [...eager, explain])
    assert.doesNotMatch(JSON.stringify(rows.at(-1)), /Gather/, work)
  }
  const [, , , plan] = await of('reads').systemBatch<object[][]>([...eager, explain])
  assert.match(JSON.stringify(plan), /Gather/, 'the server would')
})

test('a plan of a tenant that is made while a table is small reads no whole table when it has grown', async (t) => {
  const { of } = await openTransactions(t, 1)
  const small = [
    'CREATE TEMP TABLE small (tenant_id text, id int, PRIMARY KEY (tenant_id, id)) ON COMMIT DROP',
    `INSERT INTO small VALUES ('acme', 1), ('acme', 2)`,
    'ANALYZE small',
    `EXPLAIN SELECT FROM small WHERE tenant_id = 'acme' AND id = ANY ('{1,2}')`,
  ].map((text) => ({ text }))
  for (const work of ['claims', 'requests', 'reads'] as const) {
    const rows = await of(work).batch<object[][]>('acme', small)
    assert.doesNotMatch(JSON.stringify(rows.at(-1)), /Seq Scan/, work)
  }
  const rows = await of('reads').systemBatch<object[][]>(small)
  assert.match(JSON.stringify(rows.at(-1)), /Seq Scan/, 'the server would')
})

test('a plan of a claim that is made while tenants are small uses the key, and never all rows of the tenant', async (t) => {
  const { of, unit } = await openTransactions(t, 1)
  await of('requests').systemBatch(
    [
      'CREATE TABLE small (tenant_id text, id int, rest text, PRIMARY KEY (tenant_id, id))',
      'CREATE INDEX ON small (tenant_id)',
      `INSERT INTO small SELECT 'tenant' || n % 10, n, repeat('x', 200) FROM generate_series(1, 60) n`,
      'ANALYZE small',
    ].map((text) => ({ text })),
  )
  const explain = { text: `EXPLAIN SELECT FROM small WHERE tenant_id = 'tenant1' AND id = 1 AND rest <> ''` }
  const plans = {
    claims: (await of('claims').batch<[object[]]>('acme', [explain]))[0],
    unit: await unit('acme', explain),
  }
  for (const [work, plan] of Object.entries(plans))
    assert.match(JSON.stringify(plan), /Index Scan using small_pkey/, work)
  const [reads] = await of('reads').batch<[object[]]>('acme', [explain])
  assert.match(JSON.stringify(reads), /Bitmap Heap Scan/, 'the server would')
})

test('a read and a request have limits of their own, which end with them; too slow a one is told to ask for less', async (t) => {
  const { of } = await openTransactions(t, 1)
  const show = { text: `SELECT current_setting('statement_timeout') AS limit` }
  for (const [work, limit] of [
    ['reads', '15s'],
    ['figures', '15s'],
    ['requests', '10s'],
    ['claims', '30s'],
  ] as const) {
    assert.deepEqual(await of(work).batch('acme', [show]), [[{ limit }]])
    assert.deepEqual(await of(work).tenant('acme', (tx) => tx.query(show)), [{ limit }])
  }
  const quick = { text: `SELECT set_config('statement_timeout', '20', true)` }
  await assert.rejects(of('reads').batch('acme', [quick, { text: 'SELECT pg_sleep(60)' }]), {
    status: 503,
    code: 'database_too_slow',
    retryable: false,
  })
})
