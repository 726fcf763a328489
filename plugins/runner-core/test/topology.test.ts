import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type SidecarLink, Sidecars } from '#contracts/sidecar'
import type { Held } from '../sessions.ts'
import { createTopology } from '../topology.ts'
import { profile } from './fixtures.ts'

function stage() {
  const health = { failing: false, instance: 'i-7', probes: 0 }
  const sidecar = {
    async health() {
      health.probes++
      if (health.failing) throw new Error('connection refused')
      return { ok: true, runtime: 'all', runtimes: ['general'], instance: health.instance, inflight: 2 }
    },
  } as unknown as SidecarLink
  const url = 'http://sidecar:7070'
  const sidecars: Sidecars = {
    forRuntime: () => sidecar,
    runtimes: async () => ['general', 'runtime_b'],
    slots: () => [
      { runtime: 'general', mode: 'sidecar', url },
      { runtime: 'runtime_b', mode: 'sidecar', url },
      { runtime: 'runtime_a', mode: 'stub', url: '' },
    ],
  }
  const sessions = ['a', 'b'].map((id) => ({ id, tenantId: id, profile: profile() }) as unknown as Held)
  return { health, url, topology: createTopology(sidecars, () => sessions) }
}

test('topology is of the process, and null is what was not measured', async () => {
  const { topology } = stage()
  const seen = await topology()
  assert.equal(seen.activeSessions, 2)
  assert.deepEqual(seen.sessionsByRuntime, { runtime_a: 2 })
  assert.equal(seen.process.numGoroutine, null, 'not measured is null, never zero')
  assert.ok(seen.process.allocBytes > 0 && seen.process.numCPU > 0)
})

test('a poly-sidecar is asked once, and every slot that shares it shows the same instances', async () => {
  const { topology, health } = stage()
  const { sidecars } = await topology()
  assert.equal(health.probes, 1)
  assert.deepEqual(
    sidecars.map(({ runtime, kind, state }) => [runtime, kind, state]),
    [
      ['general', 'sidecar', 'live'],
      ['runtime_b', 'sidecar', 'live'],
      ['runtime_a', 'stub', 'stub'],
    ],
  )
  assert.equal(sidecars[0]!.observedInstances?.[0]?.instance, 'i-7')
  assert.deepEqual(sidecars[0]!.observedInstances, sidecars[1]!.observedInstances)
})

test('a sidecar that fails soon after a success is degraded, one that never answered unreachable', async () => {
  const { topology, health } = stage()
  await topology()
  health.failing = true
  assert.equal((await topology()).sidecars[0]!.state, 'degraded')
  const other = stage()
  other.health.failing = true
  assert.deepEqual((await other.topology()).sidecars[0], {
    runtime: 'general',
    kind: 'sidecar',
    url: other.url,
    state: 'unreachable',
    observedInstances: null,
  })
})

test('of a live sidecar that does not name its instance none was observed', async () => {
  const { topology, health } = stage()
  health.instance = ''
  const { sidecars } = await topology()
  assert.deepEqual([sidecars[0]!.state, sidecars[0]!.observedInstances], ['live', null])
})
