import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AppError } from '#kernel'
import { type PublishedMetrics, PublishedStats } from '#contracts/stats'
import { fake } from '#testing'
import { conductor, countingTokens } from './kernel.ts'

const at = '2026-01-01T00:00:00.000Z'
const runs = { total: 1, ok: 1, error: 0, cancelled: 0, interrupted: 0 }
const measured = {
  inputTokens: 1,
  outputTokens: 1,
  cachedTokens: 0,
  toolCalls: 0,
  costCents: 0.000001,
  unpricedRuns: 0,
}
const always = { failedRuns: 0, sandboxSeconds: 0 }
const metrics = (agent: { id: string; profile: string; slug: string }): PublishedMetrics => ({
  window: '1h',
  start: at,
  end: at,
  publishedId: agent.id,
  profile: agent.profile,
  slug: agent.slug,
  requests: { total: 1, ok: 1, error: 0, lost: 0, open: 0 },
  conversations: { active: 1, started: 1 },
  runs,
  ...measured,
  ...always,
  ingressRequests: 1,
  bucket: '1m',
  buckets: [{ start: at, end: at, runs, ...measured, ...always, ingressRequests: 1 }],
})

test('metrics are those of the active publication, with nothing lost on the way', async (t) => {
  const asked: unknown[] = []
  const stats = fake(PublishedStats, {
    async metrics(tenantId, agent, query) {
      asked.push([tenantId, agent, { ...query }])
      if (query.window === 'soon') throw new AppError('invalid_request', 400)
      return metrics(agent)
    },
  })
  const { call, profile } = await conductor(t, {}, countingTokens(), [stats])
  await profile('p')
  await call('POST', '/api/profiles/p/publish', { slug: 'old' })
  await call('DELETE', '/api/profiles/p/published')
  const gone = await call('GET', '/api/profiles/p/metrics')
  assert.deepEqual([gone.statusCode, gone.json().error], [404, 'not_published'])
  const { id } = (await call('POST', '/api/profiles/p/publish', { slug: 'bot' })).json()
  const reply = await call('GET', '/api/profiles/p/metrics?window=1h&bucket=1m')
  const agent = { id, profile: 'p', slug: 'bot' }
  assert.deepEqual([reply.statusCode, reply.json()], [200, metrics(agent)])
  assert.deepEqual(asked, [['acme', agent, { window: '1h', bucket: '1m' }]])
  await call('PATCH', '/api/profiles/p/published', { enabled: false })
  assert.equal((await call('GET', '/api/profiles/p/metrics')).statusCode, 200, 'switched off, it keeps its history')
  assert.equal((await call('GET', '/api/profiles/p/metrics?window=soon')).statusCode, 400)
  assert.equal((await call('GET', '/api/profiles/p/metrics?bucket=7m')).statusCode, 400)
  for (const [name, tenant] of [
    ['nobody', 'acme'],
    ['p', 'globex'],
    ['%01', 'acme'],
  ] as const) {
    const unknown = await call('GET', `/api/profiles/${name}/metrics`, undefined, tenant)
    assert.deepEqual([unknown.statusCode, unknown.json().error], [404, 'not_published'])
  }
})

test('a role without statistics has no metrics route', async (t) => {
  const { call, profile } = await conductor(t)
  await profile('p')
  await call('POST', '/api/profiles/p/publish', {})
  assert.equal((await call('GET', '/api/profiles/p/metrics')).statusCode, 404)
})
