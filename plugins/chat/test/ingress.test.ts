import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pino } from 'pino'
import { AppError } from '#kernel'
import type { Database } from '#contracts/database'
import { createIngress } from '../sweeps.ts'
import { emptyDatabase, gateway, publish, sql } from './gateway.ts'

let runs = 0
// The minute in which the tests began, so that none of them fails when the next one begins.
const minute = new Date(Math.floor(Date.now() / 60_000) * 60_000).toISOString()
/** `count` public runs that were accepted `ago` minutes before. */
const accept = (database: Database, tenant: string, agent: string, ago: number, count = 1) =>
  sql(
    database,
    tenant,
    `INSERT INTO public_runs (tenant_id, id, published_id, conversation_id, run_id, owner_instance, created_at)
     SELECT $1, 'prun_' || $2 || '_' || n, $3, 'conv_' || $2 || '_' || n, 'run', 'inst', $6::timestamptz - $4 * interval '1 minute' + interval '1 second'
     FROM generate_series(1, $5) n`,
    tenant,
    String(++runs),
    agent,
    ago,
    count,
    minute,
  )
/** What is metered, as `agent@minutes ago: amount`. */
const metered = async (database: Database, tenant: string): Promise<string[]> => {
  const rows = await sql<{ entry: string }>(
    database,
    tenant,
    `SELECT subject || '@' || round(extract(epoch FROM $1::timestamptz - minute) / 60) || ': ' || amount AS entry
     FROM usage_meters WHERE meter = 'ingress' ORDER BY subject, minute`,
    minute,
  )
  return rows.map(({ entry }) => entry)
}
const total = async (database: Database, tenant: string): Promise<number> => {
  const [row] = await sql<{ n: number }>(
    database,
    tenant,
    `SELECT coalesce(sum(amount), 0)::int AS n FROM usage_meters WHERE meter = 'ingress'`,
  )
  return row!.n
}
/** As if it were so many minutes ago that the tenant was counted last. */
const rewind = (database: Database, tenant: string, minutes: number) =>
  sql(
    database,
    tenant,
    `UPDATE ingress_watermarks SET counted_until = counted_until - $1 * interval '1 minute'`,
    minutes,
  )
const silent = pino({ level: 'silent' })

test('accepted chats are metered by agent and closed minute, once, however often and by whomever they are counted', async (t) => {
  const database = await emptyDatabase(t)
  await accept(database, 'acme', 'pub_a', 3, 2)
  await accept(database, 'acme', 'pub_a', 2, 5)
  await accept(database, 'acme', 'pub_b', 2)
  await accept(database, 'globex', 'pub_c', 7, 4)
  await accept(database, 'acme', 'pub_a', -10)
  const gateways = Array.from({ length: 4 }, () => createIngress(database, silent))
  await Promise.all(gateways.map((one) => one.turn()))
  const expected = ['pub_a@3: 2', 'pub_a@2: 5', 'pub_b@2: 1']
  assert.deepEqual(await metered(database, 'acme'), expected)
  assert.deepEqual(await metered(database, 'globex'), ['pub_c@7: 4'])
  await rewind(database, 'acme', 2)
  for (const one of gateways) one.touched.add('acme')
  await Promise.all(gateways.map((one) => one.turn()))
  assert.deepEqual(await metered(database, 'acme'), expected)
})

test('a run that was committed after its minute had been counted is found by the next count', async (t) => {
  const database = await emptyDatabase(t)
  const ingress = createIngress(database, silent)
  await accept(database, 'acme', 'pub_a', 3)
  await ingress.turn()
  await rewind(database, 'acme', 1)
  await accept(database, 'acme', 'pub_a', 3)
  await accept(database, 'acme', 'pub_b', 4)
  ingress.touched.add('acme')
  await ingress.turn()
  assert.deepEqual(await metered(database, 'acme'), ['pub_a@3: 2', 'pub_b@4: 1'])
})

test('a failed flush is logged as ingress.flush_failed, and its interval is counted by the next one', async (t) => {
  const database = await emptyDatabase(t)
  const logs: Record<string, unknown>[] = []
  const log = pino({ level: 'debug' }, { write: (line: string) => void logs.push(JSON.parse(line)) })
  let away = true
  const cut: Database = {
    ...database,
    batch: (...args) => (away ? Promise.reject(new AppError('unavailable', 503)) : database.batch(...args)),
  }
  const ingress = createIngress(cut, log)
  await accept(database, 'acme', 'pub_a', 3, 3)
  await ingress.turn()
  assert.deepEqual(
    logs.map(({ msg }) => msg),
    ['ingress.flush_failed'],
  )
  assert.equal(await total(database, 'acme'), 0)
  away = false
  await ingress.turn()
  assert.equal(await total(database, 'acme'), 3)
  assert.equal(logs.length, 1)
})

test('tenants that chat are counted for three minutes more, all others every ten minutes', async (t) => {
  const database = await emptyDatabase(t)
  let now = 0
  const counted: string[] = []
  const watched: Database = {
    ...database,
    batch: (tenantId, statements) => {
      counted.push(tenantId)
      return database.batch(tenantId, statements)
    },
  }
  const ingress = createIngress(watched, silent, () => now)
  const flush = async (minutes: number): Promise<string[]> => {
    counted.length = 0
    now = minutes * 60_000
    await ingress.turn()
    return counted.toSorted()
  }
  const everybody = ['acme', 'default', 'globex']
  assert.deepEqual(await flush(0), everybody)
  ingress.touched.add('acme')
  for (const [minutes, expected] of [
    [1, ['acme']],
    [2.9, ['acme']],
    [3.1, ['acme']],
    [4, []],
    [10, everybody],
    [11, []],
  ] as const) {
    assert.deepEqual(await flush(minutes), expected, `after ${minutes} minutes`)
  }
})

test('a chat counts once it was accepted, a refused one never', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database, { rpm: 2 })
  const chat = (message: unknown, headers: object = agent.auth) =>
    app.inject({ method: 'POST', url: agent.url, headers: { ...headers }, payload: { message } })
  const codes = [await chat('one'), await chat(1), await chat('three'), await chat('no key', {})].map(
    (r) => r.statusCode,
  )
  assert.deepEqual(codes, [200, 400, 429, 401])
  await sql(database, 'acme', `UPDATE public_runs SET created_at = created_at - interval '2 minutes'`)
  await createIngress(database, silent).turn()
  assert.equal(await total(database, 'acme'), 1)
})
