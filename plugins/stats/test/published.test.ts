import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ago, minutes, statsKernel } from './kernel.ts'

test('a publication is measured by its own requests, whatever else its profile runs', async (t) => {
  const { published, meters, insert } = await statsKernel(t)
  const request = (id: string, publishedId: string, conversation: string, before: number, status = 'ok') => ({
    id: `prun_${id}`,
    published_id: publishedId,
    conversation_id: conversation,
    run_id: `run-${id}`,
    status,
    owner_instance: 'gw',
    created_at: ago(before * minutes),
    finished_at: status === 'running' ? null : ago(0),
  })
  const conversation = (id: string, before: number) => ({
    id,
    published_id: 'pub_1',
    created_at: ago(before * minutes),
  })
  await insert('acme', 'conversations', conversation('c1', 500), conversation('c2', 10), conversation('c3', 500))
  await insert(
    'acme',
    'public_runs',
    request('1', 'pub_1', 'c1', 10),
    request('2', 'pub_1', 'c1', 9, 'error'),
    request('3', 'pub_1', 'c2', 8, 'running'),
    request('4', 'pub_1', 'c2', 7, 'lost'),
    // Request 5 came before the window, but its run finished in the window.
    request('5', 'pub_1', 'c3', 70),
    request('6', 'pub_other', 'c9', 6),
  )
  await insert('globex', 'public_runs', request('1', 'pub_1', 'c1', 10))
  await meters(
    { at: ago(9 * minutes), run: 'run-1', tokens: [10, 2, 1], microcents: 250_000, toolCalls: 1 },
    { at: ago(8 * minutes), run: 'run-2', status: 'error', microcents: null },
    { at: ago(50 * minutes), run: 'run-5', tokens: [5, 5, 0] },
    { at: ago(5 * minutes), run: 'run-6', tokens: [1_000, 0, 0] },
    { at: ago(5 * minutes), run: 'by-api', tokens: [1_000, 0, 0] },
    { at: ago(5 * minutes), run: 'run-1', tenant: 'globex', tokens: [1_000, 0, 0] },
  )
  const agent = { id: 'pub_1', profile: 'p', slug: 'bot' }
  const { buckets, start, end, ...metrics } = await published.metrics('acme', agent, { window: '1h', bucket: '15m' })
  assert.equal(Date.parse(end) - Date.parse(start), 60 * minutes)
  assert.deepEqual(metrics, {
    window: '1h',
    bucket: '15m',
    publishedId: 'pub_1',
    profile: 'p',
    slug: 'bot',
    requests: { total: 4, ok: 1, error: 1, lost: 1, open: 1 },
    conversations: { active: 2, started: 1 },
    runs: { total: 3, ok: 2, error: 1, cancelled: 0, interrupted: 0 },
    inputTokens: 15,
    outputTokens: 7,
    cachedTokens: 1,
    toolCalls: 1,
    costCents: 0.25,
    unpricedRuns: 1,
    failedRuns: 0,
    sandboxSeconds: 0,
    ingressRequests: 4,
  })
  const sum = (of: (bucket: (typeof buckets)[number]) => number) =>
    buckets.reduce((total, bucket) => total + of(bucket), 0)
  assert.deepEqual(
    [sum((b) => b.runs.total), sum((b) => b.inputTokens), sum((b) => b.ingressRequests), sum((b) => b.failedRuns)],
    [3, 15, 4, 0],
  )
  const idle = await published.metrics('acme', { ...agent, id: 'pub_new' }, {})
  assert.deepEqual([idle.requests.total, idle.runs.total, idle.conversations.active], [0, 0, 0])
  await assert.rejects(published.metrics('acme', agent, { window: 'soon' }), { status: 400 })
})
