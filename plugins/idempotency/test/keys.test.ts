import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { pino } from 'pino'
import { definePlugin, isAppError } from '#kernel'
import { Database } from '#contracts/database'
import type { Attempt, IdempotentCall } from '#contracts/idempotency'
import { databasePlugin, freshDatabase, testKernel } from '#testing'
import { createKeys, type Keys } from '../index.ts'

async function open(t: TestContext, dsn: string): Promise<{ keys: Keys; database: Database }> {
  let database: Database | undefined
  const peek = definePlugin({
    name: 'peek',
    requires: { database: Database },
    async setup({ deps }) {
      database = deps.database
      return {}
    },
  })
  await testKernel(t, [await databasePlugin(dsn), peek], { listeners: [] })
  return { keys: createKeys(database!, pino({ level: 'silent' })), database: database! }
}

type Ids = { readonly runId: string }
const call = (over: Partial<IdempotentCall<Ids>> = {}): IdempotentCall<Ids> => ({
  tenantId: 'acme',
  scope: 'tak_1 runs',
  key: 'k',
  body: { prompt: 'Hi', profile: 'p' },
  plan: { runId: `run_${Math.random()}` },
  ...over,
})
const refusal = async (attempt: Promise<unknown>): Promise<string> => {
  const error = await attempt.then(
    () => undefined,
    (e: unknown) => e,
  )
  assert.ok(isAppError(error), String(error))
  return `${error.status} ${error.code}`
}
/** Makes the lease of the key run out, as if the process of the request had died. */
const expireLeases = (database: Database) =>
  database.batch('acme', [{ text: `UPDATE idempotency_keys SET locked_until = now() - interval '1 second'` }])

test('the first request of a key goes on alone; what it answered is what the next ones get', async (t) => {
  const { keys } = await open(t, await freshDatabase(t))
  const first = await keys.begin(call({ plan: { runId: 'run_a' } }))
  assert.deepEqual([first.plan, first.repeated, first.answer], [{ runId: 'run_a' }, false, undefined])
  assert.equal(await refusal(keys.begin(call())), '409 idempotency_in_flight')
  const body = { runId: 'run_a', text: 'nul \0 and ü' }
  await first.end({ status: 202, body })
  for (let i = 0; i < 2; i++) {
    const again = await keys.begin(call({ plan: { runId: 'run_b' } }))
    assert.deepEqual([again.plan, again.repeated, again.answer], [{ runId: 'run_a' }, true, { status: 202, body }])
  }
})

test('a body is the same whatever the order of its members, and any other is refused, also while one is under way', async (t) => {
  const { keys } = await open(t, await freshDatabase(t))
  const first = await keys.begin(call({ body: { a: [1, { x: 1, y: 2 }], b: 'c' } }))
  assert.equal(await refusal(keys.begin(call({ body: { a: [1], b: 'c' } }))), '422 idempotency_key_reused')
  await first.end()
  for (const body of [
    { a: [1, { x: 1, y: 2 }] },
    { a: [{ x: 1, y: 2 }, 1], b: 'c' },
    { a: [1, { x: 1, y: '2' }], b: 'c' },
  ]) {
    assert.equal(await refusal(keys.begin(call({ body }))), '422 idempotency_key_reused')
  }
  const again = await keys.begin(call({ body: { b: 'c', a: [1, { y: 2, x: 1 }] } }))
  assert.equal(again.repeated, true)
})

test('tenants, callers and uses never share a key', async (t) => {
  const { keys } = await open(t, await freshDatabase(t))
  const all = [call(), call({ tenantId: 'globex' }), call({ scope: 'tak_2 runs' }), call({ scope: 'tak_1 chat' })]
  for (const one of all) assert.equal((await keys.begin(one)).repeated, false)
})

test('a key that was forgotten was never used', async (t) => {
  const { keys } = await open(t, await freshDatabase(t))
  await (await keys.begin(call())).forget()
  const other = await keys.begin(call({ body: 'another', plan: { runId: 'run_b' } }))
  assert.deepEqual([other.repeated, other.plan], [false, { runId: 'run_b' }])
})

test('of fifty requests at once through two processes exactly one goes on', async (t) => {
  const dsn = await freshDatabase(t)
  const both = [await open(t, dsn), await open(t, dsn)]
  const attempts = await Promise.allSettled(Array.from({ length: 50 }, (_, i) => both[i % 2]!.keys.begin(call())))
  const won = attempts.flatMap((a) => (a.status === 'fulfilled' ? [a.value] : []))
  assert.equal(won.length, 1)
  for (const lost of attempts) {
    if (lost.status === 'rejected') assert.equal((lost.reason as { code: string }).code, 'idempotency_in_flight')
  }
})

test('after a process died the next request of its key joins what was planned, and the dead one can change nothing', async (t) => {
  const dsn = await freshDatabase(t)
  const [a, b] = [await open(t, dsn), await open(t, dsn)]
  const frozen = await a.keys.begin(call({ plan: { runId: 'run_a' } }))
  assert.equal(await refusal(b.keys.begin(call())), '409 idempotency_in_flight')
  await expireLeases(a.database)
  const next = await b.keys.begin(call({ plan: { runId: 'run_b' } }))
  assert.deepEqual([next.plan, next.repeated], [{ runId: 'run_a' }, true])
  await frozen.forget()
  await frozen.end({ status: 500, body: 'late' })
  assert.equal(await refusal(a.keys.begin(call())), '409 idempotency_in_flight', 'still held by the second')
  await next.end({ status: 202, body: 'b' })
  const again: Attempt<Ids> = await a.keys.begin(call())
  assert.deepEqual(again.answer, { status: 202, body: 'b' })
})

test('the key of a request under way is kept by beats, one that was let go is not', async (t) => {
  const dsn = await freshDatabase(t)
  const [a, b] = [await open(t, dsn), await open(t, dsn)]
  const held = await a.keys.begin(call())
  const ended = await a.keys.begin(call({ key: 'other' }))
  await ended.end()
  await expireLeases(a.database)
  await a.keys.beat()
  assert.equal(await refusal(b.keys.begin(call())), '409 idempotency_in_flight')
  assert.equal((await b.keys.begin(call({ key: 'other' }))).repeated, true)
  await held.end()
})

test('after 24 h a key is a new one, and its row is deleted tenant by tenant, unless a request holds it', async (t) => {
  const { keys, database } = await open(t, await freshDatabase(t))
  const age = (tenantId: string, key: string) =>
    database.batch(tenantId, [
      {
        text: `UPDATE idempotency_keys SET expires_at = now() WHERE tenant_id = $1 AND key = $2`,
        values: [tenantId, key],
      },
    ])
  await (await keys.begin(call())).end({ status: 202, body: 'old' })
  const [row] = await database.unit<{ hours: number }>('acme', {
    text: `SELECT extract(epoch FROM expires_at - now()) / 3600 AS hours FROM idempotency_keys`,
  })
  assert.ok(Math.abs(Number(row!.hours) - 24) < 0.1)
  await age('acme', 'k')
  const fresh = await keys.begin(call({ body: 'another', plan: { runId: 'run_b' } }))
  assert.deepEqual([fresh.repeated, fresh.plan, fresh.answer], [false, { runId: 'run_b' }, undefined])
  for (const tenantId of ['acme', 'globex']) {
    await (await keys.begin(call({ tenantId, key: 'old' }))).end()
    await age(tenantId, 'old')
  }
  await age('acme', 'k')
  await (await keys.begin(call({ key: 'young' }))).end()
  assert.equal(await keys.clean(), 2)
  const left = await database.unit<{ key: string }>('acme', { text: 'SELECT key FROM idempotency_keys ORDER BY key' })
  assert.deepEqual(
    left.map(({ key }) => key),
    ['k', 'young'],
  )
})
