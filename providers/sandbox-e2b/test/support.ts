import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { type SandboxProvider, SandboxProviders } from '#contracts/sandbox'
import { openLaunches, suiteWorker, testKernel } from '#testing'
import e2b from '../index.ts'
import type { FakeE2bOptions } from './fake/options.ts'
import { type FakeE2b, startFakeE2b } from './fake/server.ts'

/** Starts the suite's worker in a fake sandbox. */
export const command = `exec ${suiteWorker.map((part) => `'${part}'`).join(' ')}`

export const settingsFor = ({ apiKey, url }: FakeE2b) => ({
  apiKey,
  apiUrl: url,
  sandboxUrl: url,
  template: 'agent-orc-worker',
  command,
})

/** The provider with these settings, and what it logs. */
export async function providerOf(t: TestContext, config: Record<string, unknown>) {
  const found: SandboxProvider[] = []
  const grab = definePlugin({
    name: 'grab',
    requires: { providers: SandboxProviders },
    async setup({ deps }) {
      found.push(...deps.providers.values())
      return {}
    },
  })
  const { logs } = await testKernel(
    t,
    [{ name: 'sandbox-e2b', plugin: e2b, config: { tenants: '*', ...config } }, grab],
    { listeners: [] },
  )
  return { provider: found[0], logs }
}

/** The provider with a fake service, which ends what was launched, and launches whose workers poll. */
export async function setUp(
  t: TestContext,
  config: Record<string, unknown> = {},
  options: Partial<FakeE2bOptions> = {},
) {
  const fake = await startFakeE2b(t, options)
  const { provider, logs } = await providerOf(t, { ...settingsFor(fake), ...config })
  assert.ok(provider)
  const { order: orderOf, launch, start } = await openLaunches(t, provider, {}, { end: 'fake' })
  return { fake, provider, logs, orderOf, launch, start }
}
