import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AppError, BootError } from '#kernel'
import type { StateBundle } from '#contracts/runtime'
import { testEnvelope } from '#testing'
import { hostOf, result, says, scripted } from './support.ts'

const talks = () => scripted(() => [says('hi'), result('hi')])

function stateful() {
  const states = new Map<string, StateBundle>()
  return scripted(() => [result('hi')], {
    exportState: async (sessionId) => states.get(sessionId),
    async hydrate(sessionId, bundle) {
      const text = Buffer.from(bundle.bytes).toString('latin1')
      if (text === 'corrupt') throw new AppError('invalid_state', 400)
      if (text === 'bug') throw new Error('secret text')
      states.set(sessionId, bundle)
    },
    forget: async (sessionId) => void states.delete(sessionId),
  })
}

test('/health and /healthz say ok, the runtime, who the worker is and what it uses', async (t) => {
  const { kernel } = await hostOf(t, { general: talks(), other: talks() })
  const app = kernel.listeners['sidecar']!
  for (const url of ['/health', '/healthz']) {
    const reply = await app.inject(url)
    const body = reply.json()
    assert.equal(reply.statusCode, 200)
    assert.deepEqual([body.ok, body.runtime, body.runtimes, body.inflight], [true, 'all', ['general', 'other'], 0])
    assert.equal(reply.headers['x-agent-orc-worker-instance'], body.instance)
    assert.ok(body.memory.rssBytes > 0)
  }
})

test('the worker instance id is another one in another process of the same role', async (t) => {
  const ids = await Promise.all(
    [1, 2].map(async () => (await (await hostOf(t, { general: talks() })).link.health()).instance),
  )
  assert.notEqual(ids[0], ids[1])
})

test('POST /run answers NDJSON with the worker headers', async (t) => {
  const { kernel } = await hostOf(t, { general: talks() })
  const reply = await kernel.listeners['sidecar']!.inject({ method: 'POST', url: '/run', payload: testEnvelope() })
  assert.equal(reply.statusCode, 200)
  assert.equal(reply.headers['content-type'], 'application/x-ndjson')
  assert.equal(reply.headers['x-agent-orc-worker-inflight'], '1')
  assert.ok(reply.headers['x-agent-orc-worker-instance'])
  const lines = reply.body
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line))
  assert.deepEqual(
    lines.map(({ type, seq }) => [type, seq]),
    [
      ['assistant', 1],
      ['result', 2],
    ],
  )
})

test('a poly-sidecar gives each run to the runtime of its profile, and says so in its health', async (t) => {
  const runtimes = Object.fromEntries(
    ['general', 'runtime_a', 'runtime_b'].map((name) => [name, scripted(() => [result(name)])]),
  )
  const { kernel } = await hostOf(t, runtimes)
  const app = kernel.listeners['sidecar']!
  for (const runtime of Object.keys(runtimes)) {
    const reply = await app.inject({ method: 'POST', url: '/run', payload: testEnvelope({ profile: { runtime } }) })
    assert.equal(JSON.parse(reply.body).text, runtime)
  }
  const health = (await app.inject('/health')).json()
  assert.deepEqual([health.runtime, health.runtimes], ['all', ['general', 'runtime_a', 'runtime_b']])
})

test('a sidecar of one runtime says its name, and takes runs of no other', async (t) => {
  const runtimes = { general: talks(), runtime_a: talks() }
  const { kernel } = await hostOf(t, runtimes, { mode: 'runtime_a' })
  const app = kernel.listeners['sidecar']!
  const health = (await app.inject('/healthz')).json()
  assert.deepEqual([health.ok, health.runtime, health.runtimes], [true, 'runtime_a', ['runtime_a']])
  const run = async (runtime: string) =>
    (await app.inject({ method: 'POST', url: '/run', payload: testEnvelope({ profile: { runtime } }) })).statusCode
  assert.deepEqual([await run('runtime_a'), await run('general')], [200, 400])
})

test('the header of a run counts those that are in flight when its answer begins', async (t) => {
  const go = Promise.withResolvers<void>()
  const waits = scripted(async function* () {
    yield says('one')
    await go.promise
    yield result('one')
  })
  const { kernel } = await hostOf(t, { general: waits }, { listen: true })
  const ask = () =>
    fetch(`${kernel.urls['sidecar']}/run`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(testEnvelope()),
    })
  const first = await ask()
  const second = await ask()
  const counts = [first, second].map(({ headers }) => headers.get('x-agent-orc-worker-inflight'))
  assert.deepEqual(counts, ['1', '2'])
  assert.equal(first.headers.get('x-agent-orc-worker-instance'), second.headers.get('x-agent-orc-worker-instance'))
  go.resolve()
  await Promise.all([first.text(), second.text()])
})

test('a runtime that fails in the middle leaves an error event, and a sidecar that goes on', async (t) => {
  const fails = scripted(function* (prompt) {
    yield says('half')
    if (prompt === 'fail') throw new Error('secret text')
    yield result('half')
  })
  const { kernel } = await hostOf(t, { general: fails })
  const run = async (prompt: string) => {
    const reply = await kernel.listeners['sidecar']!.inject({
      method: 'POST',
      url: '/run',
      payload: testEnvelope({ prompt }),
    })
    const lines = reply.body.trimEnd().split('\n')
    return [reply.statusCode, ...lines.map((line) => JSON.parse(line).type)]
  }
  assert.deepEqual(await run('fail'), [200, 'assistant', 'error'])
  assert.deepEqual(await run('go on'), [200, 'assistant', 'result'])
})

test('POST /run takes a prompt of a million characters', async (t) => {
  const { kernel } = await hostOf(t, { general: talks() })
  const payload = testEnvelope({ prompt: 'ü'.repeat(1_000_000) })
  const reply = await kernel.listeners['sidecar']!.inject({ method: 'POST', url: '/run', payload })
  assert.equal(reply.statusCode, 200)
})

test('POST /run refuses what is no envelope, and a runtime that this sidecar does not serve', async (t) => {
  const { kernel } = await hostOf(t, { general: talks(), other: talks() }, { mode: 'general' })
  const post = async (payload: object) => {
    const reply = await kernel.listeners['sidecar']!.inject({ method: 'POST', url: '/run', payload })
    return [reply.statusCode, reply.json().error]
  }
  assert.deepEqual(await post({}), [400, 'invalid_request'])
  assert.deepEqual(await post({ ...testEnvelope(), timeoutMs: 0 }), [400, 'invalid_request'])
  assert.deepEqual(await post(testEnvelope({ profile: { runtime: 'other' } })), [400, 'unknown_runtime'])
  assert.deepEqual(await post(testEnvelope({ sessionId: '../etc' })), [400, 'invalid session id'])
})

test('a state is exported as it was hydrated, bytes and headers', async (t) => {
  const { kernel } = await hostOf(t, { general: stateful() })
  const app = kernel.listeners['sidecar']!
  const bytes = Buffer.from([0x1f, 0x8b, 0, 0xff])
  for (const type of ['application/gzip', 'application/json', 'text/plain']) {
    const headers = { 'content-type': type, 'x-runtime-session-id': 'rs-1' }
    const put = await app.inject({ method: 'POST', url: '/state/s1?runtime=general', headers, payload: bytes })
    assert.deepEqual([put.statusCode, put.body], [204, ''])
    const got = await app.inject('/state/s1?runtime=general')
    assert.equal(got.statusCode, 200)
    assert.deepEqual(got.rawPayload, bytes)
    assert.equal(got.headers['content-type'], type)
    assert.equal(got.headers['x-runtime-session-id'], 'rs-1')
  }
  assert.equal((await app.inject({ method: 'DELETE', url: '/state/s1?runtime=general' })).statusCode, 204)
  assert.equal((await app.inject('/state/s1?runtime=general')).statusCode, 404)
})

test('the state routes answer 400, 404 and 500 as the contract says', async (t) => {
  const { kernel } = await hostOf(t, { general: stateful(), plain: talks() })
  const app = kernel.listeners['sidecar']!
  const ask = async (method: 'GET' | 'POST', url: string, payload?: string) => {
    const reply = await app.inject({ method, url, ...(payload === undefined ? {} : { payload }) })
    assert.doesNotMatch(reply.body, /secret/)
    return [reply.statusCode, reply.json().error]
  }
  assert.deepEqual(await ask('GET', '/state/s1'), [400, 'runtime_required'])
  assert.deepEqual(await ask('GET', '/state/s1?runtime=nobody'), [400, 'unknown_runtime'])
  assert.deepEqual(await ask('GET', '/state/s1?runtime=general'), [404, 'not_found'])
  assert.deepEqual(await ask('GET', '/state/s1?runtime=plain'), [404, 'not_found'])
  for (const method of ['GET', 'POST'] as const) {
    assert.equal((await ask(method, '/state/%zz?runtime=general', 'x'))[0], 400)
  }
  assert.deepEqual(await ask('POST', '/state/s1', '{}'), [400, 'runtime_required'])
  assert.deepEqual(await ask('POST', '/state/s1?runtime=general', 'corrupt'), [400, 'invalid_state'])
  assert.deepEqual(await ask('POST', '/state/s1?runtime=general'), [400, 'invalid_state'])
  assert.deepEqual(await ask('POST', '/state/s1?runtime=plain', 'x'), [400, 'state_not_supported'])
  for (const method of ['GET', 'POST'] as const) {
    assert.deepEqual(await ask(method, '/state/s%2F1?runtime=general', 'x'), [400, 'invalid session id'])
    assert.deepEqual(await ask(method, '/state/..%2F..%2Fetc?runtime=general', 'x'), [400, 'invalid session id'])
    assert.deepEqual(await ask(method, '/state/s1?runtime=%zz', 'x'), [400, 'unknown_runtime'])
    assert.deepEqual(await ask(method, '/state/s1?runtime=', 'x'), [400, 'unknown_runtime'])
  }
  assert.deepEqual(await ask('POST', '/state/s1?runtime=general', 'bug'), [500, 'internal'])
  assert.deepEqual(await ask('GET', '/state/s1?runtime=general'), [404, 'not_found'])
})

test('a sidecar of one runtime needs no runtime parameter', async (t) => {
  const { kernel } = await hostOf(t, { general: stateful(), other: talks() }, { mode: 'general' })
  const app = kernel.listeners['sidecar']!
  assert.equal((await app.inject({ method: 'POST', url: '/state/s1', payload: 'x' })).statusCode, 204)
  assert.equal((await app.inject('/state/s1')).statusCode, 200)
  assert.equal((await app.inject('/state/s1?runtime=other')).statusCode, 400)
  assert.equal((await app.inject('/health')).json().runtime, 'general')
})

test('a bundle may have 64 MiB and not more', async (t) => {
  const { kernel } = await hostOf(t, { general: stateful() })
  const post = (size: number) =>
    kernel.listeners['sidecar']!.inject({
      method: 'POST',
      url: '/state/s1?runtime=general',
      payload: Buffer.alloc(size, 120),
    })
  assert.equal((await post(64 * 1024 * 1024)).statusCode, 204)
  assert.equal((await post(64 * 1024 * 1024 + 1)).statusCode, 413)
})

test('a mode that no runtime of the role has refuses to boot with the list of those present', async (t) => {
  await assert.rejects(hostOf(t, { general: talks(), echo: talks() }, { mode: 'genral' }), (error) => {
    assert.ok(error instanceof BootError)
    assert.match(error.message, /'genral' is not a runtime of this role; present: echo, general/)
    return true
  })
})

test('ended runs are counted by runtime and status, and none is left in flight', async (t) => {
  const { kernel, metrics } = await hostOf(t, { general: talks(), broken: scripted(() => []) })
  const app = kernel.listeners['sidecar']!
  for (const runtime of ['general', 'general', 'broken']) {
    await app.inject({ method: 'POST', url: '/run', payload: testEnvelope({ profile: { runtime } }) })
  }
  assert.equal((await app.inject('/health')).json().inflight, 0)
  const text = await metrics.metrics()
  assert.match(text, /sidecar_runs_total\{runtime="general",status="ok"\} 2/)
  assert.match(text, /sidecar_runs_total\{runtime="broken",status="error"\} 1/)
  assert.match(text, /sidecar_runs_inflight 0/)
})
