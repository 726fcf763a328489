import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Profile } from '#contracts/profiles'
import type { ParentRun } from '#contracts/runs'
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

test('any run of a tree knows what all of the tree has delegated, and nothing of other trees or of the workflow above', async (t) => {
  const { open } = await openStores(t)
  const store = await open()
  const create = { profile: { name: 'p', runtime: 'general', limits: {} } as unknown as Profile }
  const start = async (runId: string, parent?: ParentRun, tenantId = 'acme'): Promise<void> => {
    const task = { profile: 'p', prompt: 'x', ...(parent ? { parent } : {}) }
    const { kind } = await store.start({ tenantId, runId, sessionId: `sess-${tenantId}-${runId}`, task, create })
    assert.equal(kind, 'started')
  }
  const below = (runId: string, depth = 1): ParentRun => ({ runId, rootId: 'wf', depth })
  await start('top', below('wf'))
  await start('sibling', below('wf'))
  await start('a', below('top', 2))
  await start('b', below('top', 2))
  await start('c', below('b', 3))
  await start('other', below('sibling', 2))
  await start('foreign', below('top', 2), 'globex')
  for (const runId of ['top', 'a', 'c'])
    assert.deepEqual((await store.delegatedInTree('acme', runId, 10)).toSorted(), ['a', 'b', 'c'])
  assert.deepEqual(await store.delegatedInTree('acme', 'sibling', 10), ['other'])
  assert.deepEqual(await store.delegatedInTree('acme', 'other', 10), ['other'])
  assert.equal((await store.delegatedInTree('acme', 'c', 2)).length, 2)
  assert.deepEqual(await store.delegatedInTree('acme', 'unknown', 10), [])
})
