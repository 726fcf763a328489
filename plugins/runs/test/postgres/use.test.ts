import assert from 'node:assert/strict'
import { test } from 'node:test'
import { openStores } from './stores.ts'

test('processes share the limit of a tenant, and the share of one that has died is free', async (t) => {
  const { db, open } = await openStores(t)
  const [a, b] = [await open(), await open()]
  await a.open()
  await b.open()
  assert.equal(await a.holdRuns('acme', 6, 10), 6)
  assert.equal(await b.holdRuns('acme', 6, 10), 4)
  assert.equal(await b.holdRuns('globex', 6, 10), 6, 'another tenant has its own')
  assert.equal(await a.holdRuns('acme', 1, 10), 1)
  assert.equal(await b.holdRuns('acme', 6, 10), 6)
  assert.equal(await b.countHeld('acme'), 7)
  await db.systemBatch([{ text: `UPDATE instances SET lease_until = now() - interval '1 second'` }])
  await b.sweepOrphans()
  const c = await open()
  await c.open()
  assert.equal(await c.holdRuns('acme', 10, 10), 10)
})

test('however many ask at once, they never have more than the limit together', async (t) => {
  const { open } = await openStores(t)
  const stores = await Promise.all(Array.from({ length: 4 }, () => open()))
  for (const store of stores) await store.open()
  const held = await Promise.all(stores.map((store) => store.holdRuns('acme', 7, 20)))
  assert.equal(
    held.reduce((sum, one) => sum + one, 0),
    20,
  )
})
