import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import type { Statement } from '#contracts/database'
import type { Profile } from '#contracts/profiles'
import type { ParentRun } from '#contracts/runs'
import { readOnceGrown } from './pages.ts'
import { openStores } from './stores.ts'

const tenantId = 'acme'
const profile = { name: 'p', runtime: 'general', limits: {} } as Profile
const below = (runId: string, depth = 1): ParentRun => ({ runId, rootId: 'wf', depth })

/** A tenant with a tree: a workflow has started `top`, which led to `a` and `b`, and that to `c`. */
async function tree(t: TestContext) {
  const stores = await openStores(t)
  const store = await stores.open()
  const start = async (runId: string, parent: ParentRun) => {
    const task = { profile: 'p', prompt: 'x', parent }
    const started = await store.start({ tenantId, runId, sessionId: `sess-${runId}`, task, create: { profile } })
    return started.kind === 'started' ? started.claim : assert.fail(started.kind)
  }
  await start('top', below('wf'))
  await start('a', below('top', 2))
  await start('b', below('top', 2))
  const claim = await start('c', below('b', 3))
  return { ...stores, store, claim }
}

const ended = (name: string, parent: string, count: number): string =>
  `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, ordinal, finished_at, parent)
   SELECT 'acme', '${name}' || n, 's' || n, 'p', 'ok', 'x', 'x', 1, 1, now(), jsonb_build_object('runId', ${parent}, 'depth', 1)
   FROM generate_series(1, ${count}) n`
const entries = `SELECT parent_id || '/' || run_id AS entry FROM run_children ORDER BY run_id`

test('runs are found by their parent in pages that do not grow with what the tenant has delegated, with plans from before', async (t) => {
  const { db, store } = await tree(t)
  const sent: Statement[] = []
  const { batch } = db.as('reads')
  const { mock } = t.mock.method(db.as('reads'), 'batch', (of: string, statements: readonly Statement[]) => {
    sent.push(...statements)
    return batch(of, statements)
  })
  assert.equal((await store.listRuns(tenantId, { parent: 'top', limit: 10 })).total, 2)
  await store.delegatedCents(tenantId, 'top')
  assert.equal((await store.delegatedInTree(tenantId, 'c', 200)).length, 3)
  mock.restore()
  assert.equal(sent.length, 4)
  const grown = [ended('other', `'parent' || n / 10`, 50_000), ended('own', `'a'`, 5)]
  for (const { name, pages } of await readOnceGrown(db.as('reads'), tenantId, sent, grown))
    assert.ok(pages < 100, `${pages} pages: ${name}`)
})

test('a run is an entry of its parent as long as it exists, however it was deleted', async (t) => {
  const { db, store, claim } = await tree(t)
  const found = async () => (await db.unit<{ entry: string }>(tenantId, { text: entries })).map((one) => one.entry)
  assert.deepEqual(await found(), ['top/a', 'top/b', 'b/c', 'wf/top'])
  assert.deepEqual(await db.unit('globex', { text: entries }), [])
  await store.discard(claim)
  assert.deepEqual(await found(), ['top/a', 'top/b', 'wf/top'])
  await db.unit(tenantId, { text: `DELETE FROM runs WHERE id IN ('a', 'top')` })
  assert.deepEqual(await found(), ['top/b'])
})
