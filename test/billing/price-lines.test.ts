import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pino } from 'pino'
import { Gauge, Registry } from 'prom-client'
import { microcentsPerCent, type Prices } from '#contracts/prices'
import { reconcile, upkeep } from '../../plugins/billing/upkeep.ts'
import { begin, cents, chunk, prices, stage } from './stage.ts'

type Stage = Awaited<ReturnType<typeof stage>>

/** The price table of a role with other prices of services, in microcents. */
const priced = (version: string, services: Partial<Prices['services']>): Prices => ({
  ...prices,
  version,
  services: { toolCall: 0, sandboxSecond: 0, storedGibDay: 0, ...services },
})
/** What each line of a run, or of the tenant, took, and by which prices. */
const linesOf = async ({ ledger }: Stage, filter: { runId?: string; kind?: string }) => {
  const { items } = await ledger.entries('acme', { account: 'credit', ...filter } as never)
  return Object.fromEntries(items.map(({ kind, amountCents, prices: by }) => [kind, [cents(-amountCents), by]]))
}
/** All lines together are what is gone, and the books are in order. */
async function balances(s: Stage, granted: number, spent: number): Promise<void> {
  assert.deepEqual(await s.account(), { balance: (cents(granted) - spent) / microcentsPerCent, held: 0 })
  assert.deepEqual(await reconcile(s.database, 'acme'), [])
}
const ended = { status: 'ok', sessionStatus: 'idle', result: 'done', tail: undefined } as const
const usage = { inputTokens: 1, outputTokens: 0, model: 'm', costCents: 0 }

test('tool calls are charged by the call, rounded once for the run, and as often as the run ends', async (t) => {
  const s = await stage(t)
  await s.grant(10)
  const store = await s.open({ prices: priced('p1', { toolCall: 0.4 }) })
  for (const [toolCalls, charged] of [
    [0, undefined],
    // Less than half a microcent is nothing, and nothing has no line.
    [1, undefined],
    [3, 1],
    [1_000, 400],
  ] as const) {
    const claim = await begin(store)
    await store.finish({ ...ended, claim, usage, toolCalls })
    await store.finish({ ...ended, claim, usage, toolCalls })
    const { tool_calls: line } = await linesOf(s, { runId: claim.runId })
    assert.deepEqual(line, charged && [charged, 'p1'], `${toolCalls} calls`)
  }
  const free = await s.open({ prices: priced('p2', {}) })
  const claim = await begin(free)
  await free.finish({ ...ended, claim, usage, toolCalls: 1_000 })
  assert.deepEqual(await linesOf(s, { runId: claim.runId }), {})
  await balances(s, 10, 401)
})

test('the calls of a run that another process ends are charged as far as its log has them', async (t) => {
  const s = await stage(t)
  await s.grant(10)
  const store = await s.open({ prices: priced('p1', { toolCall: cents(0.5) }) })
  const claim = await begin(store)
  const call = (id: string) => ({ type: 'tool_call', id, name: 'calculate', arguments: {} }) as const
  const result = (id: string) => ({ type: 'tool_result', id, name: 'calculate', ok: true, content: '2' }) as const
  await store.append(claim, chunk(claim, 2, call('a'), result('a'), call('b'), result('b')))
  const other = await s.open({ prices: priced('p2', { toolCall: cents(1) }) })
  await other.steal('acme', claim.runId, 'cancelled', { code: 'cancelled', message: 'x' })
  assert.deepEqual(await linesOf(s, { runId: claim.runId }), { tool_calls: [cents(2), 'p2'] })
  assert.equal(await store.finish({ ...ended, claim, usage, toolCalls: 2 }), false)
  await balances(s, 10, cents(2))
})

test('seconds of a sandbox are those awake, of a chat as of a run, without those in which its run waited for people; without a sandbox there are none', async (t) => {
  const s = await stage(t)
  await s.grant(10)
  const rate = 333.3
  const store = await s.open({ prices: priced('p1', { sandboxSecond: rate }) })
  const chat = await s.published()
  let spent = 0
  for (const [sandbox, waitedMs, task] of [
    [undefined, 0, {}],
    [undefined, 0, chat('ann', 'key')],
    [{ idleSeconds: 20, runSeconds: 7 }, 0, {}],
    [{ idleSeconds: 20, runSeconds: 7 }, 0, chat('ann', 'key')],
    [{ idleSeconds: 0, runSeconds: 5_000 }, 0, {}],
    [{ idleSeconds: 3, runSeconds: 5_000 }, 600_000, chat('bob', 'key')],
  ] as const) {
    const claim = await begin(store, task)
    assert.equal(claim.publicRunId, task.chat?.publicRunId)
    const before = {
      text: `UPDATE runs SET started_at = started_at - interval '1000 seconds', waited_ms = $2 WHERE id = $1`,
      values: [claim.runId, waitedMs],
    }
    await s.database.batch('acme', [before])
    await store.finish({ ...ended, claim, usage, ...(sandbox ? { sandbox } : {}) })
    const took = {
      text: 'SELECT extract(epoch FROM finished_at - started_at)::float8 AS seconds FROM runs WHERE id = $1',
      values: [claim.runId],
    }
    const [[run]] = await s.database.batch<[{ seconds: number }[]]>('acme', [took])
    const { idleSeconds = 0, runSeconds = 0 } = sandbox ?? {}
    const awake = idleSeconds + Math.round(Math.min(run!.seconds - waitedMs / 1_000, runSeconds))
    const expected = Math.round(awake * rate)
    spent += expected
    assert.deepEqual(await linesOf(s, { runId: claim.runId }), sandbox ? { sandbox: [expected, 'p1'] } : {})
  }
  await balances(s, 10, spent)
})

test('stored bytes are charged by the part of a GiB, once a day, to tenants with an account', async (t) => {
  const s = await stage(t)
  await s.grant(10)
  const gib = 1_073_741_824
  const stored = (tenant: string, bytes: number) =>
    s.database.batch(tenant, [
      {
        text: `INSERT INTO tenant_storage (tenant_id, bytes) VALUES ($1, $2) ON CONFLICT (tenant_id) DO UPDATE SET bytes = $2`,
        values: [tenant, bytes],
      },
    ])
  const pass = (by: Prices) =>
    upkeep({
      database: s.database,
      prices: by,
      signal: new AbortController().signal,
      log: pino({ level: 'silent' }),
      audited: new Gauge({ name: 'audited', help: 'x', registers: [new Registry()] }),
    })
  await stored('globex', gib)
  await stored('acme', gib)
  await pass(priced('p0', {}))
  // Less than a microcent a day.
  await stored('acme', 1_000)
  await pass(priced('p1', { storedGibDay: cents(0.5) }))
  assert.deepEqual(await linesOf(s, { kind: 'storage' }), {})
  await stored('acme', 1.5 * gib)
  await pass(priced('p2', { storedGibDay: cents(0.5) }))
  await stored('acme', 4 * gib)
  await pass(priced('p3', { storedGibDay: cents(0.5) }))
  assert.deepEqual(await linesOf(s, { kind: 'storage' }), { storage: [cents(0.75), 'p2'] })
  assert.equal(await s.account('globex'), undefined, 'who has no account owes nothing')
  await balances(s, 10, cents(0.75))
})
