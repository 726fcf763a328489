import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pino } from 'pino'
import { Gauge, Registry } from 'prom-client'
import { blocksAnother } from '#testing'
import { upkeep } from '../../plugins/billing/upkeep.ts'
import { begin, cents, prices, stage } from './stage.ts'

test('storage is charged once a day, and every day; what expired is written off, and a hold without a run is released and told', async (t) => {
  const { open, grant, account, ledger, database } = await stage(t)
  const store = await open()
  await grant(10)
  const day = Date.now() + 86_400_000
  await ledger.credit('acme', { cents: 5, kind: 'grant', reference: 'soon', expiresAt: new Date(day).toISOString() })
  const claim = await begin(store)
  await database.batch('acme', [
    { text: `UPDATE billing_credits SET expires_at = now() - interval '1 second' WHERE expires_at IS NOT NULL` },
    {
      text: `INSERT INTO tenant_storage (tenant_id, bytes) VALUES ('acme', 3221225472) ON CONFLICT (tenant_id) DO UPDATE SET bytes = 3221225472`,
    },
    {
      text: `INSERT INTO billing_holds (tenant_id, run_id, amount, budgets, created_at) VALUES ('acme', 'nobody', 500000, '[]', now() - interval '1 hour')`,
    },
    { text: `UPDATE billing_accounts SET held = held + 500000` },
  ])
  const audited = new Gauge({ name: 'audited', help: 'x', registers: [new Registry()] })
  const told: string[] = []
  const log = pino({ level: 'error' }, { write: (line: string) => void told.push(line) })
  const pass = (storedGibDay = cents(0.5)) => {
    const services = { ...prices.services, storedGibDay }
    return upkeep({ database, prices: { ...prices, services }, signal: new AbortController().signal, log, audited })
  }
  await pass()
  await pass()
  assert.deepEqual(await account(), { balance: 8.5, held: 1 })
  const { items } = await ledger.entries('acme', { account: 'credit', kind: 'storage' })
  assert.deepEqual(
    items.map(({ amountCents, prices: version }) => [amountCents, version]),
    [[-1.5, 'test']],
  )
  assert.deepEqual([told, (await audited.get()).values[0]!.value], [[], 0])
  // Yesterday was charged yesterday, and that is no reason not to charge today.
  const yesterday = new Date(Date.now() - 86_400_000).toISOString().slice(0, 10)
  await database.batch('globex', [
    { text: `INSERT INTO tenant_storage (tenant_id, bytes) VALUES ('globex', 1073741824)` },
    { text: `SELECT billing_debit('globex', 700000, 'usage', 'storage', $1, NULL, 'then')`, values: [yesterday] },
  ])
  await pass()
  const days = (await ledger.entries('globex', { account: 'credit', kind: 'storage' })).items
  assert.deepEqual(
    days.map(({ reference, amountCents, prices: version }) => [reference, amountCents, version]),
    [
      [new Date().toISOString().slice(0, 10), -0.5, 'test'],
      [yesterday, -0.7, 'then'],
    ],
  )
  const wrong = async () => (await audited.get()).values[0]!.value
  await database.batch('acme', [{ text: 'UPDATE billing_accounts SET balance = balance - 1' }])
  await pass()
  assert.equal(await wrong(), 2)
  assert.match(told.join(), /"tenantId":"acme".*does not add up/)
  // A tenant whose turn fails keeps nobody else from theirs, and is told of.
  await database.batch('acme', [{ text: 'UPDATE tenant_storage SET bytes = 9223372036854775807' }])
  await database.batch('globex', [{ text: 'UPDATE billing_accounts SET balance = balance - 1' }])
  told.length = 0
  await pass(cents(2_000))
  assert.match(told[0]!, /bigint out of range.*"tenantId":"acme"/)
  assert.ok(told.length > 1 && told.slice(1).every((line) => line.includes('"tenantId":"globex"')))
  await store.discard(claim)
})

test('what was spent of budgets in past periods is forgotten, and kept under a legal hold', async (t) => {
  const { database } = await stage(t)
  const audited = new Gauge({ name: 'audited', help: 'x', registers: [new Registry()] })
  const pass = () =>
    upkeep({ database, prices, signal: new AbortController().signal, log: pino({ level: 'silent' }), audited })
  const uses = async () => {
    const look = { text: 'SELECT subject FROM billing_budget_uses ORDER BY subject' }
    return (await database.batch<[{ subject: string }[]]>('acme', [look]))[0].map(({ subject }) => subject)
  }
  await database.batch('acme', [
    {
      text: `INSERT INTO billing_budgets (tenant_id, id, scope, subject, per, cap) VALUES ('acme', 'bud_1', 'end_user', '*', 'day', 100)`,
    },
    {
      text: `INSERT INTO billing_budget_uses (tenant_id, budget_id, subject, period, spent, held)
             VALUES ('acme', 'bud_1', 'held', now() - interval '50 days', 5, 1), ('acme', 'bud_1', 'new', now(), 5, 0), ('acme', 'bud_1', 'old', now() - interval '50 days', 5, 0)`,
    },
    { text: `UPDATE tenants SET legal_hold = true WHERE id = 'acme'` },
  ])
  await pass()
  assert.deepEqual(await uses(), ['held', 'new', 'old'])
  await database.batch('acme', [{ text: `UPDATE tenants SET legal_hold = false WHERE id = 'acme'` }])
  await pass()
  assert.deepEqual(await uses(), ['held', 'new'])
})

test('uses are forgotten a page after the other, those of budgets that are gone as well, though not under a legal hold', async (t) => {
  const { database, budget, budgets } = await stage(t)
  const audited = new Gauge({ name: 'audited', help: 'x', registers: [new Registry()] })
  const pass = () =>
    upkeep({ database, prices, signal: new AbortController().signal, log: pino({ level: 'silent' }), audited })
  await budget({ scope: 'end_user', per: 'day', capCents: 5 }, { scope: 'profile', per: 'day', capCents: 5 })
  const all = await budgets()
  const [people, profiles] = ['end_user', 'profile'].map((scope) => all.find((one) => one.scope === scope)!.id)
  await database.batch('acme', [
    {
      text: `INSERT INTO billing_budget_uses (tenant_id, budget_id, subject, period, held)
             SELECT 'acme', $1, n::text, now(), n % 2 FROM generate_series(1, 2500) n
             UNION ALL SELECT 'acme', $2, n::text, now() - interval '50 days', 0 FROM generate_series(1, 1500) n
             UNION ALL SELECT 'acme', $2, 'new', now(), 0`,
      values: [people, profiles],
    },
    { text: `UPDATE tenants SET legal_hold = true WHERE id = 'acme'` },
  ])
  await budget({ scope: 'profile', per: 'day', capCents: 5 })
  const left = async () => {
    const look = `SELECT (SELECT count(*)::int FROM billing_budget_uses) AS uses, (SELECT count(*)::int FROM billing_former_budgets) AS former`
    return (await database.batch<[object[]]>('acme', [{ text: look }]))[0][0]
  }
  await pass()
  assert.deepEqual(await left(), { uses: 4_001, former: 1 })
  assert.equal((await audited.get()).values[0]!.value, 0)
  await database.batch('acme', [{ text: `UPDATE tenants SET legal_hold = false WHERE id = 'acme'` }])
  await pass()
  assert.deepEqual(await left(), { uses: 1, former: 0 })
})

test('while uses wait to be forgotten, the account of the tenant is free', async (t) => {
  const { database, grant, budget, budgets } = await stage(t)
  await grant(1)
  await budget({ scope: 'tenant', per: 'day', capCents: 5 })
  const old = `INSERT INTO billing_budget_uses (tenant_id, budget_id, subject, period) VALUES ('acme', $1, '', now() - interval '50 days')`
  await database.batch('acme', [{ text: old, values: [(await budgets())[0]!.id] }])
  const audited = new Gauge({ name: 'audited', help: 'x', registers: [new Registry()] })
  const log = pino({ level: 'silent' })
  let pass: Promise<void> | undefined
  // As the write of a profile does.
  await database.as('claims').tenant('acme', async (tx) => {
    await tx.query({ text: `SELECT 1 FROM tenants WHERE id = 'acme' FOR UPDATE` })
    pass = upkeep({ database, prices, signal: new AbortController().signal, log, audited })
    await blocksAnother(tx)
    await tx.query({ text: `SELECT 1 FROM billing_accounts WHERE tenant_id = 'acme' FOR UPDATE NOWAIT` })
  })
  await pass
  assert.equal((await audited.get()).values[0]!.value, 0)
})

test('tool calls and seconds of a sandbox are charged with the run, by the prices of the role', async (t) => {
  const { open, grant, account, ledger, database } = await stage(t)
  const store = await open()
  await grant(10)
  const claim = await begin(store)
  const began = {
    text: `UPDATE runs SET started_at = started_at - interval '10 seconds' WHERE id = $1`,
    values: [claim.runId],
  }
  await database.batch('acme', [began])
  await store.finish({
    claim,
    status: 'ok',
    sessionStatus: 'idle',
    result: 'done',
    usage: { inputTokens: 1, outputTokens: 0, model: 'm', costCents: 1 },
    toolCalls: 5,
    sandbox: { idleSeconds: 20, runSeconds: 7 },
    tail: undefined,
  })
  const { items } = await ledger.entries('acme', { account: 'credit', runId: claim.runId })
  assert.deepEqual(Object.fromEntries(items.map(({ kind, amountCents }) => [kind, amountCents])), {
    model: -1,
    tool_calls: -0.05,
    sandbox: -0.027,
  })
  assert.equal((await account())!.balance, 8.923)
})
