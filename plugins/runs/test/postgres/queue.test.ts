import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chunkOf } from '#testing'
import type { Profile } from '#contracts/profiles'
import type { Claim, RunStore } from '#contracts/run-store'
import { openStores } from './stores.ts'

const profile = { name: 'p', runtime: 'general', limits: {} } as Profile
const tenantId = 'acme'

async function begin(store: RunStore, id: string): Promise<Claim> {
  const task = { profile: 'p', prompt: 'x' }
  const outcome = await store.start({
    tenantId,
    runId: `run-${id}`,
    sessionId: `sess-${id}`,
    task,
    create: { profile },
  })
  return outcome.kind === 'started' ? outcome.claim : assert.fail(outcome.kind)
}
const enqueue = (store: RunStore, { sessionId }: Claim, runId: string, interrupt = false) =>
  store.enqueue({ tenantId, runId, sessionId, task: { profile: 'p', prompt: 'y' }, interrupt })
const finish = (store: RunStore, claim: Claim) =>
  store.finish({ claim, status: 'ok', sessionStatus: 'idle', tail: chunkOf(claim, 1, 1) })

/** Resolves once the store has announced the session; its sweeps are frequent in this test. */
async function publicMessageOf(stores: Awaited<ReturnType<typeof openStores>>, sessionId: string) {
  const store = await stores.open({ sweepMs: 20 })
  await new Promise<void>((resolve) => store.onWaiting((_tenant, session) => session === sessionId && resolve()))
  return store
}

test('when a conductor dies between the end of a run and the start of the next, every other one hears of the line', async (t) => {
  const stores = await openStores(t)
  const a = await stores.open()
  const claim = await begin(a, '1')
  await enqueue(a, claim, 'next')
  await finish(a, claim)
  await a.close()
  const b = await publicMessageOf(stores, claim.sessionId)
  const next = await b.claimNext(tenantId, claim.sessionId)
  assert.equal(next.kind === 'started' && next.claim.runId, 'next')
})

test('when a conductor dies with its run, its line goes on once the run was swept', async (t) => {
  const stores = await openStores(t)
  const [a, b] = [await stores.open(), await stores.open()]
  const heard: string[] = []
  b.onWaiting((_tenant, sessionId) => void heard.push(sessionId))
  const claim = await begin(a, '1')
  await enqueue(a, claim, 'next')
  await a.close()
  assert.equal(await b.sweepOrphans(), 1)
  assert.deepEqual(heard, [claim.sessionId])
  assert.equal((await b.claimNext(tenantId, claim.sessionId)).kind, 'started')
})

test('when a conductor dies between an interrupt and what it is for, every other one hears of it', async (t) => {
  const stores = await openStores(t)
  const [a, owner] = [await stores.open(), await stores.open()]
  const claim = await begin(owner, '1')
  await enqueue(a, claim, 'urgent', true)
  await a.close()
  const b = await publicMessageOf(stores, claim.sessionId)
  assert.deepEqual(await b.claimNext(tenantId, claim.sessionId), {
    kind: 'held',
    runId: claim.runId,
    interrupt: 'urgent',
  })
})

test('a line whose session executes is nobody else to start, and a tenant without lines is not looked at', async (t) => {
  const stores = await openStores(t)
  const a = await stores.open()
  const claim = await begin(a, '1')
  await enqueue(a, claim, 'next')
  const heard: string[] = []
  const b = await stores.open({ sweepMs: 10 })
  b.onWaiting((_tenant, sessionId) => void heard.push(sessionId))
  const tenants = async () =>
    (await stores.db.systemBatch<[object[]]>([{ text: 'SELECT tenant_id FROM run_queue_tenants' }]))[0].length
  assert.equal(await tenants(), 1)
  await a.steal(tenantId, 'next', 'cancelled', { code: 'cancelled', message: 'x' })
  while ((await tenants()) > 0) await new Promise((resolve) => setTimeout(resolve, 5))
  assert.deepEqual(heard, [])
  await enqueue(a, claim, 'again')
  assert.equal(await tenants(), 1)
})

test('a process declared dead claims nothing from a line, and what it does under its old claim changes nothing', async (t) => {
  const stores = await openStores(t)
  const [a, b] = [await stores.open(), await stores.open()]
  const claim = await begin(a, '1')
  await enqueue(a, claim, 'next')
  const markDead = `UPDATE instances SET dead = true, lease_until = now() - interval '1 second' WHERE id = (SELECT id FROM instances ORDER BY started_at LIMIT 1)`
  await stores.db.systemBatch([{ text: markDead }])
  assert.equal(await b.sweepOrphans(), 1)
  assert.deepEqual(await a.claimNext(tenantId, claim.sessionId), { kind: 'none' })
  const next = await b.claimNext(tenantId, claim.sessionId)
  assert.equal(next.kind === 'started' && next.claim.runId, 'next')
  assert.equal(await a.append(claim, chunkOf(claim, 2, 1)), false)
  assert.equal(await finish(a, claim), false)
  const bundle = { bytes: Buffer.from('old'), contentType: 'text/plain' }
  const of = { runner: 'aaaaaaaa', epoch: claim.epoch }
  assert.equal(await a.saveState(tenantId, claim.sessionId, bundle, of), undefined)
  assert.equal(await a.shutdownSession(tenantId, claim.sessionId), 'running')
  assert.equal((await b.findRun(tenantId, 'next'))?.status, 'running')
})

test('a process that boots touches no run of one that lives: of 100 runs none, of the dead all', async (t) => {
  const stores = await openStores(t)
  const a = await stores.open()
  await Promise.all(Array.from({ length: 100 }, (_, i) => begin(a, `n${i}`)))
  const b = await stores.open()
  assert.equal(await b.sweepOrphans(), 0)
  assert.equal((await b.listRuns(tenantId, { status: 'running' })).total, 100)
  await a.close()
  const c = await stores.open()
  const swept = await Promise.all([b.sweepOrphans(), c.sweepOrphans()])
  while ((await b.listRuns(tenantId, { status: 'running' })).total > 0) await b.sweepOrphans()
  assert.ok(swept[0] + swept[1] <= 100)
  assert.equal((await b.listRuns(tenantId, { status: 'interrupted' })).total, 100)
})

test('a line and the end of a run meet at any moment: what waits is started once, by whoever looks after both', async (t) => {
  const stores = await openStores(t)
  const [a, b] = [await stores.open(), await stores.open()]
  for (let i = 0; i < 40; i++) {
    const claim = await begin(a, `r${i}`)
    const [, first] = await Promise.all([
      finish(a, claim),
      enqueue(b, claim, `next-${i}`).then(() => b.claimNext(tenantId, claim.sessionId)),
    ])
    const second = await a.claimNext(tenantId, claim.sessionId)
    assert.deepEqual([first.kind, second.kind].sort(), ['none', 'started'])
    assert.equal((await a.findRun(tenantId, `next-${i}`))?.status, 'running')
  }
})

test('a line is found by its session, with a plan from when no run waited as well', async (t) => {
  const { db } = await openStores(t)
  await db.systemBatch([{ text: 'ANALYZE run_queue' }])
  const explain = `EXPLAIN SELECT FROM run_queue WHERE tenant_id = 'acme' AND session_id = 'sess-1'`
  const [plan] = await db.as('claims').batch<[object[]]>(tenantId, [{ text: explain }])
  assert.match(JSON.stringify(plan), /Index Cond: [^"]*session_id/)
})
