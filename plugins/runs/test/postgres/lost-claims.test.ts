import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { pino } from 'pino'
import { unavailable } from '#kernel'
import type { Database } from '#contracts/database'
import type { Profile } from '#contracts/profiles'
import { createPostgresRunStore } from '../../postgres/store.ts'
import { openStores } from './stores.ts'

const create = { profile: { name: 'p', runtime: 'general', limits: {} } as Profile }
const tenantId = 'acme'
const order = (id: string) => ({
  tenantId,
  runId: `run-${id}`,
  sessionId: `sess-${id}`,
  task: { profile: 'p', prompt: 'x' },
})

/** A store on a connection that carries statements out and loses their answers while it is told to. */
async function lossy(t: TestContext) {
  const { db } = await openStores(t)
  const state = { losing: false }
  const unit: Database['unit'] = async (...args) => {
    const rows = await db.unit(...args)
    if (state.losing) throw unavailable()
    return rows as never
  }
  const far = 600_000
  const timing = { heartbeatMs: far, leaseMs: far, hungMs: far, sweepMs: 10, strayMs: 50 }
  const tenant: Database['tenant'] = async (...args) => {
    const result = await db.tenant(...args)
    if (state.losing) throw unavailable()
    return result as never
  }
  const lossy: Database = { ...db, unit, tenant, as: () => lossy }
  const store = createPostgresRunStore(lossy, { ...timing, log: pino({ level: 'silent' }) })
  await store.open()
  t.after(() => store.close())
  return { store, state }
}
const until = async (check: () => Promise<boolean>): Promise<void> => {
  while (!(await check())) await new Promise((resolve) => setTimeout(resolve, 5))
}

test('a run that was claimed by a call whose answer was lost is ended, and no run that somebody executes', async (t) => {
  const { store, state } = await lossy(t)
  const mine = await store.start({ ...order('1'), create })
  assert.equal(mine.kind, 'started')
  store.executing((_tenant, runId) => runId === 'run-1')
  state.losing = true
  await assert.rejects(store.start({ ...order('2'), create }))
  state.losing = false
  assert.equal((await store.findRun(tenantId, 'run-2'))?.status, 'running')
  await until(async () => (await store.findRun(tenantId, 'run-2'))?.status === 'interrupted')
  assert.equal((await store.findRun(tenantId, 'run-1'))?.status, 'running')
  assert.equal((await store.getSession(tenantId, 'sess-2'))?.status, 'idle')
})

test('a claim of the next in line whose answer was lost does not keep its session busy', async (t) => {
  const { store, state } = await lossy(t)
  const first = await store.start({ ...order('1'), create })
  if (first.kind !== 'started') assert.fail(first.kind)
  store.executing(() => false)
  for (const runId of ['next', 'last']) await store.enqueue({ ...order('1'), runId, interrupt: false })
  const told = new Promise<void>((resolve) => store.onWaiting(() => resolve()))
  await store.steal(tenantId, 'run-1', 'cancelled', { code: 'cancelled', message: 'x' })
  await told
  state.losing = true
  await assert.rejects(store.claimNext(tenantId, 'sess-1'))
  state.losing = false
  await until(async () => (await store.findRun(tenantId, 'next'))?.status === 'interrupted')
  const last = await store.claimNext(tenantId, 'sess-1')
  assert.equal(last.kind === 'started' && last.claim.runId, 'last')
})

test('a run that was taken to go on by a call whose answer was lost is gone on with', async (t) => {
  const { store, state } = await lossy(t)
  const resumed = new Promise<string>((resolve) => {
    const resume = (_tenant: string, runId: string): void => resolve(runId)
    store.onOrphan({ onCrash: 'interrupt', room: () => 0, wants: () => true, adopt: () => {}, resume })
  })
  const started = await store.start({ ...order('1'), create })
  if (started.kind !== 'started') assert.fail(started.kind)
  store.executing(() => false)
  assert.equal(await store.park(started.claim, async () => {}), true)
  state.losing = true
  await assert.rejects(store.resume(tenantId, 'run-1'))
  state.losing = false
  assert.equal(await resumed, 'run-1')
  assert.equal((await store.resume(tenantId, 'run-1'))?.claim.runId, 'run-1')
})
