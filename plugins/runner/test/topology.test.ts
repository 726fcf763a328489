import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { SidecarLink, Sidecars } from '#contracts/sidecar'
import { createTopology } from '../runner.ts'
import { SessionTable } from '../sessions.ts'

const well = { ok: true, runtime: 'all', runtimes: ['general'], instance: 'i-7', inflight: 2 }

/** The topology of a runner whose runtimes share one sidecar. */
function shared() {
  const health = { failing: false, instance: 'i-7', probes: 0 }
  const sidecar = {
    async health() {
      health.probes++
      if (health.failing) throw new Error('connection refused')
      return { ...well, instance: health.instance }
    },
  } as unknown as SidecarLink
  const url = 'http://sidecar:7070'
  const sidecars: Sidecars = {
    forRuntime: () => sidecar,
    runtimes: async () => ['general', 'runtime_b'],
    slots: () => [
      { runtime: 'general', mode: 'sidecar', url },
      { runtime: 'runtime_b', mode: 'sidecar', url },
    ],
  }
  const table = new SessionTable({
    max: 1,
    maxProfileBytes: 1_000_000,
    idleTtlMs: 1,
    toolsOf: () => [],
    onEvict() {},
    hasFiles: () => false,
  })
  return { health, url, topology: createTopology(sidecars, table) }
}

test('a poly-sidecar is asked once, and every slot that shares it shows the same instances', async () => {
  const { topology, health } = shared()
  const { sidecars } = await topology()
  assert.equal(health.probes, 1)
  assert.equal(sidecars[0]!.observedInstances?.[0]?.instance, 'i-7')
  assert.deepEqual(sidecars[0]!.observedInstances, sidecars[1]!.observedInstances)
})

test('a sidecar that fails soon after a success is degraded, one that never answered unreachable', async () => {
  const { topology, health } = shared()
  await topology()
  health.failing = true
  assert.equal((await topology()).sidecars[0]!.state, 'degraded')
  const other = shared()
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
  const { topology, health } = shared()
  health.instance = ''
  const { sidecars } = await topology()
  assert.deepEqual([sidecars[0]!.state, sidecars[0]!.observedInstances], ['live', null])
})
