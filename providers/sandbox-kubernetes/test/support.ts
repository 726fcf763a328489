import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import { openLaunches, sandboxProviderOf, suiteWorker } from '#testing'
import kubernetes from '../index.ts'
import { type FakeCluster, type FakeClusterOptions, startFakeCluster } from './fake/server.ts'

export const image = 'registry.example.com/agent-orc-worker:1'
export const images = { [image]: suiteWorker }

export const settingsFor = ({ url, token }: FakeCluster) => ({ namespace: 'agents', apiUrl: url, token, image })

export const providerOf = (t: TestContext, config: Record<string, unknown>) =>
  sandboxProviderOf(t, 'kubernetes', [{ name: 'sandbox-kubernetes', plugin: kubernetes, config }])

/** The provider with a fake service, which ends what was launched, and launches whose workers poll. */
export async function setUp(
  t: TestContext,
  config: Record<string, unknown> = {},
  options: Partial<FakeClusterOptions> = {},
) {
  const fake = await startFakeCluster(t, { images, ...options })
  const provider = await providerOf(t, { ...settingsFor(fake), ...config })
  assert.ok(provider)
  const { order: orderOf, launch, start } = await openLaunches(t, provider, {}, { end: 'fake' })
  return { fake, provider, orderOf, launch, start }
}
