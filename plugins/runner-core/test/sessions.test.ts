import assert from 'node:assert/strict'
import { test } from 'node:test'
import { runnerHash } from '#contracts/ids'
import { SessionTable } from '../sessions.ts'
import { answer, codeOf, collect, execute, hang, profile, run, runnerOf, until } from './fixtures.ts'

const bundle = (text: string) => ({ bytes: Buffer.from(text), contentType: 'application/json' })

test("a session made here has the runner's hash in its id and a snapshot of its toolkit", async (t) => {
  const f = await runnerOf(t, answer)
  assert.throws(() => f.core.createSession('acme', 'p'), { code: 'unknown_profile', status: 404 })
  await f.core.putProfile('acme', profile('p', ['current_time', 'nope', 'calculate']))
  const session = f.core.createSession('acme', 'p')
  assert.match(session.id, new RegExp(`^sess-${runnerHash('http://runner.test:7060')}-[0-9a-f]{8}$`))
  assert.deepEqual(session.tools, ['calculate', 'current_time'])
  await f.core.putProfile('acme', profile('p', []))
  assert.deepEqual((await f.core.getSession('acme', session.id))!.tools, ['calculate', 'current_time'])
  assert.throws(() => f.core.createSession('globex', 'p'), { code: 'unknown_profile' })
})

test('profiles are kept per tenant', async (t) => {
  const f = await runnerOf(t, answer)
  await f.core.putProfile('acme', profile('b'))
  await f.core.putProfile('acme', profile('a'))
  assert.deepEqual(
    f.core.profiles('acme').map((p) => p.name),
    ['a', 'b'],
  )
  assert.deepEqual(f.core.profiles('globex'), [])
  await f.core.deleteProfile('globex', 'a')
  await f.core.deleteProfile('acme', 'a')
  await f.core.deleteProfile('acme', 'a')
  assert.deepEqual(
    f.core.profiles('acme').map((p) => p.name),
    ['b'],
  )
})

test('info names the hash and the runtimes', async (t) => {
  const f = await runnerOf(t, answer)
  const { instance, ...info } = await f.core.info()
  assert.match(instance, /^[0-9a-f-]{36}$/)
  assert.equal((await f.core.info()).instance, instance)
  assert.deepEqual(info, {
    hash: runnerHash('http://runner.test:7060'),
    capabilities: ['general'],
    capabilitiesKnown: true,
    state: 'live',
    substrates: [],
    substratesKnown: true,
    activeSessions: 0,
    activeRuns: 0,
  })
  const limited = await runnerOf(t, answer, { capabilities: 'runtime_b, general' })
  assert.deepEqual((await limited.core.info()).capabilities, ['runtime_b', 'general'])
})

test('shutting a session down ends its run, forgets it at the sidecar and is idempotent', async (t) => {
  const f = await runnerOf(t, hang)
  const lines = execute(f)
  await until(() => f.signals.length > 0)
  const session = (await f.core.getSession('acme', run().sessionId))!
  await f.core.deleteSession('globex', session.id)
  assert.equal(session.status, 'running')
  await f.core.deleteSession('acme', session.id)
  assert.equal(session.status, 'shutdown')
  assert.equal(codeOf(await lines), 'session_shutdown')
  assert.equal(session.status, 'shutdown')
  await until(() => f.forgotten.length > 0)
  await f.core.deleteSession('acme', session.id)
  assert.deepEqual(f.forgotten, [session.id])
  assert.equal(f.sessions.get(session.id), undefined)
})

test('hydrate is idempotent, brings the state once, and leaves nothing behind when the bundle is corrupt', async (t) => {
  const f = await runnerOf(t, answer)
  const id = 'sess-00000000-000000aa'
  await assert.rejects(f.core.hydrate('acme', id, profile(), bundle('corrupt')))
  assert.equal(f.sessions.get(id), undefined)
  await Promise.all([1, 2, 3].map(() => f.core.hydrate('acme', id, profile(), bundle('x'))))
  assert.deepEqual(f.hydrated, [id])
  await assert.rejects(f.core.hydrate('globex', id, profile()), { code: 'unknown_session', status: 404 })
  await assert.rejects(f.core.hydrate('acme', 'no/slash', profile()), { code: 'invalid session id', status: 400 })
})

test('no run starts in a session whose conversation is still on its way', async (t) => {
  const f = await runnerOf(t, answer)
  const hydrating = f.core.hydrate('acme', run().sessionId, profile(), bundle('x'))
  await assert.rejects(execute(f), { code: 'session_busy' })
  await hydrating
  assert.equal((await execute(f)).at(-1)!['type'], 'result')
})

test("a hydrated handle reaches the sidecar, and an exported bundle carries the session's", async (t) => {
  const f = await runnerOf(t, answer)
  await f.core.hydrate('acme', run().sessionId, profile(), { ...bundle('x'), runtimeSessionId: 'v-3' })
  await execute(f)
  assert.equal(f.envelopes[0]!.runtimeSessionId, 'v-3')
  assert.equal(await f.core.exportState('acme', run().sessionId), undefined)
  f.states.set(run().sessionId, bundle('state'))
  assert.equal((await f.core.exportState('acme', run().sessionId))!.runtimeSessionId, 'v-3')
  await assert.rejects(f.core.exportState('globex', run().sessionId), { code: 'unknown_session' })
})

test('a session of general has no vendor handle, nothing unsaved, and is exported when it is asked for', async (t) => {
  const f = await runnerOf(t, async function* (envelope, events) {
    yield events.line({ type: 'session_init', runtimeSessionId: envelope.sessionId })
    yield events.line({ type: 'result', text: '', finishReason: 'stop' })
  })
  const { sessionId } = run()
  await f.core.hydrate('acme', sessionId, profile('p', [], 'general'), { ...bundle('x'), runtimeSessionId: 'v-3' })
  await execute(f)
  await execute(f, { runId: 'r2' })
  assert.deepEqual(
    f.envelopes.map(({ runtimeSessionId }) => runtimeSessionId),
    [undefined, undefined],
  )
  assert.equal(f.sessions.get(sessionId)!.runtimeSessionId, undefined)
  assert.deepEqual(await f.core.unsaved(), [])
  f.states.set(sessionId, { ...bundle('state'), runtimeSessionId: sessionId })
  assert.deepEqual(await f.core.exportState('acme', sessionId), bundle('state'))
})

test('tools outside the snapshot are refused, and the context is the runner’s own', async (t) => {
  const f = await runnerOf(t, hang)
  const lines = execute(f, { create: { profile: profile('p', ['calculate']) } })
  await until(() => f.signals.length > 0)
  const session = f.sessions.get(run().sessionId)!
  const { signal } = new AbortController()
  await assert.rejects(f.sessions.invokeTool(session, 'current_time', {}, signal), {
    code: 'tool_not_allowed',
    status: 403,
  })
  await f.sessions.invokeTool(session, 'calculate', {}, signal)
  const { signal: given, report: _, ...context } = f.invoked[0]!.context
  assert.deepEqual(context, {
    tenantId: 'acme',
    sessionId: session.id,
    profileName: 'p',
    skills: [],
    runId: 'r1',
    depth: 0,
  })
  f.core.cancelRun('acme', 'r1')
  assert.equal(given.aborted, true, 'cancelling the run stops the tool it waits for')
  await lines
})

test('a full runner lets go of the least recently used idle session, never of a running one', async (t) => {
  const f = await runnerOf(t, hang, { maxSessions: 2 })
  const running = f.core.execute('acme', run({ sessionId: 'a' }), new AbortController().signal)[Symbol.asyncIterator]()
  await running.next()
  await f.core.hydrate('acme', 'b', profile())
  await f.core.hydrate('acme', 'c', profile())
  assert.deepEqual(
    f.sessions
      .list()
      .map((s) => s.id)
      .sort(),
    ['a', 'c'],
  )
  await until(() => f.forgotten.length > 0)
  assert.deepEqual(f.forgotten, ['b'])
  const second = f.core.execute('acme', run({ runId: 'r2', sessionId: 'c' }), new AbortController().signal)
  const reading = second[Symbol.asyncIterator]()
  await reading.next()
  await assert.rejects(collect(f.core.execute('acme', run({ sessionId: 'd' }), new AbortController().signal)), {
    code: 'runner_full',
    status: 503,
  })
  await running.return!()
  await reading.return!()
})

test('a session that was idle too long leaves memory', () => {
  let now = 0
  const gone: string[] = []
  const onEvict = ({ id }: { id: string }) => void gone.push(id)
  const table = new SessionTable({ max: 10, idleTtlMs: 100, now: () => now, toolsOf: () => [], onEvict })
  const [a, b, c] = ['a', 'b', 'c'].map((id) => table.create('acme', id, profile()))
  b!.status = 'running'
  now = 90
  table.touch(a!)
  now = 120
  table.sweep()
  assert.deepEqual(gone, ['c'])
  assert.equal(c!.status, 'shutdown')
  assert.equal(table.size, 2)
})
