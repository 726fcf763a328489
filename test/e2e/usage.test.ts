import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chat } from './client.ts'
import { startCluster } from './cluster.ts'

interface Run {
  readonly usage?: { readonly inputTokens: number; readonly outputTokens: number }
  readonly costCents?: number
}
interface Figures {
  readonly runs: { readonly total: number; readonly ok: number }
  readonly inputTokens: number
  readonly costCents: number
  readonly unpricedRuns: number
  readonly failedRuns: number
  readonly requests: { readonly total: number }
  readonly buckets: readonly Figures[]
}

test('a chat is priced from the role file, and its run, its agent and its tenant show the same cost', async (t) => {
  const cluster = await startCluster(t, 'single')
  const models = { priced: 'openai/gpt-5-mini', unknown: 'openai/nobody-knows', free: 'builtin/demo' }
  const runs: Record<string, Run> = {}
  for (const [name, model] of Object.entries(models)) {
    const agent = await cluster.agent(name, { model })
    assert.equal((await chat(agent, { message: 'hello' })).status, 200)
    runs[name] = (await cluster.api<Run[]>('GET', `/api/profiles/${name}/runs`)).body[0]!
  }
  const { inputTokens, outputTokens } = runs['priced']!.usage!
  // 25 and 200 cents for a million tokens.
  const cost = (inputTokens * 25 + outputTokens * 200) / 1e6
  assert.ok(cost > 0)
  assert.equal(runs['priced']!.costCents, cost)
  assert.equal('costCents' in runs['unknown']!, false)
  assert.equal(runs['free']!.costCents, 0)

  const figures = async (path: string): Promise<Figures> => (await cluster.api<Figures>('GET', path)).body
  const overview = await figures('/api/stats/overview?window=1h')
  assert.deepEqual([overview.runs.total, overview.runs.ok, overview.costCents, overview.unpricedRuns], [3, 3, cost, 1])
  const { buckets } = await figures('/api/stats/timeseries?window=1h')
  assert.equal(
    buckets.reduce((sum, bucket) => sum + bucket.runs.total, 0),
    3,
  )
  const metrics = await figures('/api/profiles/priced/metrics?window=1h')
  assert.deepEqual(
    [metrics.requests.total, metrics.runs.ok, metrics.inputTokens, metrics.costCents, metrics.failedRuns],
    [1, 1, inputTokens, cost, 0],
  )
  assert.deepEqual(Object.keys(metrics.buckets[0]!), Object.keys(buckets[0]!), 'buckets of one shape')
})
