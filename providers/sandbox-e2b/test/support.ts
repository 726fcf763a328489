import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { type LaunchOrder, type SandboxProvider, SandboxProviders } from '#contracts/sandbox'
import { startSuiteRunner, suiteWorker, testKernel, testOrder } from '#testing'
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

/** The provider before a fake, and workers of it that poll. What they leave behind ends with the fake. */
export async function setUp(
  t: TestContext,
  config: Record<string, unknown> = {},
  options: Partial<FakeE2bOptions> = {},
) {
  const fake = await startFakeE2b(t, options)
  const { provider, logs } = await providerOf(t, { ...settingsFor(fake), ...config })
  assert.ok(provider)
  const runner = await startSuiteRunner(t)
  const orderOf = (fields?: Partial<LaunchOrder>): LaunchOrder => testOrder(runner.url, fields)
  const launch = async (fields?: Partial<LaunchOrder>) => {
    const order = orderOf(fields)
    const { sandboxId } = await provider.launch(order, new AbortController().signal)
    return { order, sandboxId, session: runner.session(order.sessionId) }
  }
  /** Launches, and waits for the worker's first poll. */
  const start = async (fields?: Partial<LaunchOrder>) => {
    const order = orderOf(fields)
    const first = runner.session(order.sessionId).polled()
    const started = await launch(order)
    await first
    return started
  }
  return { fake, provider, logs, orderOf, launch, start }
}
