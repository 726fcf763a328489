import assert from 'node:assert/strict'
import { test } from 'node:test'
import { newSession, play, sandboxed, stage } from './stage.ts'
import { createSubstrate } from './substrate.ts'

test('a lease says what its substrate says now, and is nobody else’s to see', async (t) => {
  const { workers, substrate } = await stage(t)
  const session = newSession(sandboxed('coder', { sandbox: { provider: 'box', template: 'node' } }))
  assert.equal(await workers.lease('acme', session.id), undefined, 'none before the first run')
  await play(workers, session, 'hello')
  const [box] = substrate.boxes
  const { launchedAt, lastUsedAt, ...lease } = (await workers.lease('acme', session.id))!
  assert.deepEqual(lease, {
    sessionId: session.id,
    state: 'running',
    provider: 'box',
    sandboxId: box!.id,
    template: 'node',
  })
  for (const at of [launchedAt, lastUsedAt]) assert.equal(new Date(at!).toISOString(), at)
  assert.equal(await workers.lease('globex', session.id), undefined)
  const other = newSession(sandboxed(), 'globex')
  await play(workers, other, 'hello')
  const ids = async (tenantId?: string) => (await workers.leases(tenantId)).map(({ sessionId }) => sessionId).toSorted()
  assert.deepEqual(await ids('acme'), [session.id])
  assert.deepEqual(await ids('globex'), [other.id])
  assert.deepEqual(await ids(), [session.id, other.id].toSorted())
})

test('a substrate is asked once in a while, and at once when it said that a sandbox changed', async (t) => {
  const { workers, substrate } = await stage(t)
  const session = newSession()
  await play(workers, session, 'hello')
  const [box] = substrate.boxes
  const state = async () => (await workers.lease('acme', session.id))?.state
  assert.equal(await state(), 'running')
  const { asked } = substrate
  substrate.crash(box!)
  assert.deepEqual([await state(), substrate.asked], ['running', asked])
  assert.equal(workers.invalidate('box', 'another'), 0)
  assert.equal(workers.invalidate('cloud', box!.id), 0)
  assert.equal(workers.invalidate('box', box!.id), 1)
  assert.deepEqual([await state(), substrate.asked], ['gone', asked + 1])
})

test('a substrate that cannot be asked leaves the state unknown, and holds up nobody', async (t) => {
  const cloud = createSubstrate(t)
  const { workers } = await stage(t, { others: { cloud }, config: { default: 'box' } })
  const [here, there] = [newSession(), newSession(sandboxed('p', { sandbox: { provider: 'cloud' } }))]
  await Promise.all([play(workers, here, 'hello'), play(workers, there, 'hello')])
  cloud.away = true
  const states = Object.fromEntries((await workers.leases('acme')).map((lease) => [lease.sessionId, lease.state]))
  assert.deepEqual(states, { [here.id]: 'running', [there.id]: 'unknown' })
  cloud.away = false
  // A provider that never answers is treated like one that is away.
  Object.assign(cloud.provider, { status: () => new Promise(() => {}) })
  workers.invalidate('cloud', cloud.boxes[0]!.id)
  assert.equal((await workers.lease('acme', there.id))?.state, 'unknown')
})

test('a session is well when it can have a sandbox, and not when the substrate of its sandbox is away', async (t) => {
  const { workers, substrate } = await stage(t)
  const session = newSession()
  const link = workers.link(session)
  assert.deepEqual(await link.health(), {
    ok: true,
    runtime: 'general',
    runtimes: ['general'],
    instance: '',
    inflight: 0,
    readsLinks: false,
  })
  await play(workers, session, 'hello')
  assert.equal((await link.health()).instance, substrate.boxes[0]!.id)
  substrate.away = true
  await assert.rejects(link.health(), { code: 'sandbox_unreachable' })
  await assert.rejects(workers.link(newSession(sandboxed('p', { sandbox: { provider: 'moon' } }))).health(), {
    code: 'no_sandbox_substrate',
  })
})
