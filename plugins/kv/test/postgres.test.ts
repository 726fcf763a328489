import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import pg from 'pg'
import { pino } from 'pino'
import { definePlugin } from '#kernel'
import { Database } from '#contracts/database'
import { databasePlugin, freshDatabase, startProxy, testKernel } from '#testing'
import { PostgresStore } from '../postgres.ts'
import { kvKernel, testKv, unavailable, until } from './suite.ts'

testKv('postgres', async (t, count) => {
  const dsn = await freshDatabase(t)
  const kvs = await Promise.all(Array.from({ length: count }, async () => (await kvKernel(t, { dsn })).kv))
  assert.equal(kvs[0]!.backend, 'postgres')
  return kvs
})

async function open(t: TestContext, limit?: number) {
  const dsn = await freshDatabase(t)
  let database: Database | undefined
  const peek = definePlugin({
    name: 'peek',
    requires: { database: Database },
    setup: async ({ deps }) => ((database = deps.database), {}),
  })
  await testKernel(t, [await databasePlugin(dsn), peek], { listeners: [] })
  const log = pino({ level: 'silent' })
  const store = new PostgresStore({ database: database!, log, ...(limit === undefined ? {} : { limit }) })
  t.after(() => store.close())
  const run = (text: string) => database!.systemBatch([{ text }])
  return { store, run, dsn }
}

test('postgres: memory is used beside a database when the role says so', async (t) => {
  const { kv } = await kvKernel(t, { dsn: await freshDatabase(t), withoutRedis: 'memory' })
  assert.equal(kv.backend, 'memory')
})

test('postgres: callers who ask at once for one key are answered as if one after the other', async (t) => {
  const { store } = await open(t)
  const claims = await Promise.all(Array.from({ length: 200 }, (_, i) => store.claim(`k${i % 20}`, 60_000)))
  assert.equal(claims.filter(Boolean).length, 20)
  const hits = await Promise.all(Array.from({ length: 200 }, () => store.hit('k', 50, 60)))
  const allowed = hits.filter((hit) => hit.allowed)
  assert.deepEqual(
    allowed.map((hit) => hit.count).toSorted((a, b) => a - b),
    Array.from({ length: 50 }, (_, i) => i + 1),
  )
  for (const { count, retryAfterMs } of hits.filter((hit) => !hit.allowed)) {
    assert.equal(count, 50)
    assert.ok(retryAfterMs > 0 && retryAfterMs <= 61_000)
  }
})

test('postgres: the buckets of a window are those of the last seconds, and one more', async (t) => {
  const { store, run } = await open(t)
  // The times are inside a second, so that no instant of the test falls on the border of a bucket.
  const hold = (seconds: number, hits: number) =>
    run(`INSERT INTO kv_windows SELECT 'k', ARRAY[floor(extract(epoch FROM clock_timestamp()))::bigint - ${seconds}], ARRAY[${hits}], now()
      ON CONFLICT (key) DO UPDATE SET seconds = excluded.seconds, hits = excluded.hits`)
  await hold(59, 3)
  const full = await store.hit('k', 3, 60)
  assert.deepEqual([full.allowed, full.count], [false, 3])
  assert.ok(full.retryAfterMs <= 2_000)
  await hold(62, 3)
  assert.deepEqual(await store.hit('k', 3, 60), { allowed: true, count: 1, retryAfterMs: 0 })
})

test('postgres: a sweep removes what has ended and nothing else; a full store refuses until the next', async (t) => {
  const { store, run } = await open(t, 2)
  for (const key of ['a', 'b', 'c']) {
    assert.equal(await store.claim(key, 60_000), true)
    await store.hit(key, 1, 60)
  }
  await run(`UPDATE kv_claims SET gone_at = now() WHERE key = 'a'`)
  await store.sweep()
  await assert.rejects(store.claim('d', 60_000), unavailable)
  await assert.rejects(store.hit('d', 1, 60), unavailable)
  await run(`UPDATE kv_claims SET gone_at = now() WHERE key = 'b'`)
  await run(`UPDATE kv_windows SET gone_at = now() WHERE key <> 'c'`)
  await store.sweep()
  assert.equal(await store.claim('a', 60_000), true)
  assert.equal(await store.claim('c', 60_000), false)
  assert.equal((await store.hit('c', 1, 60)).allowed, false)
})

test('postgres: after a crash that emptied its tables, what was made before is refused and what is made after is not', async (t) => {
  const { store, run } = await open(t)
  const madeAt = Date.now() - 1_000
  assert.equal(await store.claim('k', 60_000, Date.now()), true)
  await run('TRUNCATE kv_memory, kv_claims, kv_windows')
  for (let i = 0; i < 2; i++) await assert.rejects(store.claim('k', 60_000, madeAt), unavailable)
  assert.equal(await store.claim('k', 60_000, Date.now() + 60_000), true)
  assert.equal(await store.claim('k', 60_000, Date.now() + 60_000), false)
})

test('postgres: while the server is away every command is a 503, and wake-ups come again with it', async (t) => {
  const between = await startProxy(t, await freshDatabase(t))
  const [one, two] = [await kvKernel(t, { dsn: between.url }), await kvKernel(t, { dsn: between.url })]
  let heard = 0
  two.kv.subscribe('c', () => heard++)
  await until(() => (one.kv.publish(['c'], ''), heard > 0))
  between.cut()
  await assert.rejects(one.kv.claim('k', 60_000), unavailable)
  await assert.rejects(one.kv.hit('k', 1, 60), unavailable)
  between.heal()
  await until(async () => one.kv.claim('k', 60_000).catch(() => false))
  heard = 0
  await until(() => (one.kv.publish(['c'], ''), heard > 0))
})

test('postgres: a process that is alone notifies nobody, and many wake-ups are few notifications', async (t) => {
  const dsn = await freshDatabase(t)
  const ear = new pg.Client({ connectionString: dsn })
  ear.on('error', () => {})
  await ear.connect()
  t.after(() => ear.end())
  const payloads: string[] = []
  ear.on('notification', ({ payload }) => void payloads.push(payload!))
  await ear.query('LISTEN agent_orc_kv')
  const one = await kvKernel(t, { dsn })
  const own: string[] = []
  one.kv.subscribe('c', (message) => void own.push(message))
  one.kv.publish(['c'], 'mine')
  await until(() => own.length > 0 && payloads.length > 0)
  assert.deepEqual([own, payloads.filter((payload) => payload.includes('wakes'))], [['mine'], []])
  const two = await kvKernel(t, { dsn })
  const got = new Set<string>()
  for (let i = 0; i < 300; i++) two.kv.subscribe(`channel ${i}`, () => void got.add(`channel ${i}`))
  await until(() => (one.kv.publish(['channel 0'], ''), got.has('channel 0')))
  payloads.length = 0
  for (let round = 0; round < 20; round++) for (let i = 0; i < 300; i++) one.kv.publish([`channel ${i}`], '')
  await until(() => got.size === 300)
  const wakes = payloads.filter((payload) => payload.includes('wakes'))
  assert.ok(wakes.length <= 4, `${wakes.length} notifications`)
  assert.ok(wakes.every((payload) => Buffer.byteLength(payload) < 8_000))
})

test('postgres: a hit finds its key by the index, with a plan from when there were few keys as well', async (t) => {
  const { dsn } = await open(t)
  const client = new pg.Client({ connectionString: dsn })
  client.on('error', () => {})
  await client.connect()
  t.after(() => client.end())
  const add = (from: number, to: number) =>
    client.query(`INSERT INTO kv_windows SELECT 'k' || n, '{1}', '{1}', now() FROM generate_series(${from}, ${to}) n`)
  await add(1, 10)
  await client.query('ANALYZE kv_windows')
  // From the sixth call on, the function keeps its plans.
  const hit = `SELECT kv_hit('k1', 100, 60, 1)`
  for (let i = 0; i < 8; i++) await client.query(hit)
  await add(11, 20_000)
  const { rows } = await client.query<{
    'QUERY PLAN': { Plan: Record<'Shared Hit Blocks' | 'Shared Read Blocks', number> }[]
  }>(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ${hit}`)
  const { Plan: plan } = rows[0]!['QUERY PLAN'][0]!
  assert.ok(plan['Shared Hit Blocks'] + plan['Shared Read Blocks'] < 40, JSON.stringify(plan))
})
