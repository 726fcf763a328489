import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { runnerHash } from '#contracts/ids'
import type { RunnerSession } from '#contracts/runner'
import { Forgetting } from '../conversations.ts'
import { SessionTable } from '../sessions.ts'
import { answer, codeOf, collect, execute, hang, profile, run, runnerOf, until } from './fixtures.ts'

const plain = { toolsOf: () => [], hasFiles: () => false }
const bundle = (text: string) => ({ bytes: Buffer.from(text), contentType: 'application/json' })

test("a session made here has the runner's hash in its id and a snapshot of its toolkit", async (t) => {
  const f = await runnerOf(t, answer)
  assert.throws(() => f.runner.createSession('acme', 'p'), { code: 'unknown_profile', status: 404 })
  f.runner.broadcast.putProfile('acme', profile('p', ['current_time', 'nope', 'calculate']))
  const session = f.runner.createSession('acme', 'p')
  assert.match(session.id, new RegExp(`^sess-${runnerHash('http://runner.test:7060')}-[0-9a-f]{8}$`))
  assert.deepEqual(session.tools, ['calculate', 'current_time'])
  f.runner.broadcast.putProfile('acme', profile('p', []))
  assert.deepEqual((await f.runner.getSession('acme', session.id))!.tools, ['calculate', 'current_time'])
  assert.throws(() => f.runner.createSession('globex', 'p'), { code: 'unknown_profile' })
})

test('profiles are kept per tenant', async (t) => {
  const f = await runnerOf(t, answer)
  f.runner.broadcast.putProfile('acme', profile('b'))
  f.runner.broadcast.putProfile('acme', profile('a'))
  assert.deepEqual(
    f.runner.broadcast.profiles('acme').map((p) => p.name),
    ['a', 'b'],
  )
  assert.deepEqual(f.runner.broadcast.profiles('globex'), [])
  f.runner.broadcast.deleteProfile('globex', 'a')
  f.runner.broadcast.deleteProfile('acme', 'a')
  f.runner.broadcast.deleteProfile('acme', 'a')
  assert.deepEqual(
    f.runner.broadcast.profiles('acme').map((p) => p.name),
    ['b'],
  )
})

test('info names the hash and the runtimes', async (t) => {
  const f = await runnerOf(t, answer)
  const { instance, ...info } = await f.runner.info()
  assert.match(instance, /^[0-9a-f-]{36}$/)
  assert.equal((await f.runner.info()).instance, instance)
  assert.deepEqual(info, {
    hash: runnerHash('http://runner.test:7060'),
    capabilities: ['general'],
    capabilitiesKnown: true,
    state: 'live',
    substrates: [],
    substratesKnown: true,
    tools: ['calculate', 'current_time'],
    activeSessions: 0,
    activeRuns: 0,
  })
  const limited = await runnerOf(t, answer, { capabilities: 'runtime_b, general' })
  assert.deepEqual((await limited.runner.info()).capabilities, ['runtime_b', 'general'])
})

test('shutting a session down ends its run, forgets it at the sidecar and is idempotent', async (t) => {
  const f = await runnerOf(t, hang)
  const lines = execute(f)
  await until(() => f.signals.length > 0)
  const session = (await f.runner.getSession('acme', run().sessionId))!
  await f.runner.deleteSession('globex', session.id)
  assert.equal(session.status, 'running')
  await f.runner.deleteSession('acme', session.id)
  assert.equal(session.status, 'shutdown')
  assert.equal(codeOf(await lines), 'session_shutdown')
  assert.equal(session.status, 'shutdown')
  await until(() => f.forgotten.length > 0)
  await f.runner.deleteSession('acme', session.id)
  assert.deepEqual(f.forgotten, [session.id])
  assert.equal(f.sessions.get(session.id), undefined)
})

test('hydrate is idempotent, brings the state once, and leaves nothing behind when the bundle is corrupt', async (t) => {
  const f = await runnerOf(t, answer)
  const id = 'sess-00000000-000000aa'
  await assert.rejects(f.runner.hydrate('acme', id, profile(), bundle('corrupt')))
  assert.equal(f.sessions.get(id), undefined)
  await Promise.all([1, 2, 3].map(() => f.runner.hydrate('acme', id, profile(), bundle('x'))))
  assert.deepEqual(f.hydrated, [id])
  await assert.rejects(f.runner.hydrate('globex', id, profile()), { code: 'unknown_session', status: 404 })
  await assert.rejects(f.runner.hydrate('acme', 'no/slash', profile()), { code: 'invalid session id', status: 400 })
})

test('no run starts in a session whose conversation is still on its way', async (t) => {
  const f = await runnerOf(t, answer)
  const hydrating = f.runner.hydrate('acme', run().sessionId, profile(), bundle('x'))
  await assert.rejects(execute(f), { code: 'session_busy' })
  await hydrating
  assert.equal((await execute(f)).at(-1)!['type'], 'result')
})

test("a hydrated handle reaches the sidecar, and an exported bundle carries the session's", async (t) => {
  const f = await runnerOf(t, answer)
  await f.runner.hydrate('acme', run().sessionId, profile(), { ...bundle('x'), runtimeSessionId: 'v-3' })
  await execute(f)
  assert.equal(f.envelopes[0]!.runtimeSessionId, 'v-3')
  assert.equal(await f.runner.exportState('acme', run().sessionId), undefined)
  f.states.set(run().sessionId, bundle('state'))
  assert.equal((await f.runner.exportState('acme', run().sessionId))!.runtimeSessionId, 'v-3')
  await assert.rejects(f.runner.exportState('globex', run().sessionId), { code: 'unknown_session' })
})

test('a session of general has no vendor handle, nothing unsaved, and is exported when it is asked for', async (t) => {
  const f = await runnerOf(t, async function* (envelope, events) {
    yield events.line({ type: 'session_init', runtimeSessionId: envelope.sessionId })
    yield events.line({ type: 'result', text: '', finishReason: 'stop' })
  })
  const { sessionId } = run()
  await f.runner.hydrate('acme', sessionId, profile('p', [], 'general'), { ...bundle('x'), runtimeSessionId: 'v-3' })
  await execute(f)
  await execute(f, { runId: 'r2' })
  assert.deepEqual(
    f.envelopes.map(({ runtimeSessionId }) => runtimeSessionId),
    [undefined, undefined],
  )
  assert.equal(f.sessions.get(sessionId)!.runtimeSessionId, undefined)
  assert.deepEqual(await f.runner.unsaved(), [])
  f.states.set(sessionId, { ...bundle('state'), runtimeSessionId: sessionId })
  assert.deepEqual(await f.runner.exportState('acme', sessionId), bundle('state'))
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
    runId: 'r1',
    depth: 0,
  })
  f.runner.runs.cancel('acme', 'r1')
  assert.equal(given.aborted, true, 'cancelling the run stops the tool it waits for')
  await lines
})

test('a full runner lets go of the least recently used idle session, never of a running one', async (t) => {
  const f = await runnerOf(t, hang, { maxSessions: 2 })
  const running = f.runner
    .execute('acme', run({ sessionId: 'a' }), new AbortController().signal)
    [Symbol.asyncIterator]()
  await running.next()
  await f.runner.hydrate('acme', 'b', profile())
  await f.runner.hydrate('acme', 'c', profile())
  assert.deepEqual([...f.runner.table.all()].map((s) => s.id).sort(), ['a', 'c'])
  await until(() => f.forgotten.length > 0)
  assert.deepEqual(f.forgotten, ['b'])
  const second = f.runner.execute('acme', run({ runId: 'r2', sessionId: 'c' }), new AbortController().signal)
  const reading = second[Symbol.asyncIterator]()
  await reading.next()
  await assert.rejects(collect(f.runner.execute('acme', run({ sessionId: 'd' }), new AbortController().signal)), {
    code: 'runner_full',
    status: 503,
  })
  await running.return!()
  await reading.return!()
})

test('a session that was idle too long leaves memory', (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: 0 })
  const gone: string[] = []
  const onEvict = ({ id }: { id: string }) => void gone.push(id)
  const table = new SessionTable({ max: 10, maxProfileBytes: 1_000_000, idleTtlMs: 100, ...plain, onEvict })
  const [a, b, c] = ['a', 'b', 'c'].map((id) => table.create('acme', id, profile()))
  b!.status = 'running'
  t.mock.timers.setTime(90)
  table.touch(a!)
  t.mock.timers.setTime(120)
  table.sweep()
  assert.deepEqual(gone, ['c'])
  assert.equal(c!.status, 'shutdown')
  assert.equal(table.size, 2)
})

const session = (id: string): RunnerSession => ({
  id,
  tenantId: 'acme',
  profile: profile(),
  tools: [],
  status: 'shutdown',
  createdAt: '2026-01-01T00:00:00.000Z',
  lastUsedAt: '2026-01-01T00:00:00.000Z',
})

test('a sidecar is told of many sessions a few at a time, and of every one', async () => {
  const told: string[] = []
  let underWay = 0
  let most = 0
  const forgetting = new Forgetting(async ({ id }) => {
    most = Math.max(most, ++underWay)
    await turn()
    underWay--
    told.push(id)
  })
  const ids = Array.from({ length: 500 }, (_, n) => `s${n}`)
  for (const id of ids) forgetting.begin(session(id))
  await until(() => told.length === ids.length)
  assert.deepEqual(told.toSorted(), ids.toSorted())
  assert.equal(most, 16)
})

test('a session that comes back out of turn is told of at once, and one of which nobody is told is not waited for', async () => {
  const gate = Promise.withResolvers<void>()
  const told: string[] = []
  const forgetting = new Forgetting(async ({ id }) => {
    if (id !== 'last') await gate.promise
    told.push(id)
  })
  for (let n = 0; n < 40; n++) forgetting.begin(session(`s${n}`))
  forgetting.begin(session('last'))
  await forgetting.finish('last')
  assert.deepEqual(told, ['last'])
  assert.equal(forgetting.finish('last'), undefined)
  gate.resolve()
  await forgetting.finish('s0')
  await until(() => told.length === 41)
  assert.equal(new Set(told).size, 41, 'each of them once')
})

test('a conversation that comes back is not brought before the sidecar has forgotten the former one', async (t) => {
  const f = await runnerOf(t, answer, { maxSessions: 1 })
  const { sessionId } = run()
  const gate = Promise.withResolvers<void>()
  f.pace.forget = gate.promise
  await f.runner.hydrate('acme', sessionId, profile(), bundle('x'))
  // There is room for one session: this one evicts the first.
  await f.runner.hydrate('acme', 'other', profile(), bundle('x'))
  assert.deepEqual(f.hydrated, [sessionId, 'other'])
  const comesBack = f.runner.hydrate('acme', sessionId, profile(), bundle('x'))
  for (let i = 0; i < 10; i++) await turn()
  assert.deepEqual(f.hydrated, [sessionId, 'other'], 'it would be forgotten right after')
  await assert.rejects(execute(f), { code: 'session_busy' })
  gate.resolve()
  await comesBack
  assert.equal(f.forgotten[0], sessionId)
  assert.deepEqual(f.hydrated, [sessionId, 'other', sessionId])
  assert.equal((await execute(f)).at(-1)!['type'], 'result')
})

test('a tenant that fills the runner makes room with sessions of its own', () => {
  const evicted: string[] = []
  const onEvict = ({ id }: { id: string }): void => void evicted.push(id)
  const table = new SessionTable({ max: 4, maxProfileBytes: 1_000_000, idleTtlMs: 1_000, ...plain, onEvict })
  table.create('modest', 'm1', profile('p'))
  for (const id of ['g1', 'g2', 'g3']) table.create('greedy', id, profile('p'))
  table.create('greedy', 'g4', profile('p'))
  assert.deepEqual(evicted, ['g1'], 'not the one that rests longest of all')
  table.create('modest', 'm2', profile('p'))
  assert.deepEqual(evicted, ['g1', 'm1'], 'which goes for somebody who has less than half')
  for (const id of ['g2', 'g3', 'g4']) {
    const session = table.any(id)
    if (session) table.occupy(session, `run-${id}`)
  }
  assert.throws(() => table.create('greedy', 'g5', profile('p')), { code: 'runner_full' })
})

test('sessions of one version of a profile share it, and those of large ones give way to each other', () => {
  const evicted: string[] = []
  const onEvict = ({ id }: { id: string }): void => void evicted.push(id)
  const large = (version: number) => ({ ...profile('p'), version, instructions: 'x'.repeat(10_000) })
  const table = new SessionTable({ max: 100, maxProfileBytes: 30_000, idleTtlMs: 1_000, ...plain, onEvict })
  const [first, second] = [1, 2].map((n) => table.create('acme', `s${n}`, large(1)))
  assert.equal(first!.profile, second!.profile)
  for (const version of [2, 3, 4]) table.create('acme', `v${version}`, large(version))
  assert.deepEqual(evicted, ['s1', 's2'])
  table.create('globex', 'theirs', large(1))
  assert.equal(evicted.length, 2)
  // What counts is the memory that they take, and not their text.
  const lists = Array.from({ length: 500 }, () => [])
  for (const id of ['many1', 'many2']) table.create('initech', id, { ...profile(id), metadata: { lists } })
  assert.equal(table.find('initech', 'many1'), undefined)
})
