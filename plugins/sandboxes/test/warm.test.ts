import assert from 'node:assert/strict'
import { test } from 'node:test'
import { workerVariables } from '#contracts/wire/worker'
import { answerOf, eventually, newSession, play, sandboxed, stage, startOf } from './stage.ts'

const profile = sandboxed()
const warm = { warm: 'acme/coder=2' }

test('a pool is filled as soon as its profile is known, and a first run takes one of it while another is prepared', async (t) => {
  const { workers, substrate, waiting } = await stage(t, { config: warm })
  assert.equal(substrate.boxes.length, 0)
  workers.sawProfile('acme', 'coder', profile)
  await eventually('it is filled', () => substrate.live().length === 2)
  for (const { order } of substrate.boxes) {
    assert.match(order.sessionId, /^warm-/)
    assert.equal(order.env[workerVariables.sessionId], order.sessionId)
  }
  await eventually('both are ready', async () => (await waiting()) === 2)
  assert.deepEqual(await workers.leases(undefined), [], 'nobody has them')
  const session = newSession(profile)
  const first = await play(workers, session, 'marmalade')
  assert.deepEqual([startOf(first), answerOf(first)], ['warm', 'ok'])
  const lease = await workers.lease('acme', session.id)
  assert.deepEqual([lease?.state, lease?.warm], ['running', true])
  const second = await play(workers, session, 'recall', { resume: true })
  assert.deepEqual([startOf(second), answerOf(second)], ['running', 'marmalade'])
  await eventually('it is filled again', () => substrate.live().length === 3)
})

test('a warm worker takes over the conversation of a session that comes back', async (t) => {
  const { workers, waiting } = await stage(t, { config: warm })
  workers.sawProfile('acme', 'coder', profile)
  await eventually('it is filled', async () => (await waiting()) === 2)
  const session = newSession(profile)
  const bundle = { bytes: Buffer.from('["marmalade"]'), contentType: 'application/json' }
  await workers.link(session).hydrate('general', session.id, bundle)
  const lines = await play(workers, session, 'recall', { resume: true })
  assert.deepEqual([startOf(lines), answerOf(lines)], ['warm', 'marmalade'])
})

test('a pool serves the sessions of its tenant and profile alone, and only those of the same sandbox settings', async (t) => {
  const { workers, substrate, waiting } = await stage(t, { config: { warm: 'acme/coder=1' } })
  workers.sawProfile('acme', 'coder', profile)
  await eventually('it is ready', async () => (await waiting()) === 1)
  const others = [
    newSession(profile, 'globex'),
    newSession(sandboxed('writer')),
    newSession(sandboxed('coder', { sandbox: { provider: 'box', template: 'old' } })),
    newSession(sandboxed('coder', { runtime: 'runtime_a' })),
  ]
  for (const session of others) assert.equal(startOf(await play(workers, session, 'hello')), 'launched')
  assert.equal(startOf(await play(workers, newSession(sandboxed('coder', { instructions: 'new' })), 'hello')), 'warm')
  assert.ok(substrate.live().length >= 5)
})

test('prepared workers follow their profile: replaced when its sandbox changes, gone when it is deleted', async (t) => {
  const { workers, substrate } = await stage(t, { config: warm })
  const templates = () => substrate.live().map(({ order }) => order.template)
  workers.sawProfile('acme', 'coder', profile)
  await eventually('it is filled', () => substrate.live().length === 2)
  workers.sawProfile('acme', 'coder', { ...profile, instructions: 'others', version: 2 })
  workers.sawProfile('acme', 'coder', { ...profile, sandbox: { provider: 'box', template: 'new' } })
  await eventually('they are replaced', () => JSON.stringify(templates()) === '["new","new"]')
  workers.sawProfile('acme', 'coder', { ...profile, workerMode: 'static' })
  await eventually('it needs none', () => substrate.live().length === 0)
  workers.sawProfile('acme', 'coder', profile)
  await eventually('it needs some', () => substrate.live().length === 2)
  workers.sawProfile('acme', 'coder', undefined)
  await eventually('it is deleted', () => substrate.live().length === 0)
})

test('one that died while it waited is not given to anybody', async (t) => {
  const { workers, substrate, waiting } = await stage(t, { config: { warm: 'acme/coder=1' } })
  workers.sawProfile('acme', 'coder', profile)
  await eventually('it is ready', async () => (await waiting()) === 1)
  const [dead] = substrate.boxes
  substrate.crash(dead!)
  // When another request is answered, the connection of the dead worker has been closed.
  await dead!.worker!.left
  const session = newSession(profile)
  const lines = await play(workers, session, 'hello')
  assert.equal(answerOf(lines), 'ok')
  assert.notEqual((await workers.lease('acme', session.id))?.sandboxId, dead!.id)
})

test('launches that fail are tried again, and sessions meanwhile start their own', async (t) => {
  const { workers, substrate, kernel } = await stage(t, { config: warm })
  substrate.failure = new Error('no more')
  workers.sawProfile('acme', 'coder', profile)
  await eventually('it is told', () => kernel.logs.some(({ msg }) => msg === 'a warm worker could not be launched'))
  substrate.failure = undefined
  assert.equal(startOf(await play(workers, newSession(profile), 'hello')), 'launched')
  await eventually('it is filled', () => substrate.live().length === 3)
})

test('the setting of pools says what is wrong with it', async (t) => {
  for (const text of ['coder=2', 'acme/coder', 'acme/coder=0', 'acme/coder=2;x']) {
    await assert.rejects(stage(t, { config: { warm: text } }), /warm.*pairs such as acme\/coder=2/s, text)
  }
})
