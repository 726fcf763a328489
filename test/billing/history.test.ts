import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import type { Database } from '#contracts/database'
import type { Claim } from '#contracts/run-store'
import { reconcile } from '../../plugins/billing/upkeep.ts'
import { ask, begin, cents, chunk, finish, profile, stage, unique } from './stage.ts'

const usage = (inputTokens: number, model = 'm') => ({ type: 'usage', inputTokens, outputTokens: 0, model }) as const

/** What may happen, with how much it costs, and to which of the runs that are open. */
const step = fc.record({
  what: fc.constantFrom(
    'begin',
    'delegate',
    'wait',
    'use',
    'extend',
    'finish',
    'unpriced',
    'discard',
    'cancel',
    'park',
    'decide',
    'kill',
    'grant',
    'take',
  ),
  which: fc.nat(50),
  amount: fc.nat(3_000_000),
})

test('after any history with kills ledger, meters and runs say the same to the microcent', async (t) => {
  const { open, database, grant, billing, ledger, budget } = await stage(t)
  await grant(40)
  await budget({ scope: 'tenant', per: 'day', capCents: 60 }, { scope: 'session', per: 'run', capCents: 4 })
  const survivor = await open()
  let store = await open()
  let seq = 2
  const openRuns = new Map<string, Claim>()
  const parked: string[] = []

  const walk = async ({ what, which, amount }: { what: string; which: number; amount: number }): Promise<void> => {
    const claims = [...openRuns.values()]
    const claim = claims[which % Math.max(claims.length, 1)]
    const costCents = amount / 1e6
    const began = async (outcome: Awaited<ReturnType<typeof ask>>): Promise<void> => {
      if (outcome.kind === 'started') openRuns.set(outcome.claim.runId, outcome.claim)
    }
    if (what === 'begin') return began(await ask(store, {}, amount % 2 ? { limits: { maxCostCents: costCents } } : {}))
    if (what === 'grant') return void (await grant(costCents + 0.000001))
    if (what === 'take') {
      const debit = { cents: costCents, kind: 'correction', reference: unique('c') } as const
      return void (amount > 0 && (await ledger.debit('acme', debit)))
    }
    if (what === 'decide') {
      const runId = parked.pop()
      if (runId === undefined) return
      if (amount % 2)
        return void (await survivor.endParked('acme', runId, 'cancelled', { code: 'cancelled', message: 'x' }))
      const orphan = await store.resume('acme', runId)
      return void (orphan && openRuns.set(runId, orphan.claim))
    }
    if (!claim) return
    if (what === 'delegate') {
      const parent = { runId: claim.runId, rootId: claim.runId, depth: 1 }
      return began(await ask(store, { parent, parentSpentCents: costCents }))
    }
    if (what === 'wait') {
      const task = { profile: profile().name, prompt: 'next' }
      const order = { tenantId: 'acme', sessionId: claim.sessionId, task, interrupt: amount % 2 === 0 }
      return void (await store.enqueue({ ...order, runId: unique('wait') }))
    }
    if (what === 'use') return void (await store.append(claim, chunk(claim, (seq += 10), usage(amount % 3), usage(0))))
    if (what === 'extend') return void (await billing.extend('acme', claim.runId, amount))
    if (what === 'kill') {
      await kill(database, claim)
      await survivor.sweepOrphans()
      store = await open()
      return openRuns.clear()
    }
    openRuns.delete(claim.runId)
    if (what === 'park' && (await store.park(claim, async () => {}))) parked.push(claim.runId)
    if (what === 'finish') await finish(store, claim, { costCents, toolCalls: which })
    if (what === 'unpriced')
      await finish(store, claim, { knownCostCents: amount % 4 ? costCents : undefined, toolCalls: which })
    if (what === 'discard') await store.discard(claim)
    if (what === 'cancel') await survivor.steal('acme', claim.runId, 'cancelled', { code: 'cancelled', message: 'x' })
  }

  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 25 }), async (steps) => {
      for (const one of steps) await walk(one)
      // Some happen at once.
      await Promise.all(steps.slice(0, 6).map((one) => walk({ ...one, what: 'begin' })))
      assert.deepEqual(await reconcile(database, 'acme'), [])
    }),
    { numRuns: 12 },
  )
  // The reconciliation sees what it is for: runs of both kinds, which a walk at random may have none of.
  await budget()
  await grant(10)
  await finish(store, await begin(store), { costCents: 1 })
  await finish(store, await begin(store), { knownCostCents: 1 })
  assert.deepEqual(await reconcile(database, 'acme'), [])
  const counted = {
    text: `SELECT count(*)::int AS n, sum(cost_microcents)::float8 AS cost FROM run_meters WHERE tenant_id = 'acme'`,
  }
  const [[meters]] = await database.batch<[{ n: number; cost: number }[]]>('acme', [counted])
  assert.ok(meters!.n > 20 && meters!.cost > 0, JSON.stringify(meters))
  // A microcent in either column of the meters, or in what the runs say, is seen.
  const meter = (column: string) => (by: string) => `UPDATE run_meters SET ${column} = ${column} ${by} 1`
  const run = (field: string) => (by: string) =>
    `UPDATE runs SET usage = jsonb_set(usage::jsonb, '{${field}}', to_jsonb((usage ->> '${field}')::numeric ${by} 0.000001))::json
     WHERE usage ->> '${field}' IS NOT NULL`
  const lies = {
    'every run that was metered is charged what its meter says': ['cost_microcents', 'known_microcents'].map(meter),
    'every charge has a run that says the same': ['costCents', 'knownCostCents'].map(run),
  }
  for (const [check, statements] of Object.entries(lies)) {
    for (const lie of statements) {
      await database.batch('acme', [{ text: lie('+') }])
      const wrong = await reconcile(database, 'acme')
      assert.ok(wrong.length > 0 && wrong.every((one) => one.check === check), lie('+'))
      assert.ok(
        wrong.every(({ expected, found }) => Math.abs(expected - found) === 1),
        lie('+'),
      )
      await database.batch('acme', [{ text: lie('-') }])
      assert.deepEqual(await reconcile(database, 'acme'), [])
    }
  }
  // Half of a transfer, of days ago: whoever looks at everything sees it.
  const half = `INSERT INTO ledger_entries (tenant_id, account, amount, kind, reference, created_at)
    VALUES ('acme', 'grants', 5, 'grant', 'half', now() - interval '70 hours')`
  await database.batch('acme', [{ text: half }])
  assert.deepEqual(await reconcile(database, 'acme', new Date(Date.now() - 48 * 3_600_000)), [])
  assert.deepEqual(await reconcile(database, 'acme'), [
    { check: 'every transfer adds up to 0', subject: 'grant half', expected: 0, found: 5 },
  ])
  const more = { text: `UPDATE billing_accounts SET balance = balance + ${cents(1)}` }
  await database.batch('acme', [more])
  const checks = new Set((await reconcile(database, 'acme')).map(({ check }) => check))
  assert.ok(checks.has('the balance is the sum of the ledger'))
})

/** The process that began the run is gone, as another one finds out by its lease. */
async function kill(database: Database, { tenantId, runId }: Claim): Promise<void> {
  const find = {
    text: 'SELECT claim_owner AS owner FROM runs WHERE tenant_id = $1 AND id = $2',
    values: [tenantId, runId],
  }
  const [[row]] = await database.batch<[{ owner: string }[]]>(tenantId, [find])
  await database.systemBatch([
    { text: `UPDATE instances SET lease_until = now() - interval '1 second' WHERE id = $1`, values: [row!.owner] },
  ])
}
