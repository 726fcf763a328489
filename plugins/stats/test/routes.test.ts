import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ago, minutes, statsKernel } from './kernel.ts'

const profileRow = (name: string) => ({ name, id: name, document: '{}' })
const publication = (id: string, profile: string, more: object = {}) => ({
  id,
  profile_name: profile,
  slug: profile,
  rate_limit_rpm: 1,
  sync_max_duration_seconds: 1,
  ...more,
})
const session = (id: string, status: string, created: Date) => ({
  id,
  profile: 'p',
  runtime: 'general',
  profile_snapshot: '{}',
  status,
  created_at: created,
  claim_run: status === 'running' ? 'run' : null,
})

test('the overview sums up a window and what there is now', async (t) => {
  const { get, meters, insert } = await statsKernel(t)
  await insert('acme', 'profiles', profileRow('p'), profileRow('q'))
  await insert('globex', 'profiles', profileRow('p'))
  await insert(
    'acme',
    'published_agents',
    publication('pub_1', 'p'),
    publication('pub_0', 'q', { unpublished_at: ago(0) }),
  )
  await insert(
    'acme',
    'sessions',
    session('s1', 'idle', ago(minutes)),
    session('s2', 'running', ago(minutes)),
    session('s3', 'errored', ago(minutes)),
    session('s4', 'shutdown', ago(minutes)),
    session('s5', 'idle', ago(90 * minutes)),
  )
  const running = { session_id: 's2', profile: 'p', prompt: 'x', claim_owner: 'o', claim_epoch: 1, status: 'running' }
  await insert('acme', 'runs', { id: 'r1', ...running }, { id: 'r2', ...running, started_at: ago(26 * 60 * minutes) })
  await insert('acme', 'run_queue', { session_id: 's2', run_id: 'r3' }, { session_id: 's2', run_id: 'r4' })
  await insert('globex', 'run_queue', { session_id: 's2', run_id: 'r3' })
  await meters(
    { at: ago(minutes), ms: 1_000, tokens: [10, 4, 2], toolCalls: 2, microcents: 1 },
    { at: ago(2 * minutes), ms: 2_000, tokens: [20, 5, 0], microcents: 2_000_000 },
    { at: ago(3 * minutes), ms: 3_000, status: 'error', microcents: null },
    { at: ago(3 * minutes), ms: 10_000, status: 'interrupted' },
    { at: ago(4 * minutes), ms: 1_000, status: 'cancelled' },
    { at: ago(61 * minutes), tokens: [1_000, 1_000, 1_000] },
    { at: ago(minutes), tenant: 'globex', tokens: [1_000, 1_000, 1_000] },
  )
  const use = { subject: 'pub_1', minute: ago(5 * minutes), recorded_at: ago(3 * minutes) }
  await insert(
    'acme',
    'usage_meters',
    { meter: 'ingress', amount: 7, ...use },
    { meter: 'sandbox_seconds', amount: 9, ...use },
  )
  const reply = await get('/api/stats/overview?window=1h')
  assert.equal(reply.statusCode, 200)
  const { start, end, ...overview } = reply.json()
  assert.equal(Date.parse(end) - Date.parse(start), 60 * minutes)
  assert.deepEqual(overview, {
    window: '1h',
    runs: { total: 5, ok: 2, error: 1, cancelled: 1, interrupted: 1, running: 1, queued: 2 },
    failedRuns: 2,
    successRate: 0.5,
    durationMs: { p50: 2_000, p95: 8_600 },
    inputTokens: 30,
    outputTokens: 9,
    cachedTokens: 2,
    toolCalls: 2,
    costCents: 2.000001,
    unpricedRuns: 1,
    sandboxSeconds: 9,
    ingressRequests: 7,
    sessions: { total: 4, exact: true, idle: 1, running: 1, errored: 1, shutdown: 1 },
    profiles: 2,
    publishedAgents: 1,
  })
  assert.equal((await get('/api/stats/overview')).json().runs.total, 6, '24 hours unless told otherwise')
})

test('a tenant without anything gets zeros, not errors', async (t) => {
  const { get } = await statsKernel(t)
  const overview = (await get('/api/stats/overview', 'nobody')).json()
  assert.deepEqual(
    [overview.successRate, overview.durationMs, overview.runs.total, overview.costCents],
    [null, null, 0, 0],
  )
  const { totals, topPublishedAgents } = (await get('/api/usage', 'nobody')).json()
  assert.deepEqual([totals, topPublishedAgents], [{ toolCalls: 0, sandboxSeconds: 0, ingressRequests: 0 }, []])
  const agents = await get('/api/stats/agents?limit=5', 'nobody')
  assert.deepEqual([agents.json(), agents.headers['x-total-count']], [[], '0'])
  assert.equal((await get('/api/stats/timeseries', 'nobody')).json().buckets.length >= 96, true)
})

test('profiles are compared in every order, equal ones by name, deleted and idle ones too', async (t) => {
  const { get, meters, insert } = await statsKernel(t)
  for (const name of ['Zed', 'a', 'b', 'c']) await insert('acme', 'profiles', profileRow(name))
  await meters(
    { at: ago(3 * minutes), profile: 'a', session: 's1', status: 'error', tokens: [5, 5, 0], microcents: null },
    { at: ago(2 * minutes), profile: 'a', session: 's1', tokens: [1, 1, 0], microcents: 500_000 },
    { at: ago(9 * minutes), profile: 'b', session: 's2', status: 'interrupted', tokens: [50, 0, 0] },
    { at: ago(8 * minutes), profile: 'b', session: 's3', status: 'error' },
    { at: ago(7 * minutes), profile: 'b', session: 's4' },
    { at: ago(minutes), profile: 'gone', session: 's5', tokens: [12, 0, 0] },
    { at: ago(26 * 60 * minutes), profile: 'c', session: 's6', tokens: [999, 0, 0] },
    { at: ago(minutes), tenant: 'globex', profile: 'theirs' },
  )
  const names = async (query: string): Promise<string> =>
    (await get(`/api/stats/agents?${query}`))
      .json<{ profile: string }[]>()
      .map((row) => row.profile)
      .join(' ')
  assert.equal(await names(''), 'gone a b Zed c')
  assert.equal(await names('sort=last_activity_desc'), 'gone a b Zed c')
  assert.equal(await names('sort=tokens_desc'), 'b a gone Zed c')
  assert.equal(await names('sort=failures_desc'), 'b a Zed c gone')
  assert.equal(await names('sort=runs_desc'), 'b a gone Zed c')
  assert.equal(await names('sort=sessions_desc'), 'b a gone Zed c')
  assert.equal(await names('sort=name_asc'), 'Zed a b c gone')
  const reply = await get('/api/stats/agents?sort=name_asc&window=2d&limit=2&offset=1')
  assert.deepEqual([reply.headers['x-total-count'], reply.headers['x-window']], ['5', '2d'])
  assert.match(String(reply.headers['link']), /sort=name_asc.*window=2d/)
  const [a, b] = reply.json()
  assert.deepEqual(
    { ...a, lastActivityAt: 'then' },
    {
      profile: 'a',
      deleted: false,
      runs: { total: 2, ok: 1, error: 1, cancelled: 0, interrupted: 0 },
      inputTokens: 6,
      outputTokens: 6,
      cachedTokens: 0,
      toolCalls: 0,
      costCents: 0.5,
      unpricedRuns: 1,
      failedRuns: 1,
      sessions: 1,
      lastActivityAt: 'then',
    },
  )
  assert.deepEqual([b.profile, b.sessions, b.failedRuns], ['b', 3, 2])
  const behind = await get('/api/stats/agents?limit=2&offset=99')
  assert.deepEqual([behind.json(), behind.headers['x-total-count']], [[], '5'])
  const rows = (await get('/api/stats/agents')).json()
  assert.deepEqual([rows[0].deleted, rows[4].lastActivityAt], [true, null])
})

test('usage shows the meters of the tenant and its busiest published agents, former ones too', async (t) => {
  const { get, meters, insert } = await statsKernel(t)
  await insert('acme', 'profiles', profileRow('p'), profileRow('q'))
  await insert(
    'acme',
    'published_agents',
    publication('pub_1', 'p'),
    publication('pub_2', 'q', { unpublished_at: ago(0) }),
  )
  const ingress = (subject: string, before: number, amount: number) => {
    const minute = new Date(Math.floor(+ago(before * minutes) / minutes) * minutes)
    return { meter: 'ingress', subject, amount, minute, recorded_at: ago((before - 2) * minutes) }
  }
  await insert(
    'acme',
    'usage_meters',
    ingress('pub_1', 5, 3),
    ingress('pub_1', 6, 4),
    ingress('pub_2', 6, 9),
    ingress('pub_2', 61, 50),
  )
  await insert('globex', 'usage_meters', ingress('pub_1', 6, 1_000))
  await meters({ at: ago(minutes), toolCalls: 5 }, { at: ago(minutes), toolCalls: 1_000, tenant: 'globex' })
  const { totals, topPublishedAgents, window } = (await get('/api/usage?window=1h')).json()
  assert.deepEqual(totals, { toolCalls: 5, sandboxSeconds: 0, ingressRequests: 16 })
  assert.equal(window, '1h')
  assert.deepEqual(topPublishedAgents, [
    { id: 'pub_2', slug: 'q', profile: 'q', active: false, ingressRequests: 9 },
    { id: 'pub_1', slug: 'p', profile: 'p', active: true, ingressRequests: 7 },
  ])
})

test('every route takes a window, cuts it to 30 days and refuses what is none', async (t) => {
  const { get } = await statsKernel(t)
  for (const path of ['/api/stats/overview', '/api/stats/timeseries', '/api/stats/agents', '/api/usage']) {
    const long = await get(`${path}?window=1000d`)
    assert.equal(long.statusCode, 200, path)
    assert.equal(long.headers['x-window'] ?? long.json().window, '720h')
    for (const query of [
      'window=',
      'window=soon',
      'window=0h',
      'window=-1h',
      'window=1h&window=2h',
      `window=${'1'.repeat(50)}h`,
    ]) {
      const bad = await get(`${path}?${query}`)
      assert.deepEqual([bad.statusCode, bad.json().error], [400, 'invalid_request'], `${path}?${query}`)
      assert.ok(bad.json().message)
    }
  }
  for (const query of ['bucket=2h', 'window=30d&bucket=1m'])
    assert.equal((await get(`/api/stats/timeseries?${query}`)).statusCode, 400, query)
  for (const query of ['sort=cost_desc', 'sort=', 'limit=0', 'limit=201', 'offset=-1'])
    assert.equal((await get(`/api/stats/agents?${query}`)).statusCode, 400, query)
  const day = (await get('/api/stats/timeseries?window=1d&bucket=1h')).json()
  assert.ok(day.buckets.length >= 24 && day.buckets.length <= 25)
})
