import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AppError } from '#kernel'
import type { WorkerLease } from '#contracts/leases'
import type { RunnerTopology } from '#contracts/runner'
import type { SandboxWorkers } from '#contracts/workers'
import { answer, execute, type Fixture, hang, profile, run, runnerOf, until } from './fixtures.ts'

const well = { ok: true, runtime: 'all', runtimes: ['general'], instance: 'i-7', inflight: 2 }
const add = (f: Fixture, tenant: string, id: string) => f.runner.hydrate(tenant, id, profile('p', ['calculate']))
const errorOf = (reply: { json<T>(): T }) => reply.json<{ error: string }>().error

const tenanted: readonly (readonly ['GET' | 'POST' | 'DELETE', string, unknown?])[] = [
  ['GET', '/runner/sessions/x'],
  ['GET', '/runner/sessions/x/health'],
  ['GET', '/runner/sessions/x/state'],
  ['GET', '/runner/sessions/x/toolkit/specs'],
  ['POST', '/runner/sessions/x/toolkit/invoke', { name: 'calculate' }],
  ['GET', '/runner/sessions/x/delegations'],
  ['POST', '/runner/runs', { runId: 'r', sessionId: 'x', prompt: 'p', firstSeq: 1, timeoutMs: 1 }],
  ['POST', '/runner/sessions/hydrate', { sessionId: 'x', profileName: 'p', profile: profile() }],
]

test("another tenant's session answers exactly as an unknown one", async (t) => {
  const f = await runnerOf(t, answer)
  for (const [method, url, body] of tenanted.slice(0, -1)) {
    const unknown = await f.call(method, url, { tenant: 'globex', body })
    await add(f, 'acme', 'x')
    const foreign = await f.call(method, url, { tenant: 'globex', body })
    assert.equal(unknown.statusCode, 404, url)
    assert.equal(foreign.statusCode, 404, url)
    const same = [unknown, foreign].map((r) => ({ ...r.json<object>(), request_id: '' }))
    assert.deepEqual(same[0], same[1])
    await f.call('DELETE', '/runner/sessions/x')
  }
  await add(f, 'acme', 'x')
  const hydrate = tenanted.at(-1)!
  assert.equal((await f.call(hydrate[0], hydrate[1], { tenant: 'globex', body: hydrate[2] })).statusCode, 404)
})

test('a call that needs a tenant and names none is 400', async (t) => {
  const { call } = await runnerOf(t, answer)
  for (const [method, url, body] of [...tenanted, ['GET', '/runner/profiles'], ['GET', '/runner/pools']] as const) {
    const reply = await call(method, url, { tenant: '', body })
    assert.equal(reply.statusCode, 400, url)
    assert.equal(errorOf(reply), 'invalid_request')
  }
})

test('info, runtimes, topology and what is unsaved are of the process, across tenants', async (t) => {
  const f = await runnerOf(t, answer)
  f.pace.health = async () => well
  const get = async <T>(url: string) => (await f.call('GET', url, { tenant: '' })).json<T>()
  await execute(f)
  await add(f, 'globex', 'b')
  assert.deepEqual(await get('/runner/info'), await f.runner.info())
  assert.deepEqual(await get('/runner/runtimes'), [
    { runtime: 'general', mode: 'sidecar', url: 'http://sidecar:7070', activeSessions: 0 },
    { runtime: 'runtime_a', mode: 'stub', url: '', activeSessions: 2 },
  ])
  const { process: seen, sidecars, ...counts } = await get<RunnerTopology>('/runner/topology')
  assert.deepEqual(counts, { activeSessions: 2, sessionsByRuntime: { runtime_a: 2 } })
  assert.equal(seen.numGoroutine, null, 'not measured is null, never zero')
  assert.ok(seen.allocBytes > 0 && seen.numCPU > 0)
  assert.deepEqual(
    sidecars.map(({ runtime, kind, state }) => [runtime, kind, state]),
    [
      ['general', 'sidecar', 'live'],
      ['runtime_a', 'stub', 'stub'],
    ],
  )
  assert.deepEqual(await get('/runner/state/unsaved'), [{ tenantId: 'acme', sessionId: run().sessionId }])
})

test('profiles are broadcast, listed per tenant and deleted', async (t) => {
  const { call } = await runnerOf(t, answer)
  assert.equal((await call('POST', '/runner/profiles', { body: profile() })).statusCode, 204)
  assert.equal((await call('POST', '/runner/profiles', { body: { name: 'p' } })).statusCode, 400)
  assert.deepEqual((await call('GET', '/runner/profiles')).json(), [profile()])
  assert.deepEqual((await call('GET', '/runner/profiles', { tenant: 'globex' })).json(), [])
  assert.equal((await call('DELETE', '/runner/profiles/p')).statusCode, 204)
  assert.deepEqual((await call('GET', '/runner/profiles')).json(), [])
})

test('a session is created by profile name, and its status is an integer on the wire', async (t) => {
  const f = await runnerOf(t, hang)
  const { call } = f
  const missing = await call('POST', '/runner/sessions', { body: { profileName: 'p' } })
  assert.deepEqual([missing.statusCode, errorOf(missing)], [404, 'unknown_profile'])
  await call('POST', '/runner/profiles', { body: profile('p', ['calculate']) })
  const created = await call('POST', '/runner/sessions', { body: { profileName: 'p' } })
  assert.equal(created.statusCode, 201)
  const body = created.json<{ id: string }>()
  const held = f.runner.table.any(body.id)!
  assert.deepEqual(body, {
    id: held.id,
    tenantId: 'acme',
    profile: profile('p', ['calculate']),
    runtime: 'runtime_a',
    tools: ['calculate'],
    status: 0,
    createdAt: held.createdAt,
    lastUsedAt: held.lastUsedAt,
  })
  assert.deepEqual((await call('GET', `/runner/sessions/${body.id}`)).json(), body)
  await add(f, 'globex', 'other')
  assert.deepEqual((await call('GET', '/runner/sessions')).json(), [body])
  const running = execute(f, { sessionId: body.id })
  await until(() => f.signals.length === 1)
  held.runtimeSessionId = 'v'
  const seen = (await call('GET', `/runner/sessions/${body.id}`)).json<Record<string, unknown>>()
  assert.deepEqual([seen['status'], seen['activeRunId'], seen['runtimeSessionId']], [1, 'r1', 'v'])
  await call('DELETE', '/runner/runs/r1?reason=timeout')
  await running
  assert.equal((await call('GET', `/runner/sessions/${body.id}`)).json<{ status: number }>().status, 2)
})

test('deleting a session is idempotent', async (t) => {
  const f = await runnerOf(t, answer)
  await add(f, 'acme', 'x')
  assert.equal((await f.call('DELETE', '/runner/sessions/x', { tenant: 'globex' })).statusCode, 204)
  assert.equal(f.runner.table.size, 1)
  for (const _ of [1, 2]) assert.equal((await f.call('DELETE', '/runner/sessions/x')).statusCode, 204)
  assert.equal(f.runner.table.size, 0)
})

test('session health is 200 either way', async (t) => {
  const f = await runnerOf(t, answer)
  await add(f, 'acme', 'x')
  f.pace.health = async () => well
  assert.deepEqual((await f.call('GET', '/runner/sessions/x/health')).json(), { healthy: true })
  f.pace.health = async () => {
    throw new AppError('sidecar_unreachable', 503, { message: 'The sidecar cannot be reached.' })
  }
  const reply = await f.call('GET', '/runner/sessions/x/health')
  assert.equal(reply.statusCode, 200)
  assert.deepEqual(reply.json(), { healthy: false, error: 'The sidecar cannot be reached.' })
})

test('hydrate takes a broadcast profile or a full one, and a bundle in base64', async (t) => {
  const f = await runnerOf(t, answer)
  const hydrate = (body: object) => f.call('POST', '/runner/sessions/hydrate', { body: { sessionId: 's', ...body } })
  const unknown = await hydrate({ profileName: 'p' })
  assert.deepEqual([unknown.statusCode, errorOf(unknown)], [404, 'unknown_profile'])
  assert.equal((await hydrate({ profileName: 'p', profile: profile('q') })).statusCode, 404)
  await f.call('POST', '/runner/profiles', { body: profile() })
  assert.equal((await hydrate({ profileName: 'p' })).statusCode, 204)
  assert.deepEqual([f.sessions.get('s')!.profile, f.hydrated], [profile(), []])
  const b = profile('b', [], 'runtime_b')
  const stateB64 = Buffer.from([251, 255, 0]).toString('base64')
  const brought = { sessionId: 't', profileName: 'b', profile: b, stateB64, runtimeSessionId: 'v' }
  assert.equal((await hydrate(brought)).statusCode, 204)
  assert.deepEqual(f.bundles.get('t'), {
    bytes: Buffer.from([251, 255, 0]),
    contentType: 'application/gzip',
    runtimeSessionId: 'v',
  })
  assert.deepEqual([f.sessions.get('t')!.tenantId, f.sessions.get('t')!.profile], ['acme', b])
  for (const bad of [
    { stateB64: '%%%' },
    { stateB64: 'a' },
    { stateB64: 7 },
    { sessionId: 'a/b' },
    { profileName: 1 },
  ]) {
    assert.equal((await hydrate({ profileName: 'p', ...bad })).statusCode, 400, JSON.stringify(bad))
  }
  assert.equal(f.runner.table.size, 2)
})

test('export gives the raw bundle with its envelope in headers', async (t) => {
  const f = await runnerOf(t, answer)
  await add(f, 'acme', 'x')
  const none = await f.call('GET', '/runner/sessions/x/state')
  assert.deepEqual([none.statusCode, errorOf(none)], [404, 'no_state'])
  f.states.set('x', { bytes: Buffer.from([1, 2, 255]), contentType: 'application/gzip', runtimeSessionId: 'v-1' })
  const reply = await f.call('GET', '/runner/sessions/x/state')
  assert.deepEqual([...reply.rawPayload], [1, 2, 255])
  assert.equal(reply.headers['content-type'], 'application/gzip')
  assert.equal(reply.headers['x-runtime-session-id'], 'v-1')
  const failures = [
    new AppError('sidecar_unreachable', 503),
    new Error('secret'),
    { bytes: new Uint8Array(64 * 1024 * 1024 + 1), contentType: 'application/gzip' },
  ]
  for (const failure of failures) {
    f.states.set('x', failure)
    const failed = await f.call('GET', '/runner/sessions/x/state')
    assert.deepEqual([failed.statusCode, errorOf(failed)], [500, 'state_export_failed'])
    assert.ok(!failed.body.includes('secret'))
  }
})

test("a tool's failure is 200, a tool out of scope 403", async (t) => {
  const f = await runnerOf(t, answer)
  await add(f, 'acme', 'x')
  const specs = ['calculate', 'current_time'].map((name) => ({
    name,
    description: name,
    inputSchema: { type: 'object' },
  }))
  assert.deepEqual((await f.call('GET', '/runner/toolkit/specs', { tenant: '' })).json(), specs)
  assert.deepEqual((await f.call('GET', '/runner/sessions/x/toolkit/specs')).json(), specs.slice(0, 1))
  const invoke = (body: unknown) => f.call('POST', '/runner/sessions/x/toolkit/invoke', { body })
  assert.deepEqual((await invoke({ name: 'calculate', input: { a: 1 } })).json(), {
    result: { ok: true, content: 'done' },
  })
  const failed = await invoke({ name: 'calculate' })
  assert.deepEqual([failed.statusCode, failed.json()], [200, { result: { ok: false, content: 'No input.' } }])
  assert.equal((await invoke({ name: 'http_fetch' })).statusCode, 403)
  assert.equal((await invoke({})).statusCode, 400)
})

test('pools are kept per tenant', async (t) => {
  const { call } = await runnerOf(t, answer)
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
  const { call, runner } = await runnerOf(t, answer)
  const p = { ...profile(), version: 7, pool: 'blue' }
  const pool = { id: 'pool_1', runners: ['abcdef01'] }
  const page = {
    after: 0,
    revision: 7,
    changes: [
      { revision: 5, kind: 'profile', key: 'p', profile: p },
      { revision: 6, kind: 'pool', key: 'pool_1', pool },
      { revision: 7, kind: 'profile', key: 'gone' },
    ],
  }
  const reply = await call('POST', '/runner/broadcast', { body: page })
  assert.deepEqual([reply.statusCode, reply.json()], [200, { revision: 7 }])
  assert.deepEqual([runner.broadcast.profiles('acme'), runner.broadcast.pools('acme')], [[p], [pool]])
  assert.deepEqual(runner.broadcast.profiles('globex'), [])
  assert.equal((await call('POST', '/runner/broadcast', { tenant: '', body: page })).statusCode, 400)
  const large = { ...page.changes[0], profile: { ...p, instructions: 'x'.repeat(3_000_000) } }
  const taken = await call('POST', '/runner/broadcast', { body: { after: 7, revision: 8, changes: [large] } })
  assert.deepEqual(taken.json(), { revision: 8 })
  // A conductor asks for all tenants at once.
  const body = { revisions: { acme: 8, globex: 4 } }
  const behind = await call('POST', '/runner/broadcast/behind', { tenant: '', body })
  assert.deepEqual([behind.statusCode, behind.json()], [200, { tenants: ['globex'] }])
})

test('without VFS and workers the lease lists are empty arrays and a lease is 404 in the words of the contract', async (t) => {
  const f = await runnerOf(t, answer)
  await add(f, 'acme', 'x')
  for (const tenant of ['', 'acme']) {
    assert.deepEqual((await f.call('GET', '/runner/vfs/leases', { tenant })).json(), [])
    assert.deepEqual((await f.call('GET', '/runner/worker/leases', { tenant })).json(), [])
  }
  const vfs = await f.call('GET', '/runner/sessions/x/vfs-lease')
  assert.deepEqual([vfs.statusCode, errorOf(vfs)], [404, 'no vfs session'])
  const worker = await f.call('GET', '/runner/sessions/x/worker')
  assert.deepEqual([worker.statusCode, errorOf(worker)], [404, 'no sandbox worker'])
})

/** Sandboxes that have these leases and nothing else. */
const leasing = (leases: Readonly<Record<string, WorkerLease[]>>, failure?: Error) => {
  const readable = <T>(value: T): Promise<T> => (failure ? Promise.reject(failure) : Promise.resolve(value))
  return {
    substrates: ['vm'],
    countIn() {},
    leases: (tenant?: string) => readable(tenant === undefined ? Object.values(leases).flat() : (leases[tenant] ?? [])),
    lease: (tenant: string, id: string) => readable(leases[tenant]?.find(({ sessionId }) => sessionId === id)),
    invalidate: (provider: string, sandboxId: string) => Number(`${provider}/${sandboxId}` === 'vm/box-1'),
  } as unknown as SandboxWorkers
}

test('leases are sorted by session, those of the tenant or of all of them, and one is found by its session', async (t) => {
  const workers = leasing({
    acme: [
      { sessionId: 's2', state: 'paused' },
      { sessionId: 's1', state: 'gone' },
    ],
    globex: [{ sessionId: 's3', state: 'running' }],
  })
  const { call } = await runnerOf(t, answer, {}, workers)
  const ids = async (tenant: string) =>
    (await call('GET', '/runner/worker/leases', { tenant })).json<{ sessionId: string }[]>().map((l) => l.sessionId)
  assert.deepEqual(await ids('acme'), ['s1', 's2'])
  assert.deepEqual(await ids(''), ['s1', 's2', 's3'])
  const one = (tenant: string) => call('GET', '/runner/sessions/s2/worker', { tenant })
  assert.equal((await one('acme')).json<{ state: string }>().state, 'paused')
  assert.equal((await one('globex')).statusCode, 404)
})

test('a substrate that cannot be read is 502, whatever it calls its failure', async (t) => {
  for (const failure of [new AppError('sandbox_unreachable', 503), new Error('refused')]) {
    const { call } = await runnerOf(t, answer, {}, leasing({}, failure))
    const reply = await call('GET', '/runner/sessions/s1/worker')
    assert.deepEqual([reply.statusCode, errorOf(reply)], [502, 'upstream'])
    assert.equal((await call('GET', '/runner/worker/leases')).statusCode, 502)
  }
})

test('an event of a sandbox provider is answered with how many cached states it made stale', async (t) => {
  const { call } = await runnerOf(t, answer, {}, leasing({}))
  const tell = (sandboxId: string) =>
    call('POST', '/runner/sandbox-events/invalidate', { tenant: '', body: { provider: 'vm', sandboxId } })
  assert.deepEqual(
    [(await tell('box-1')).json(), (await tell('box-2')).json()],
    [{ invalidated: 1 }, { invalidated: 0 }],
  )
  assert.equal((await call('POST', '/runner/sandbox-events/invalidate', { tenant: '', body: {} })).statusCode, 400)
})
