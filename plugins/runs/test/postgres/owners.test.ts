import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chunkOf } from '#testing'
import type { Database } from '#contracts/database'
import type { Profile } from '#contracts/profiles'
import { parseLine } from '#contracts/run-event'
import type { Claim, RunStore } from '#contracts/run-store'
import { openStores } from './stores.ts'

const profile = { name: 'p', runtime: 'general', limits: {} } as Profile

async function begin(store: RunStore, tenantId: string, id: string): Promise<Claim> {
  const outcome = await store.start({
    tenantId,
    runId: `run-${id}`,
    sessionId: `sess-${id}`,
    task: { profile: 'p', prompt: 'x' },
    create: { profile },
  })
  assert.equal(outcome.kind, 'started')
  return outcome.kind === 'started' ? outcome.claim : assert.fail()
}

/** Lets the lease of a run's owner run out, as if its process had been frozen. */
async function expireOwner(db: Database, claim: Claim): Promise<void> {
  const [rows] = await db.batch<[{ claim_owner: string }[]]>(claim.tenantId, [
    { text: 'SELECT claim_owner FROM runs WHERE tenant_id = $1 AND id = $2', values: [claim.tenantId, claim.runId] },
  ])
  const owner = rows[0]!.claim_owner
  await db.systemBatch([
    { text: `UPDATE instances SET lease_until = now() - interval '1 second' WHERE id = $1`, values: [owner] },
  ])
}

test('a sweep interrupts the runs of dead owners in every tenant, each with one terminal event, and no others', async (t) => {
  const stores = await openStores(t)
  const [a, b] = [await stores.open(), await stores.open()]
  const dead = [await begin(a, 'acme', 'a1'), await begin(a, 'acme', 'a2'), await begin(a, 'globex', 'a3')]
  const alive = await begin(b, 'acme', 'b1')
  await a.append(dead[0]!, chunkOf(dead[0]!, 1, 3))
  assert.equal(await b.sweepOrphans(), 0)
  await expireOwner(stores.db, dead[0]!)
  const swept = await Promise.all([b.sweepOrphans(), (await stores.open()).sweepOrphans()])
  assert.equal(swept[0] + swept[1], 3)
  for (const claim of dead) {
    const run = await b.findRun(claim.tenantId, claim.runId)
    assert.equal(run?.status, 'interrupted')
    assert.equal(run.error?.code, 'interrupted')
    assert.equal((await b.getSession(claim.tenantId, claim.sessionId))?.status, 'idle')
    assert.equal(await a.append(claim, chunkOf(claim, 4, 1)), false)
  }
  const log = await b.readLog('acme', 'run-a1', 3)
  const last = parseLine(log!.chunks.at(-1)!.lines)
  assert.deepEqual([last?.['type'], last?.['code'], last?.['seq']], ['error', 'interrupted', 4])
  assert.equal((await b.findRun('acme', alive.runId))?.status, 'running')
  assert.equal(await b.sweepOrphans(), 0)
})

test('more orphans than one transaction takes are all swept', async (t) => {
  const stores = await openStores(t)
  const [a, b] = [await stores.open(), await stores.open()]
  const claims = await Promise.all(Array.from({ length: 230 }, (_, i) => begin(a, 'acme', `n${i}`)))
  await expireOwner(stores.db, claims[0]!)
  assert.equal(await b.sweepOrphans(), 230)
  assert.equal((await b.listRuns('acme', { status: 'running' })).total, 0)
})

test('a start in a session whose owner is dead does not wait for the sweep', async (t) => {
  const stores = await openStores(t)
  const [a, b] = [await stores.open(), await stores.open()]
  const claim = await begin(a, 'acme', '1')
  await expireOwner(stores.db, claim)
  const task = { profile: 'p', prompt: 'y' }
  const next = await b.start({ tenantId: 'acme', runId: 'run-2', sessionId: claim.sessionId, task })
  assert.equal(next.kind, 'started')
  assert.equal((await b.findRun('acme', claim.runId))?.status, 'interrupted')
  assert.ok(next.kind === 'started' && next.claim.epoch > claim.epoch)
})

test('a frozen process that wakes up after it was swept is fenced and comes back as another owner', async (t) => {
  const stores = await openStores(t)
  const [a, b] = [await stores.open({ heartbeatMs: 20 }), await stores.open()]
  const fenced = new Promise<void>((resolve) => a.onFenced(resolve))
  const claim = await begin(a, 'acme', '1')
  await stores.db.systemBatch([
    { text: `UPDATE instances SET dead = true WHERE id = (SELECT id FROM instances ORDER BY started_at LIMIT 1)` },
  ])
  await fenced
  // Any process may sweep first, also the one that came back.
  await b.sweepOrphans()
  while ((await b.findRun('acme', claim.runId))?.status === 'running') await b.sweepOrphans()
  assert.equal((await b.findRun('acme', claim.runId))?.status, 'interrupted')
  assert.equal(await a.finish({ claim, status: 'ok', sessionStatus: 'idle', tail: chunkOf(claim, 1, 1) }), false)
  const again = await begin(a, 'acme', '2')
  assert.equal(await b.sweepOrphans(), 0)
  assert.equal((await b.findRun('acme', again.runId))?.status, 'running')
})

test('a process declared dead claims nothing under its old name', async (t) => {
  const stores = await openStores(t)
  const a = await stores.open()
  let fenced = 0
  a.onFenced(() => fenced++)
  const first = await begin(a, 'acme', '1')
  await a.finish({ claim: first, status: 'ok', sessionStatus: 'idle', tail: chunkOf(first, 1, 1) })
  await stores.db.systemBatch([{ text: 'UPDATE instances SET dead = true' }])
  const second = await begin(a, 'acme', '2')
  assert.equal(fenced, 1)
  await stores.db.systemBatch([{ text: 'UPDATE instances SET dead = true WHERE NOT dead' }])
  const task = { profile: 'p', prompt: 'y' }
  const third = await a.start({ tenantId: 'acme', runId: 'run-3', sessionId: first.sessionId, task })
  assert.equal(third.kind, 'started')
  assert.equal(fenced, 2)
  assert.equal((await a.findRun('acme', second.runId))?.status, 'running')
})

test('a graceful stop gives the instance up, and what it left running is swept', async (t) => {
  const stores = await openStores(t)
  const [a, b] = [await stores.open(), await stores.open()]
  await begin(a, 'acme', '1')
  await a.close()
  assert.equal(await b.sweepOrphans(), 1)
})

test('a dead instance is forgotten once nothing can belong to it any more', async (t) => {
  const stores = await openStores(t)
  const [a, b] = [await stores.open(), await stores.open()]
  await a.close()
  await b.sweepOrphans()
  const count = async () => (await stores.db.systemBatch<[object[]]>([{ text: 'SELECT id FROM instances' }]))[0].length
  assert.equal(await count(), 2)
  await stores.db.systemBatch([{ text: `UPDATE instances SET lease_until = now() - interval '2 minutes' WHERE dead` }])
  await b.sweepOrphans()
  assert.equal(await count(), 1)
})
