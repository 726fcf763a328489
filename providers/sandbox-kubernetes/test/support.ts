import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import type { LaunchOrder } from '#contracts/sandbox'
import { sandboxProviderOf, startSuiteRunner, suiteWorker, testOrder } from '#testing'
import kubernetes from '../index.ts'
import { type FakeCluster, type FakeClusterOptions, startFakeCluster } from './fake/server.ts'

export const image = 'registry.example.com/agent-orc-worker:1'
export const images = { [image]: suiteWorker }

export const settingsFor = ({ url, token }: FakeCluster) => ({ namespace: 'agents', apiUrl: url, token, image })

export const providerOf = (t: TestContext, config: Record<string, unknown>) =>
  sandboxProviderOf(t, 'kubernetes', [{ name: 'sandbox-kubernetes', plugin: kubernetes, config }])

/** The provider before a fake, and workers of it that poll. What they leave behind ends with the fake. */
export async function setUp(
  t: TestContext,
  config: Record<string, unknown> = {},
  options: Partial<FakeClusterOptions> = {},
) {
  const fake = await startFakeCluster(t, { images, ...options })
  const provider = await providerOf(t, { ...settingsFor(fake), ...config })
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
  return { fake, provider, orderOf, launch, start }
}
