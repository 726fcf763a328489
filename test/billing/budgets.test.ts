import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Budget } from '../../plugins/billing/schema.ts'
import { reconcile } from '../../plugins/billing/upkeep.ts'
import { ask, begin, cents, finish, stage } from './stage.ts'

test('every scope has its cap, parallel runs and delegated ones do not pass it together, and the refusal names it', async (t) => {
  const { open, grant, budget, budgets, billing, database } = await stage(t)
  const store = await open()
  await grant(100)
  await budget(
    { scope: 'tenant', per: 'month', capCents: 50 },
    { scope: 'profile', subject: 'writer', per: 'day', capCents: 2.5 },
    { scope: 'profile', subject: 'other', per: 'day', capCents: 0 },
  )
  const outcomes = await Promise.all(Array.from({ length: 10 }, () => ask(store)))
  const [started, refused] = ['started', 'unfunded'].map((kind) => outcomes.filter((one) => one.kind === kind))
  assert.deepEqual([started!.length, refused!.length], [3, 7])
  const [why] = refused!.map((one) => (one.kind === 'unfunded' ? one.why : assert.fail()))
  assert.deepEqual([why!.status, why!.code], [402, 'budget_exceeded'])
  const { id, ...named } = why!.detail['budget'] as { id: string }
  assert.deepEqual(named, { scope: 'profile', subject: 'writer', per: 'day', capCents: 2.5 })
  assert.match(why!.message, /budget of profile 'writer' per day, 2\.5 cents/)
  assert.equal((await ask(store, { profile: 'elsewhere' })).kind, 'started', 'another profile has no such cap')

  const claims = started!.map((one) => (one.kind === 'started' ? one.claim : assert.fail()))
  for (const claim of claims) await finish(store, claim, { costCents: 0.5 })
  const used = (await budgets()).find((one) => one.id === id)!.uses
  assert.deepEqual(used, [{ subject: 'writer', runId: null, spentCents: 1.5, heldCents: 0, percent: 60 }])
  // A delegated run counts, and what its parent holds is not counted twice.
  const parent = await begin(store)
  await begin(store, { parent: { runId: parent.runId, depth: 1 } })
  const more = await billing.extend('acme', parent.runId, cents(0.5))
  assert.ok(typeof more !== 'number')
  assert.equal(more.code, 'budget_exceeded')
  // Raised, it goes on: also for the run that is under way.
  await budget(
    { scope: 'tenant', per: 'month', capCents: 50 },
    { scope: 'profile', subject: 'writer', per: 'day', capCents: 10 },
  )
  assert.equal(await billing.extend('acme', parent.runId, cents(0.5)), cents(1.5))
  assert.deepEqual(await reconcile(database, 'acme'), [])
})

test('a budget of each person, key or session counts each by itself; one per run counts a run with those that it delegates', async (t) => {
  const { open, grant, budget, budgets, billing, database, published } = await stage(t)
  const store = await open()
  await grant(100)
  await budget(
    { scope: 'end_user', per: 'day', capCents: 1 },
    { scope: 'key', subject: 'key_1', per: 'day', capCents: 1 },
    { scope: 'tenant', per: 'run', capCents: 3 },
    { scope: 'session', per: 'month', capCents: 50 },
  )
  const chat = await published()
  const ann = await begin(store, chat('ann', 'key_2'))
  assert.equal((await ask(store, chat('bob', 'key_1'))).kind, 'started')
  for (const [who, key, scope] of [
    ['ann', 'key_3', 'end_user'],
    ['eve', 'key_1', 'key'],
  ] as const) {
    const refused = await ask(store, chat(who, key))
    assert.ok(refused.kind === 'unfunded')
    assert.equal((refused.why.detail['budget'] as { scope: string }).scope, scope)
  }

  // A run of the API says who it is for, and what is delegated counts for the person and the key of its parent.
  const api = await ask(store, { metadata: { end_user_id: 'ann' } })
  assert.ok(api.kind === 'unfunded')
  const below = await begin(store, { parent: { runId: ann.runId, depth: 1 } })
  await finish(store, await begin(store, { parent: { runId: below.runId, rootId: ann.runId, depth: 2 } }), {
    knownCostCents: 0.5,
  })
  await finish(store, below, { costCents: 0.25 })
  const delegated = await store.delegatedCents('acme', ann.runId)
  assert.deepEqual([...delegated], [[below.runId, 0.75]], 'each with all that it has led to')
  await finish(store, ann, { costCents: 0 })
  const [person] = (await budgets()).filter(({ scope }) => scope === 'end_user')
  assert.deepEqual(person!.uses.find(({ subject }) => subject === 'ann')!.spentCents, 0.75)

  const root = await begin(store)
  const parent = { runId: root.runId, rootId: root.runId, depth: 1 }
  const child = await begin(store, { parent, parentSpentCents: 1 })
  await finish(store, child, { costCents: 2 })
  const why = await billing.extend('acme', root.runId, cents(1.5))
  assert.ok(typeof why !== 'number', 'the child has spent two of three')
  assert.equal((why.detail['budget'] as { per: string }).per, 'run')
  // The session of the root counts what its run has delegated, and the session of the child does not count by itself.
  const [session] = (await budgets()).filter(({ scope }) => scope === 'session')
  const usedOf = (id: string) => session!.uses.find(({ subject }) => subject === id)?.spentCents
  assert.deepEqual([usedOf(root.sessionId), usedOf(child.sessionId)], [2, undefined])
  await finish(store, root, { costCents: 1 })
  const perRun = (await budgets()).find(({ per }) => per === 'run')!
  assert.equal(
    perRun.uses.find(({ runId }) => runId === root.runId),
    undefined,
    'with the run its count goes',
  )
  assert.deepEqual(await reconcile(database, 'acme'), [])
})

test('80 and 100 percent are told once each, by webhook and in the usage; another period begins at nothing', async (t) => {
  const { open, grant, budget, billing, budgets, database } = await stage(t)
  const store = await open()
  await grant(100)
  const webhookUrl = 'https://example.com/hook'
  await budget({ scope: 'tenant', per: 'day', capCents: 10, webhookUrl })
  const told = async () => {
    const list = { text: 'SELECT body, run_id FROM webhook_deliveries ORDER BY created_at' }
    const [rows] = await database.batch<[{ body: string; run_id: null }[]]>('acme', [list])
    return rows.map(({ body }) => (JSON.parse(body) as { data: { percent: number } }).data.percent)
  }
  const spend = async (costCents: number) => finish(store, await begin(store), { costCents })
  await spend(7.9)
  assert.deepEqual([await told(), await billing.alerts('acme')], [[], []])
  await spend(0.1)
  await spend(0.1)
  assert.deepEqual(await told(), [80])
  await spend(2)
  assert.deepEqual(await told(), [80, 100])
  const { id } = (await budgets())[0]!
  const alert = { budgetId: id, scope: 'tenant', subject: '', per: 'day', percent: 101, spentCents: 10.1, capCents: 10 }
  assert.deepEqual(await billing.alerts('acme'), [alert])
  assert.equal((await ask(store)).kind, 'unfunded')
  await budget({ scope: 'tenant', per: 'day', capCents: 20, webhookUrl })
  // What a run under way has spent counts, and is told of, before it ends.
  const claim = await begin(store)
  assert.equal(await billing.extend('acme', claim.runId, cents(5.8)), cents(6.8))
  assert.deepEqual(await told(), [80, 100])
  assert.equal(await billing.extend('acme', claim.runId, cents(6)), cents(7))
  assert.deepEqual(await told(), [80, 100, 80], 'of the raised cap')
  const raised: Budget = { scope: 'tenant', per: 'day', capCents: 20, webhookUrl }
  await budget(raised)
  assert.equal(await billing.extend('acme', claim.runId, cents(6.0001)), cents(7.0001))
  assert.deepEqual(await told(), [80, 100, 80], 'of a cap that was put again as it was nothing is told twice')
  assert.equal(await billing.extend('acme', claim.runId, cents(6)), cents(7.0001))
  const [running] = (await budgets())[0]!.uses
  assert.deepEqual([running!.spentCents, running!.heldCents, running!.percent], [16.1, 1.0001, 80])
  assert.equal((await billing.alerts('acme'))[0]!.spentCents, 16.1)
  assert.deepEqual(await reconcile(database, 'acme'), [])
  await finish(store, claim, { costCents: 7 })
  assert.deepEqual(await told(), [80, 100, 80])
  const yesterday = { text: `UPDATE billing_budget_uses SET period = period - 1` }
  await database.batch('acme', [yesterday])
  assert.deepEqual(await billing.alerts('acme'), [])
  assert.equal((await ask(store)).kind, 'started')
})

test('budgets are replaced without touching a use, of which there may be a million', async (t) => {
  const { open, grant, budget, budgets, database } = await stage(t)
  const store = await open()
  await grant(100)
  await budget({ scope: 'tenant', per: 'day', capCents: 2 }, { scope: 'profile', per: 'day', capCents: 2 })
  await finish(store, await begin(store), { costCents: 2 })
  assert.equal((await ask(store)).kind, 'unfunded')
  await database.as('claims').tenant('acme', async (tx) => {
    await tx.query({ text: 'SELECT 1 FROM billing_budget_uses FOR UPDATE' })
    await budget({ scope: 'tenant', per: 'day', capCents: 4 })
  })
  const claim = await begin(store)
  const [only, ...more] = await budgets()
  assert.deepEqual([only!.uses.map(({ spentCents }) => spentCents), more], [[2], []])
  await finish(store, claim, { costCents: 1 })
  assert.deepEqual(await reconcile(database, 'acme'), [])
})

test('the agents of a workflow have one budget per run, which is shown until the day after the last of them', async (t) => {
  const { open, grant, budget, budgets, billing, database } = await stage(t)
  const store = await open()
  await grant(100)
  await budget({ scope: 'tenant', per: 'run', capCents: 3 })
  // Nothing is held for the workflow itself.
  const parent = { runId: 'wfr_1', rootId: 'wfr_1', depth: 1 }
  await finish(store, await begin(store, { parent }), { costCents: 2.5 })
  const next = await begin(store, { parent })
  assert.equal(await billing.extend('acme', next.runId, cents(0.5)), cents(0.5), 'what the first one left')
  const why = await billing.extend('acme', next.runId, cents(0.6))
  assert.ok(typeof why !== 'number')
  assert.deepEqual([why.code, (why.detail['budget'] as { per: string }).per], ['budget_exceeded', 'run'])
  await finish(store, next, { costCents: 0.6 })
  assert.equal((await ask(store, { parent })).kind, 'unfunded')
  assert.equal((await ask(store)).kind, 'started', 'another run has a budget of its own')
  const [alert] = await billing.alerts('acme')
  assert.deepEqual([alert!.per, alert!.percent], ['run', 103])
  await database.batch('acme', [{ text: 'UPDATE billing_budget_uses SET period = period - 2' }])
  assert.deepEqual(await billing.alerts('acme'), [])
  assert.ok((await budgets())[0]!.uses.every(({ runId }) => runId !== 'wfr_1'))
  assert.deepEqual(await reconcile(database, 'acme'), [])
})

test('what began before the end of a period, and waited, takes nothing away from what the next one has counted', async (t) => {
  const { open, grant, budget, database } = await stage(t)
  const store = await open()
  await grant(100)
  await budget({ scope: 'tenant', per: 'day', capCents: 3 })
  const uses = async () =>
    database.batch<[{ spent: number; told: number; ahead: number }[]]>('acme', [
      { text: `SELECT spent::float8, told, period - billing_period('day') AS ahead FROM billing_budget_uses` },
    ])
  await finish(store, await begin(store), { costCents: 2.5 })
  // As if it had been written by a transaction that began after midnight.
  await database.batch('acme', [{ text: 'UPDATE billing_budget_uses SET period = period + 1' }])
  await finish(store, await begin(store), { costCents: 0.25 })
  assert.deepEqual(await uses(), [[{ spent: cents(2.75), told: 80, ahead: 1 }]])
  assert.equal((await begin(store).then(() => ask(store))).kind, 'unfunded', 'and the cap holds')
})

test('what a run holds is added to its own uses of budgets, and no other use of the tenant is read', async (t) => {
  const { grant, budget, budgets, database } = await stage(t)
  await grant(100)
  await budget({ scope: 'end_user', per: 'day', capCents: 1 })
  const [one] = await budgets()
  const claims = database.as('claims')
  const uses = `INSERT INTO billing_budget_uses (tenant_id, budget_id, subject, period)
    SELECT 'acme', '${one!.id}', 'user-' || n, now() FROM generate_series(1, 10000) n`
  await claims.batch('acme', [{ text: uses }, { text: 'ANALYZE billing_budget_uses' }])
  const hold = `INSERT INTO billing_holds (tenant_id, run_id, amount, budgets) VALUES ('acme', 'run', 0, '[["${one!.id}", "user-7", ""]]')`
  const explain = (call: string) => ({
    text: `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT ${call} FROM billing_holds`,
  })
  type Plans = { 'QUERY PLAN': { Plan: Record<'Shared Hit Blocks' | 'Shared Read Blocks', number> }[] }[]
  for (const call of [`billing_hold_budgets('acme', budgets, 5)`, `billing_release('acme', run_id)`]) {
    // What the catalog is read for the first time does not count.
    const calls = [{ text: hold }, explain(call), { text: 'DELETE FROM billing_holds' }]
    const rows = await claims.batch<Plans[]>('acme', [...calls, ...calls])
    const { Plan: plan } = rows.at(-2)![0]!['QUERY PLAN'][0]!
    const pages = plan['Shared Hit Blocks'] + plan['Shared Read Blocks']
    assert.ok(pages < 60, `${call} reads ${pages} pages`)
  }
})
