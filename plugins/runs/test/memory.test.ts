import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chunkOf, testRunStore } from '#testing'
import type { Profile } from '#contracts/profiles'
import { MemoryRunStore } from '../memory/store.ts'

testRunStore('the store in memory', async () => new MemoryRunStore())

test('memory is bounded: the oldest finished runs and resting sessions give way, running ones never do', async () => {
  const store = new MemoryRunStore(3)
  const create = { name: 'p', runtime: 'general' } as Profile
  for (let i = 0; i < 6; i++) {
    const outcome = await store.start({
      tenantId: 'acme',
      runId: `r${i}`,
      sessionId: `s${i}`,
      task: { profile: 'p', prompt: 'x' },
      create: { profile: create },
    })
    assert.equal(outcome.kind, 'started')
    if (outcome.kind !== 'started' || i === 0) continue
    const { claim } = outcome
    await store.finish({ claim, status: 'ok', sessionStatus: 'idle', tail: chunkOf(claim, 1, 1) })
  }
  const { items: runs } = await store.listRuns('acme', {})
  assert.deepEqual(
    runs.map((run) => run.runId),
    ['r5', 'r4', 'r3', 'r0'],
  )
  const { items: sessions } = await store.listSessions('acme', {})
  assert.deepEqual(sessions.map((s) => s.id).sort(), ['s0', 's4', 's5'])
})
