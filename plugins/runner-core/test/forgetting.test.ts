import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import type { RunnerSession } from '#contracts/runner'
import { Forgetting } from '../conversations.ts'
import { answer, execute, profile, run, runnerOf, until } from './fixtures.ts'

const session = (id: string): RunnerSession => ({
  id,
  tenantId: 'acme',
  profile: profile(),
  tools: [],
  status: 'shutdown',
  createdAt: '2026-01-01T00:00:00.000Z',
  lastUsedAt: '2026-01-01T00:00:00.000Z',
})

test('a sidecar is told of many sessions a few at a time, and of every one', async () => {
  const told: string[] = []
  let underWay = 0
  let most = 0
  const forgetting = new Forgetting(async ({ id }) => {
    most = Math.max(most, ++underWay)
    await turn()
    underWay--
    told.push(id)
  })
  const ids = Array.from({ length: 500 }, (_, n) => `s${n}`)
  for (const id of ids) forgetting.begin(session(id))
  await until(() => told.length === ids.length)
  assert.deepEqual(told.toSorted(), ids.toSorted())
  assert.equal(most, 16)
})

test('a session that comes back out of turn is told of at once, and one of which nobody is told is not waited for', async () => {
  const gate = Promise.withResolvers<void>()
  const told: string[] = []
  const forgetting = new Forgetting(async ({ id }) => {
    if (id !== 'last') await gate.promise
    told.push(id)
  })
  for (let n = 0; n < 40; n++) forgetting.begin(session(`s${n}`))
  forgetting.begin(session('last'))
  await forgetting.finish('last')
  assert.deepEqual(told, ['last'])
  assert.equal(forgetting.finish('last'), undefined)
  gate.resolve()
  await forgetting.finish('s0')
  await until(() => told.length === 41)
  assert.equal(new Set(told).size, 41, 'each of them once')
})

test('a conversation that comes back is not brought before the sidecar has forgotten the former one', async (t) => {
  const f = await runnerOf(t, answer, { maxSessions: 1 })
  const { sessionId } = run()
  const bundle = { bytes: Buffer.from('x'), contentType: 'text/plain' }
  const gate = Promise.withResolvers<void>()
  f.pace.forget = gate.promise
  await f.core.hydrate('acme', sessionId, profile(), bundle)
  // There is room for one: this lets go of the first.
  await f.core.hydrate('acme', 'other', profile(), bundle)
  assert.deepEqual(f.hydrated, [sessionId, 'other'])
  const comesBack = f.core.hydrate('acme', sessionId, profile(), bundle)
  for (let i = 0; i < 10; i++) await turn()
  assert.deepEqual(f.hydrated, [sessionId, 'other'], 'it would be forgotten right after')
  await assert.rejects(execute(f), { code: 'session_busy' })
  gate.resolve()
  await comesBack
  assert.equal(f.forgotten[0], sessionId)
  assert.deepEqual(f.hydrated, [sessionId, 'other', sessionId])
  assert.equal((await execute(f)).at(-1)!['type'], 'result')
})
