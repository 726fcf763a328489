import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startModelServer } from '#testing'
import { vendorPackage } from '../../runtimes/runtime-a/sdk.ts'
import { eventually } from './cluster.ts'
import { hasBubblewrap, type Run, startWithSandboxes } from './sandbox-roles.ts'

const { missing } = vendorPackage()

for (const provider of ['process', 'bubblewrap']) {
  const sentence = `${provider}: runtime_a in a sandbox reaches models and tools through the runner, which has the key`
  test(sentence, { skip: missing ?? false }, async (t) => {
    if (provider === 'bubblewrap' && !(await hasBubblewrap(t))) return
    const models = await startModelServer(t)
    const cluster = await startWithSandboxes(t, 'single', {
      AGENT_ORC_SANDBOX_PROVIDERS: provider,
      ANTHROPIC_API_KEY: 'key-of-the-runner',
      ANTHROPIC_BASE_URL: models.url,
    })
    const model = { runtime: 'runtime_a', model: 'anthropic/stand-in', tools: ['calculate'] }
    const sandbox = { provider, ...(provider === 'bubblewrap' ? { resources: { memoryMb: 512 } } : {}) }
    const profile = { name: 'a', ...model, workerMode: 'sandbox', sandbox }
    assert.equal((await cluster.api('POST', '/api/profiles', profile)).status, 201)
    models.next(
      { toolCalls: [{ id: 'toolu_1', name: 'mcp__runner__calculate', arguments: { expression: '6 * 7' } }] },
      { text: 'It is 42.' },
    )
    const { runId } = await eventually('a runner takes it', async () => {
      const { status, body } = await cluster.api<Run>('POST', '/api/runs', { profile: 'a', prompt: 'What is 6 x 7?' })
      return status === 202 && body
    })
    const ended = await eventually('the run is over', async () => {
      const { body } = await cluster.api<Run>('GET', `/api/runs/${runId}`)
      return body.status !== 'running' && body
    })
    assert.equal(ended.result, 'It is 42.', `${JSON.stringify(ended)}\n${cluster.output()}`)
    assert.equal(ended.events.find(({ type }) => type === 'tool_result')?.['content'], '42')
    assert.equal(models.requests[0]!.headers['x-api-key'], 'key-of-the-runner')
  })
}
