import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AppError } from '#kernel'
import { profile, topology, wireOf } from './fixtures.ts'

const tenanted: readonly (readonly ['GET' | 'POST' | 'DELETE', string, unknown?])[] = [
  ['GET', '/runner/sessions/x'],
  ['GET', '/runner/sessions/x/health'],
  ['GET', '/runner/sessions/x/state'],
  ['GET', '/runner/sessions/x/toolkit/specs'],
  ['POST', '/runner/sessions/x/toolkit/invoke', { name: 'calculate' }],
  ['POST', '/runner/runs', { runId: 'r', sessionId: 'x', prompt: 'p', firstSeq: 1, timeoutMs: 1 }],
  ['POST', '/runner/sessions/hydrate', { sessionId: 'x', profileName: 'p', profile: profile() }],
]

test("another tenant's session answers exactly as an unknown one", async (t) => {
  const { call, add } = await wireOf(t)
  for (const [method, url, body] of tenanted.slice(0, -1)) {
    const unknown = await call(method, url, { tenant: 'globex', body })
    add('acme', 'x')
    const foreign = await call(method, url, { tenant: 'globex', body })
    assert.equal(unknown.statusCode, 404, url)
    assert.equal(foreign.statusCode, 404, url)
    const same = [unknown, foreign].map((r) => ({ ...r.json<object>(), request_id: '' }))
    assert.deepEqual(same[0], same[1])
    await call('DELETE', '/runner/sessions/x')
  }
  add('acme', 'x')
  const hydrate = tenanted.at(-1)!
  assert.equal((await call(hydrate[0], hydrate[1], { tenant: 'globex', body: hydrate[2] })).statusCode, 404)
})

test('a call that needs a tenant and names none is 400', async (t) => {
  const { call } = await wireOf(t)
  for (const [method, url, body] of [...tenanted, ['GET', '/runner/profiles'], ['GET', '/runner/pools']] as const) {
    const reply = await call(method, url, { tenant: '', body })
    assert.equal(reply.statusCode, 400, url)
    assert.equal(reply.json<{ error: string }>().error, 'invalid_request')
  }
})

test('info, runtimes and topology describe the process', async (t) => {
  const { call, add } = await wireOf(t)
  add('acme', 'a')
  add('globex', 'b')
  assert.deepEqual((await call('GET', '/runner/info', { tenant: '' })).json(), {
    hash: 'abcdef01',
    instance: 'i-1',
    capabilities: ['general'],
    capabilitiesKnown: true,
    substrates: [],
    substratesKnown: true,
  })
  assert.deepEqual((await call('GET', '/runner/runtimes', { tenant: '' })).json(), [
    { runtime: 'general', mode: 'sidecar', url: 'http://sidecar:7070', activeSessions: 2 },
    { runtime: 'runtime_a', mode: 'stub', url: '', activeSessions: 0 },
  ])
  assert.deepEqual((await call('GET', '/runner/topology', { tenant: '' })).json(), topology)
  assert.deepEqual((await call('GET', '/runner/state/unsaved', { tenant: '' })).json(), [
    { tenantId: 'acme', sessionId: 'sess-abcdef01-00000001' },
  ])
})

test('profiles are broadcast, listed per tenant and deleted', async (t) => {
  const { call } = await wireOf(t)
  assert.equal((await call('POST', '/runner/profiles', { body: profile() })).statusCode, 204)
  assert.equal((await call('POST', '/runner/profiles', { body: { name: 'p' } })).statusCode, 400)
  assert.deepEqual((await call('GET', '/runner/profiles')).json(), [profile()])
  assert.deepEqual((await call('GET', '/runner/profiles', { tenant: 'globex' })).json(), [])
  assert.equal((await call('DELETE', '/runner/profiles/p')).statusCode, 204)
  assert.deepEqual((await call('GET', '/runner/profiles')).json(), [])
})

test('a session is created by profile name, and its status is an integer on the wire', async (t) => {
  const { call, add } = await wireOf(t)
  const missing = await call('POST', '/runner/sessions', { body: { profileName: 'p' } })
  assert.deepEqual([missing.statusCode, missing.json<{ error: string }>().error], [404, 'unknown_profile'])
  await call('POST', '/runner/profiles', { body: profile() })
  const created = await call('POST', '/runner/sessions', { body: { profileName: 'p' } })
  assert.equal(created.statusCode, 201)
  const body = created.json<{ id: string }>()
  assert.deepEqual(body, {
    id: 'sess-abcdef01-00000001',
    tenantId: 'acme',
    profile: profile(),
    runtime: 'general',
    tools: ['calculate'],
    status: 0,
    createdAt: '2026-01-01T00:00:00.000Z',
    lastUsedAt: '2026-01-01T00:00:00.000Z',
  })
  assert.deepEqual((await call('GET', `/runner/sessions/${body.id}`)).json(), body)
  add('globex', 'other')
  assert.deepEqual((await call('GET', '/runner/sessions')).json(), [body])
  for (const [status, code] of Object.entries({ running: 1, errored: 2, shutdown: 3 })) {
    add('acme', 'x', { status: status as 'running', activeRunId: 'r', runtimeSessionId: 'v' })
    const { status: sent, activeRunId } = (await call('GET', '/runner/sessions/x')).json<Record<string, unknown>>()
    assert.deepEqual([sent, activeRunId], [code, 'r'])
  }
})

test('deleting a session is idempotent', async (t) => {
  const { call, add, sessions } = await wireOf(t)
  add('acme', 'x')
  assert.equal((await call('DELETE', '/runner/sessions/x', { tenant: 'globex' })).statusCode, 204)
  assert.equal(sessions.size, 1)
  for (const _ of [1, 2]) assert.equal((await call('DELETE', '/runner/sessions/x')).statusCode, 204)
  assert.equal(sessions.size, 0)
})

test('session health is 200 either way', async (t) => {
  const { call, add, health } = await wireOf(t)
  add('acme', 'x')
  assert.deepEqual((await call('GET', '/runner/sessions/x/health')).json(), { healthy: true })
  health.failing = true
  const reply = await call('GET', '/runner/sessions/x/health')
  assert.equal(reply.statusCode, 200)
  assert.deepEqual(reply.json(), { healthy: false, error: 'The sidecar cannot be reached.' })
})

test('hydrate takes a broadcast profile or a full one, and a bundle in base64', async (t) => {
  const { call, hydrated } = await wireOf(t)
  const hydrate = (body: object) => call('POST', '/runner/sessions/hydrate', { body: { sessionId: 's', ...body } })
  const unknown = await hydrate({ profileName: 'p' })
  assert.deepEqual([unknown.statusCode, unknown.json<{ error: string }>().error], [404, 'unknown_profile'])
  assert.equal((await hydrate({ profileName: 'p', profile: profile('q') })).statusCode, 404)
  await call('POST', '/runner/profiles', { body: profile() })
  assert.equal((await hydrate({ profileName: 'p' })).statusCode, 204)
  assert.equal(hydrated[0]!.bundle, undefined)
  const b = profile('b', { runtime: 'runtime_b' })
  const stateB64 = Buffer.from([251, 255, 0]).toString('base64')
  assert.equal((await hydrate({ profileName: 'b', profile: b, stateB64, runtimeSessionId: 'v' })).statusCode, 204)
  assert.deepEqual(hydrated[1], {
    tenantId: 'acme',
    id: 's',
    profile: b,
    bundle: { bytes: Buffer.from([251, 255, 0]), contentType: 'application/gzip', runtimeSessionId: 'v' },
  })
  for (const bad of [
    { stateB64: '%%%' },
    { stateB64: 'a' },
    { stateB64: 7 },
    { sessionId: 'a/b' },
    { profileName: 1 },
  ]) {
    assert.equal((await hydrate({ profileName: 'p', ...bad })).statusCode, 400, JSON.stringify(bad))
  }
  assert.equal(hydrated.length, 2)
})

test('export gives the raw bundle with its envelope in headers', async (t) => {
  const { call, add, states } = await wireOf(t)
  add('acme', 'x')
  const none = await call('GET', '/runner/sessions/x/state')
  assert.deepEqual([none.statusCode, none.json<{ error: string }>().error], [404, 'no_state'])
  states.set('x', { bytes: Buffer.from([1, 2, 255]), contentType: 'application/gzip', runtimeSessionId: 'v-1' })
  const reply = await call('GET', '/runner/sessions/x/state')
  assert.deepEqual([...reply.rawPayload], [1, 2, 255])
  assert.equal(reply.headers['content-type'], 'application/gzip')
  assert.equal(reply.headers['x-runtime-session-id'], 'v-1')
  const failures = [
    new AppError('sidecar_unreachable', 503),
    new Error('secret'),
    { bytes: new Uint8Array(64 * 1024 * 1024 + 1), contentType: 'application/gzip' },
  ]
  for (const failure of failures) {
    states.set('x', failure)
    const failed = await call('GET', '/runner/sessions/x/state')
    assert.deepEqual([failed.statusCode, failed.json<{ error: string }>().error], [500, 'state_export_failed'])
    assert.ok(!failed.body.includes('secret'))
  }
})

test("a tool's failure is 200, a tool out of scope 403", async (t) => {
  const { call, add } = await wireOf(t)
  add('acme', 'x')
  const spec = { name: 'calculate', description: 'Calculates.', inputSchema: { type: 'object' } }
  assert.deepEqual((await call('GET', '/runner/toolkit/specs', { tenant: '' })).json(), [spec])
  assert.deepEqual((await call('GET', '/runner/sessions/x/toolkit/specs')).json(), [spec])
  const invoke = (body: unknown) => call('POST', '/runner/sessions/x/toolkit/invoke', { body })
  assert.deepEqual((await invoke({ name: 'calculate', input: { a: 1 } })).json(), {
    result: { ok: true, content: '{"a":1}' },
  })
  const failed = await invoke({ name: 'calculate' })
  assert.deepEqual([failed.statusCode, failed.json()], [200, { result: { ok: false, content: 'No input.' } }])
  assert.equal((await invoke({ name: 'http_fetch' })).statusCode, 403)
  assert.equal((await invoke({})).statusCode, 400)
})

test('pools are kept per tenant', async (t) => {
  const { call } = await wireOf(t)
  const created = await call('POST', '/runner/pools', { body: { name: 'blue', size: 3 } })
  const pool = created.json<{ id: string }>()
  assert.equal(created.statusCode, 201)
  assert.match(pool.id, /^pool_/)
  assert.deepEqual((await call('GET', '/runner/pools')).json(), [{ name: 'blue', size: 3, id: pool.id }])
  assert.deepEqual((await call('GET', '/runner/pools', { tenant: 'globex' })).json(), [])
  assert.equal((await call('DELETE', `/runner/pools/${pool.id}`, { tenant: 'globex' })).statusCode, 404)
  assert.equal((await call('DELETE', `/runner/pools/${pool.id}`)).statusCode, 204)
  assert.deepEqual((await call('GET', '/runner/pools')).json(), [])
})

test('a page of the broadcast is taken whole for its tenant, and answers how far the runner is', async (t) => {
  const { call, taken } = await wireOf(t)
  const p = profile('p', { version: 7, pool: 'blue' })
  const page = {
    after: 4,
    revision: 7,
    changes: [
      { revision: 5, kind: 'profile', key: 'p', profile: p },
      { revision: 6, kind: 'pool', key: 'pool_1', pool: { id: 'pool_1', runners: ['abcdef01'] } },
      { revision: 7, kind: 'profile', key: 'gone' },
    ],
  }
  const reply = await call('POST', '/runner/broadcast', { body: page })
  assert.deepEqual([reply.statusCode, reply.json()], [200, { revision: 7 }])
  assert.deepEqual(taken, [{ tenant: 'acme', page }])
  assert.equal((await call('POST', '/runner/broadcast', { tenant: '', body: page })).statusCode, 400)
  const large = {
    after: 0,
    revision: 1,
    changes: [{ ...page.changes[0], profile: { ...p, instructions: 'x'.repeat(3_000_000) } }],
  }
  assert.equal((await call('POST', '/runner/broadcast', { body: large })).statusCode, 200)
})

test('a conductor asks for all tenants at once with which of them the runner is behind', async (t) => {
  const { call } = await wireOf(t)
  const body = { revisions: { acme: 3, globex: 4 } }
  const reply = await call('POST', '/runner/broadcast/behind', { tenant: '', body })
  assert.deepEqual([reply.statusCode, reply.json()], [200, { tenants: ['globex'] }])
})

test('without VFS and workers the lease lists are empty arrays and a lease is 404 in the words of the contract', async (t) => {
  const { call, add } = await wireOf(t)
  add('acme', 'x')
  for (const tenant of ['', 'acme']) {
    assert.deepEqual((await call('GET', '/runner/vfs/leases', { tenant })).json(), [])
    assert.deepEqual((await call('GET', '/runner/worker/leases', { tenant })).json(), [])
  }
  const vfs = await call('GET', '/runner/sessions/x/vfs-lease')
  assert.deepEqual([vfs.statusCode, vfs.json<{ error: string }>().error], [404, 'no vfs session'])
  const worker = await call('GET', '/runner/sessions/x/worker')
  assert.deepEqual([worker.statusCode, worker.json<{ error: string }>().error], [404, 'no sandbox worker'])
})

test('leases are sorted by session, those of the tenant or of all of them, and one is found by its session', async (t) => {
  const { call, leases } = await wireOf(t)
  leases.set('acme', [
    { sessionId: 's2', state: 'paused' },
    { sessionId: 's1', state: 'gone' },
  ])
  leases.set('globex', [{ sessionId: 's3', state: 'running' }])
  const ids = async (tenant: string) =>
    (await call('GET', '/runner/worker/leases', { tenant })).json<{ sessionId: string }[]>().map((l) => l.sessionId)
  assert.deepEqual(await ids('acme'), ['s1', 's2'])
  assert.deepEqual(await ids(''), ['s1', 's2', 's3'])
  const one = (tenant: string) => call('GET', '/runner/sessions/s2/worker', { tenant })
  assert.equal((await one('acme')).json<{ state: string }>().state, 'paused')
  assert.equal((await one('globex')).statusCode, 404)
})

test('a substrate that cannot be read is 502, whatever it calls its failure', async (t) => {
  const { call, leases } = await wireOf(t)
  for (const failure of [new AppError('sandbox_unreachable', 503), new Error('refused')]) {
    leases.get = () => {
      throw failure
    }
    const reply = await call('GET', '/runner/sessions/s1/worker')
    assert.deepEqual([reply.statusCode, reply.json<{ error: string }>().error], [502, 'upstream'])
    assert.equal((await call('GET', '/runner/worker/leases')).statusCode, 502)
  }
})

test('an event of a sandbox provider is answered with how many cached states it made stale', async (t) => {
  const { call } = await wireOf(t)
  const tell = (sandboxId: string) =>
    call('POST', '/runner/sandbox-events/invalidate', { tenant: '', body: { provider: 'vm', sandboxId } })
  assert.deepEqual(
    [(await tell('box-1')).json(), (await tell('box-2')).json()],
    [{ invalidated: 1 }, { invalidated: 0 }],
  )
  assert.equal((await call('POST', '/runner/sandbox-events/invalidate', { tenant: '', body: {} })).statusCode, 400)
})
