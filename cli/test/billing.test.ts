import assert from 'node:assert/strict'
import { test } from 'node:test'
import { freshDatabase } from '#testing'
import { stage } from '../../plugins/billing/test/stage.ts'
import { run } from './spawned.ts'

test('reconcile proves that the ledgers of all tenants add up, and ends with code 1 where one does not', async (t) => {
  const POSTGRES_DSN = await freshDatabase(t)
  const { operator, database } = await stage(t, { POSTGRES_DSN })
  await operator('POST', '/api/billing/grants', { tenantId: 'default', cents: 5, reference: 'gift' })
  const reconcile = (...args: string[]) => run(t, ['billing', 'reconcile', ...args], { POSTGRES_DSN })
  const good = await reconcile()
  assert.deepEqual([good.code, good.stdout.trim()], [0, '{"tenants":3,"discrepancies":[]}'])
  await database.batch('default', [{ text: 'UPDATE billing_accounts SET balance = balance + 1' }])
  const bad = await reconcile()
  assert.equal(bad.code, 1)
  const { discrepancies } = JSON.parse(bad.stdout) as { discrepancies: { tenant: string; check: string }[] }
  assert.deepEqual(
    discrepancies.map(({ tenant, check }) => [tenant, check]),
    [
      ['default', 'the balance is the sum of the ledger'],
      ['default', 'credits that are left make up the balance'],
    ],
  )
  assert.match((await reconcile('--tenant', 'nobody')).stderr, /there is no tenant 'nobody'/)
})
