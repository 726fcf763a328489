import assert from 'node:assert/strict'
import { test } from 'node:test'
import { reconcile } from '../../plugins/billing/upkeep.ts'
import { ask, begin, cents, chunk, finish, stage, unique } from './stage.ts'

const codeOf = async (outcome: ReturnType<typeof ask>): Promise<string> => {
  const found = await outcome
  return found.kind === 'unfunded' ? found.why.code : found.kind
}

test('100 runs at once on one credit: one begins, and at its end the others may', async (t) => {
  const { open, grant, account, database } = await stage(t)
  const stores = [await open(), await open()]
  assert.equal(await codeOf(ask(stores[0]!)), 'registration_pending')
  await grant(1)
  const outcomes = await Promise.all(Array.from({ length: 100 }, (_, i) => ask(stores[i % 2]!)))
  const started = outcomes.filter((one) => one.kind === 'started')
  const refused = outcomes.filter((one) => one.kind === 'unfunded')
  assert.deepEqual([started.length, refused.length], [1, 99])
  assert.ok(refused.every(({ why }) => why.code === 'credits_exhausted' && why.status === 402))
  assert.equal(refused[0]!.why.detail['checkout_path'], '/api/billing/checkout')
  // What was refused has left nothing behind.
  const count = {
    text: 'SELECT (SELECT count(*) FROM runs)::int AS runs, (SELECT count(*) FROM sessions)::int AS sessions',
  }
  assert.deepEqual((await database.batch<[object[]]>('acme', [count]))[0], [{ runs: 1, sessions: 1 }])
  assert.deepEqual(await account(), { balance: 1, held: 1 })
  await finish(stores[0]!, started[0]!.claim, { costCents: 0.25 })
  assert.deepEqual(await account(), { balance: 0.75, held: 0 })
  assert.equal(await codeOf(ask(stores[1]!)), 'started')
  assert.deepEqual(await account(), { balance: 0.75, held: 0.75 }, 'what is left is held, where it is less than usual')
  assert.deepEqual(await reconcile(database, 'acme'), [])
})

test('a run that is asked for twice is charged once; one that is taken back, cancelled or stolen gives back what was held', async (t) => {
  const { open, grant, account, database } = await stage(t)
  const store = await open()
  await grant(10)
  const id = unique('run')
  const first = await begin(store, { id })
  assert.equal((await ask(store, { id })).kind, 'exists')
  assert.equal((await account())!.held, 1)
  const next = {
    tenantId: 'acme',
    sessionId: first.sessionId,
    task: { profile: 'writer', prompt: 'next' },
    interrupt: false,
  }
  assert.equal((await store.enqueue({ ...next, runId: 'waits' })).kind, 'queued')
  assert.equal((await account())!.held, 2, 'also for a run that waits')
  assert.ok(await store.steal('acme', 'waits', 'cancelled', { code: 'cancelled', message: 'x' }))
  assert.equal((await account())!.held, 1)
  await finish(store, first, { costCents: 0.5, toolCalls: 3 })
  assert.equal(await finish(store, first, { costCents: 0.5 }), false)
  assert.deepEqual(await account(), { balance: 9.47, held: 0 })
  const again = await store.start({ ...next, runId: 'again' })
  assert.ok(again.kind === 'started')
  assert.equal(again.held, cents(1))
  assert.ok(await store.discard(again.claim))
  assert.deepEqual(await account(), { balance: 9.47, held: 0 })
  assert.deepEqual(await reconcile(database, 'acme'), [])
})

test('a profile that may cost less holds less; a price that is not known is marked and costs nothing', async (t) => {
  const { open, grant, account, ledger, database } = await stage(t)
  const store = await open()
  await grant(10)
  const claim = await begin(store, {}, { limits: { maxCostCents: 0.2 } })
  assert.equal((await account())!.held, 0.2)
  await finish(store, claim, {})
  const { items } = await ledger.entries('acme', { runId: claim.runId })
  assert.deepEqual(
    items.map(({ account, amountCents, kind, unpriced, prices }) => ({ account, amountCents, kind, unpriced, prices })),
    ['usage', 'credit'].map((of) => ({ account: of, amountCents: 0, kind: 'model', unpriced: true, prices: 'test' })),
  )
  // The calls of the same run whose price is known are not free by that.
  await finish(store, await begin(store), { knownCostCents: 0.7 })
  assert.deepEqual(await account(), { balance: 9.3, held: 0 })
  // In the session that exists the cap is that of its own profile.
  const outcome = await store.start({
    tenantId: 'acme',
    runId: 'r2',
    sessionId: claim.sessionId,
    task: { profile: 'writer', prompt: 'x' },
  })
  assert.ok(outcome.kind === 'started')
  assert.equal(outcome.held, cents(0.2))
  assert.deepEqual(await reconcile(database, 'acme'), [])
})

test('a server may refuse models without a price', async (t) => {
  const { billing } = await stage(t, { priced: ['a/known'] })
  assert.equal(billing.refusesUnpriced, true)
  billing.checkModel('a/known')
  assert.throws(() => billing.checkModel('a/new'), { code: 'model_unpriced', status: 409, detail: { model: 'a/new' } })
})

test('a run that needs more holds more, until there is none; a delegated one takes what its parent has not spent', async (t) => {
  const { open, grant, account, billing, database } = await stage(t)
  const store = await open()
  await grant(3)
  const parent = await begin(store)
  assert.equal(await billing.extend('acme', parent.runId, cents(0.5)), cents(1.5))
  // 0.5 of 1.5 are spent: the child has one cent of what its parent holds.
  const child = await begin(store, {
    parent: { runId: parent.runId, rootId: parent.runId, depth: 1 },
    parentSpentCents: 0.5,
  })
  assert.deepEqual(await account(), { balance: 3, held: 1.5 })
  const other = await begin(store, {
    parent: { runId: parent.runId, rootId: parent.runId, depth: 1 },
    parentSpentCents: 0.5,
  })
  assert.deepEqual(await account(), { balance: 3, held: 2.5 }, 'what the parent does not have comes from the credit')
  assert.equal(await billing.extend('acme', parent.runId, cents(1)), cents(1))
  const why = await billing.extend('acme', parent.runId, cents(1.1))
  assert.ok(typeof why !== 'number')
  assert.equal(why.code, 'credits_exhausted')
  for (const claim of [child, other, parent]) await finish(store, claim, { costCents: 0.9 })
  assert.deepEqual(await account(), { balance: 0.3, held: 0 })
  assert.equal(await billing.extend('acme', parent.runId, cents(5)), Infinity, 'it is over')
  assert.deepEqual(await reconcile(database, 'acme'), [])
})

test('with a reserve a run neither begins nor goes on without it, so that no call takes the balance below 0', async (t) => {
  const { open, grant, account, billing, database } = await stage(t, { reserve: cents(0.5) })
  const store = await open()
  await grant(1.4)
  const claim = await begin(store)
  assert.equal(await codeOf(ask(store)), 'credits_exhausted', 'less than the reserve is left')
  await assert.rejects(billing.gate('acme'), { code: 'credits_exhausted' })
  assert.equal(await billing.extend('acme', claim.runId, cents(0.9)), cents(1.4))
  const why = await billing.extend('acme', claim.runId, cents(0.91))
  assert.ok(typeof why !== 'number')
  await finish(store, claim, { costCents: 1.4 })
  assert.deepEqual(await account(), { balance: 0, held: 0 })
  assert.deepEqual(await reconcile(database, 'acme'), [])
})

test('credit is spent by priority and then by what expires first; what expires is written off; debts are paid first', async (t) => {
  const { open, ledger, account, database } = await stage(t)
  const store = await open()
  const soon = new Date(Date.now() + 3_600_000).toISOString()
  await ledger.credit('acme', { cents: 1, kind: 'topup', reference: 'paid' })
  await ledger.credit('acme', { cents: 1, kind: 'grant', reference: 'gift', priority: 50, expiresAt: soon })
  assert.equal(await ledger.credit('acme', { cents: 1, kind: 'grant', reference: 'gift' }), false)
  await finish(store, await begin(store), { costCents: 0.4 })
  const left = async () => (await ledger.credits('acme')).credits.map(({ kind, remaining }) => [kind, remaining / 1e6])
  assert.deepEqual(await left(), [
    ['grant', 0.6],
    ['topup', 1],
  ])
  const expire = { text: `UPDATE billing_credits SET expires_at = now() - interval '1 second' WHERE kind = 'grant'` }
  await database.batch('acme', [expire])
  assert.deepEqual(await account(), { balance: 1, held: 0 })
  const claim = await begin(store)
  await finish(store, claim, { costCents: 2.5 })
  assert.deepEqual(await account(), { balance: -1.5, held: 0 })
  assert.equal(await codeOf(ask(store)), 'credits_exhausted')
  await ledger.credit('acme', { cents: 2, kind: 'topup', reference: 'more' })
  assert.deepEqual(await account(), { balance: 0.5, held: 0 })
  assert.deepEqual(await left(), [['topup', 0.5]])
  await ledger.debit('acme', { cents: 0.2, kind: 'refund', reference: 'back' })
  assert.deepEqual(await account(), { balance: 0.3, held: 0 })
  assert.deepEqual(await reconcile(database, 'acme'), [])
  const change = { text: `UPDATE ledger_entries SET amount = 0` }
  await assert.rejects(database.batch('acme', [change]), /never changed/)
  await assert.rejects(database.batch('acme', [{ text: 'DELETE FROM ledger_entries' }]), /never changed/)
})

test('a run that waits for people holds what it has spent and may spend, of its budgets as well, whoever goes on with it or ends it', async (t) => {
  const { open, grant, account, billing, budget, budgets, database } = await stage(t)
  const [store, other] = [await open(), await open()]
  await grant(3)
  await budget({ scope: 'tenant', per: 'day', capCents: 3 })
  const [goesOn, ends] = [await begin(store), await begin(store)]
  await store.append(ends, chunk(ends, 2, { type: 'usage', inputTokens: 1, outputTokens: 0, model: 'm' }))
  await billing.extend('acme', goesOn.runId, cents(0.5))
  for (const claim of [goesOn, ends]) assert.ok(await store.park(claim, async () => {}))
  assert.deepEqual(await account(), { balance: 3, held: 2.5 })
  assert.equal(await finish(store, ends, { costCents: 1 }), false, "it is nobody's")
  const orphan = await other.resume('acme', goesOn.runId)
  assert.equal(await billing.extend('acme', goesOn.runId, cents(1)), cents(2), 'the other process has more held for it')
  assert.ok(await finish(other, orphan!.claim, { costCents: 1.2 }))
  assert.ok(await other.endParked('acme', ends.runId, 'cancelled', { code: 'cancelled', message: 'x' }))
  assert.deepEqual(await account(), { balance: 0.8, held: 0 })
  const [{ uses } = assert.fail()] = await budgets()
  assert.deepEqual(
    uses.map(({ spentCents, heldCents }) => [spentCents, heldCents]),
    [[2.2, 0]],
  )
  assert.deepEqual(await reconcile(database, 'acme'), [])
})

test('whoever uses the id of a run again that retention has deleted is charged for both, each in entries of its own', async (t) => {
  const { open, grant, account, ledger, database } = await stage(t)
  const store = await open()
  await grant(10)
  const id = unique('run')
  for (const costCents of [1, 2, 3]) {
    await finish(store, await begin(store, { id }), { costCents, toolCalls: 1 })
    assert.deepEqual(await reconcile(database, 'acme'), [], 'while the run is there')
    await database.batch('acme', [
      { text: 'DELETE FROM runs WHERE id = $1', values: [id] },
      { text: 'DELETE FROM run_events WHERE run_id = $1', values: [id] },
    ])
  }
  assert.deepEqual(await account(), { balance: 3.97, held: 0 })
  const { items } = await ledger.entries('acme', { account: 'credit', runId: id })
  const charged = (of: string) => items.filter(({ kind }) => kind === of).map(({ amountCents }) => amountCents)
  assert.deepEqual(
    [charged('model'), charged('tool_calls')],
    [
      [-3, -2, -1],
      [-0.01, -0.01, -0.01],
    ],
  )
  // One of them under way is no charge of another one.
  await begin(store, { id })
  assert.deepEqual(await reconcile(database, 'acme'), [])
})
