import assert from 'node:assert/strict'
import { test } from 'node:test'
import { definePlugin, isAppError } from '#kernel'
import { ApiGuard, type Guard, InternalGuard } from '#contracts/auth'
import { Kv } from '#contracts/kv'
import { Fleet } from '#contracts/runner'
import { Runtimes } from '#contracts/runtime'
import { fake, testKernel } from '#testing'
import fleet from '../plugins/fleet/index.ts'
import runHost from '../plugins/run-host/index.ts'
import runner from '../plugins/runner/index.ts'
import sidecarLinks from '../plugins/sidecar-links/index.ts'
import tools from '../plugins/tools/index.ts'
import { eventually } from './e2e/cluster.ts'

test('what a runtime misses is what is said to whoever wants it, all the way from its sidecar', async (t) => {
  const missing = 'other needs the package x: install it.'
  const runtime = { contract: 'runtime/1' as const, run: async function* () {} }
  let runners: Fleet | undefined
  const probe = definePlugin({
    name: 'probe',
    requires: { runners: Fleet },
    async setup({ deps }) {
      runners = deps.runners
      return {}
    },
  })
  const runtimes = fake(Runtimes, { general: runtime, other: { ...runtime, missing } })
  const guard = { protect() {} } as unknown as Guard
  const around = [fake(ApiGuard, guard), fake(InternalGuard, guard), fake(Kv, {} as Kv)]
  await testKernel(t, [runtimes, runHost, sidecarLinks, tools, runner, fleet, ...around, probe], { listen: true })
  await eventually('the runner is known', async () => runners!.describe()[0]?.capabilitiesKnown)
  assert.deepEqual(runners!.describe()[0]!.capabilities, ['general'])
  assert.ok(runners!.place({ runtime: 'general' }))
  const refused = (error: unknown): boolean =>
    isAppError(error) && error.code === 'no_runner' && error.sentence === missing
  assert.throws(() => runners!.place({ runtime: 'other' }), refused)
  assert.throws(() => runners!.place({ runtime: 'third' }), /No runner can take a session of the runtime 'third'/)
})
