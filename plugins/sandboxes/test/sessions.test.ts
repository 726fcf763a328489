import assert from 'node:assert/strict'
import { test } from 'node:test'
import { workerVariables } from '#contracts/wire/worker'
import { answerOf, eventually, newSession, play, sandboxed, stage, startOf } from './stage.ts'

test('the first run launches a sandbox, the next one finds it running with the conversation', async (t) => {
  const { workers, substrate, kernel } = await stage(t)
  const session = newSession(
    sandboxed('coder', { sandbox: { provider: 'box', template: 'node', resources: { memoryMb: 512 } } }),
  )
  const first = await play(workers, session, 'marmalade')
  assert.equal(answerOf(first), 'ok')
  const { startMs, idleSeconds, ...told } = first[0]!
  assert.deepEqual(told, {
    type: 'progress',
    stage: 'sandbox',
    provider: 'box',
    start: 'launched',
    message: 'A sandbox was started.',
  })
  assert.deepEqual([typeof startMs, idleSeconds], ['number', 0])
  const second = await play(workers, session, 'recall', { resume: true })
  assert.deepEqual([startOf(second), answerOf(second)], ['running', 'marmalade'])
  assert.equal(substrate.boxes.length, 1)
  const { order } = substrate.boxes[0]!
  assert.match(order.name, /^ao-[a-z0-9]{16}$/)
  assert.deepEqual(
    [order.tenantId, order.sessionId, order.template, order.resources, order.runnerUrl],
    ['acme', session.id, 'node', { memoryMb: 512 }, kernel.urls['workers']],
  )
  assert.deepEqual(Object.keys(order.env).toSorted(), [
    workerVariables.sessionId,
    workerVariables.token,
    'LOG_LEVEL',
    'MODE',
  ])
  assert.deepEqual([order.env['MODE'], order.env[workerVariables.sessionId]], ['general', session.id])
  assert.deepEqual(order.command.slice(0, 1), [process.execPath])
  assert.match(order.command.join(' '), /cli\/agent-orc\.js start --config .*config\/worker\.yaml$/)
})

test('whoever needs the sandbox at the same moment shares one start', async (t) => {
  const { workers, substrate } = await stage(t)
  const session = newSession()
  const options = { signal: new AbortController().signal, timeoutMs: 30_000 }
  const [run, ...tools] = await Promise.all([
    play(workers, session, 'hello'),
    workers.callTool(session, 'one', { a: 1 }, options),
    workers.callTool(session, 'two', {}, options),
  ])
  assert.equal(answerOf(run), 'ok')
  assert.deepEqual(
    tools.map(({ ok, content }) => [ok, JSON.parse(content)]),
    [
      [true, { name: 'one', input: { a: 1 }, session: session.id }],
      [true, { name: 'two', input: {}, session: session.id }],
    ],
  )
  assert.equal(substrate.boxes.length, 1)
})

test('two sessions at once have two sandboxes, and neither knows of the other', async (t) => {
  const { workers, substrate } = await stage(t)
  const [a, b] = [newSession(), newSession()]
  await Promise.all([play(workers, a, 'anise'), play(workers, b, 'basil')])
  const answers = await Promise.all([a, b].map((session) => play(workers, session, 'recall', { resume: true })))
  assert.deepEqual(answers.map(answerOf), ['anise', 'basil'])
  assert.equal(substrate.live().length, 2)
})

test('an idle sandbox is paused, and wakes up with the conversation and a fresh environment', async (t) => {
  const { workers, substrate } = await stage(t, { config: { idlePause: '100ms' } })
  const session = newSession()
  await play(workers, session, 'marmalade')
  const [box] = substrate.boxes
  await eventually('it is paused', () => box!.state === 'paused')
  const lease = await workers.lease('acme', session.id)
  assert.equal(lease?.state, 'paused')
  const lines = await play(workers, session, 'recall', { resume: true })
  assert.deepEqual([startOf(lines), answerOf(lines)], ['resumed', 'marmalade'])
  assert.equal(box!.resumed[0]!.env[workerVariables.sessionId], session.id)
  assert.equal(substrate.boxes.length, 1)
})

test('a sandbox in use is never paused', async (t) => {
  const { workers, substrate } = await stage(t, { config: { idlePause: '20ms' } })
  const session = newSession()
  const stop = new AbortController()
  const running = play(workers, session, 'wait', { signal: stop.signal })
  const [idle] = [newSession()]
  await play(workers, idle!, 'hello')
  const boxOf = (id: string) => substrate.boxes.find(({ order }) => order.sessionId === id)
  await eventually('the other one is paused', () => boxOf(idle!.id)?.state === 'paused')
  assert.equal(boxOf(session.id)!.state, 'running')
  stop.abort(new Error('enough'))
  await assert.rejects(running, /enough/)
  await eventually('then it is paused too', () => boxOf(session.id)?.state === 'paused')
})

test('one that nobody came back to is ended, and the next run has another one with the conversation', async (t) => {
  const { workers, substrate } = await stage(t, { config: { idlePause: '20ms', idleDestroy: '60ms' } })
  const session = newSession()
  await play(workers, session, 'marmalade')
  await eventually('it is ended', () => substrate.live().length === 0)
  await eventually('and known to be', async () => (await workers.lease('acme', session.id))?.state === 'gone')
  const lines = await play(workers, session, 'recall', { resume: true })
  assert.deepEqual([startOf(lines), answerOf(lines)], ['launched', 'marmalade'])
})

test('a sandbox that died is replaced by one with the conversation, also one that slept meanwhile', async (t) => {
  const { workers, substrate } = await stage(t)
  const session = newSession()
  await play(workers, session, 'marmalade')
  substrate.crash(substrate.boxes[0]!)
  assert.equal(workers.invalidate('box', substrate.boxes[0]!.id), 1)
  const lines = await play(workers, session, 'recall', { resume: true })
  assert.deepEqual([startOf(lines), answerOf(lines)], ['launched', 'marmalade'])
  const [, box] = substrate.boxes
  // The substrate pauses the sandbox by itself.
  box!.state = 'paused'
  box!.worker!.stop()
  assert.equal(workers.invalidate('box', box!.id), 1)
  assert.equal((await workers.lease('acme', session.id))?.state, 'paused')
  const woken = await play(workers, session, 'recall', { resume: true })
  assert.deepEqual([startOf(woken), answerOf(woken)], ['resumed', 'marmalade'])
  box!.state = 'paused'
  box!.worker!.stop()
  workers.invalidate('box', box!.id)
  assert.equal((await workers.lease('acme', session.id))?.state, 'paused')
  substrate.crash(box!)
  const again = await play(workers, session, 'recall', { resume: true })
  assert.deepEqual([startOf(again), answerOf(again)], ['launched', 'marmalade'])
})

test('a worker that dies in a run ends its stream, and the next run has a new one with the conversation', async (t) => {
  const { workers, substrate } = await stage(t)
  const session = newSession()
  await play(workers, session, 'marmalade')
  const running = play(workers, session, 'wait', { resume: true })
  await eventually('the run is under way', () => substrate.boxes[0]!.worker!.commands.length === 2)
  substrate.crash(substrate.boxes[0]!)
  await assert.rejects(running, { code: 'sidecar_lost' })
  const lines = await play(workers, session, 'recall', { resume: true })
  assert.deepEqual([startOf(lines), answerOf(lines)], ['launched', 'marmalade'])
})

test('a session that comes back from another runner gets its newest conversation, and its old sandbox goes', async (t) => {
  const { workers, substrate } = await stage(t)
  const session = newSession()
  const link = workers.link(session)
  await play(workers, session, 'old')
  await link.hydrate('general', session.id, { bytes: Buffer.from('["newest"]'), contentType: 'application/json' })
  assert.equal(substrate.live().length, 0)
  assert.equal(await workers.lease('acme', session.id), undefined)
  const lines = await play(workers, session, 'recall', { resume: true })
  assert.equal(answerOf(lines), 'newest')
})

test('a conversation that is nowhere is told before a sandbox is started', async (t) => {
  const { workers, substrate } = await stage(t)
  await assert.rejects(play(workers, newSession(), 'recall', { resume: true }), {
    code: 'session_state_missing',
    status: 409,
  })
  assert.equal(substrate.boxes.length, 0)
})

test('the state is the worker’s own while it is awake, and its last copy when it sleeps or is gone', async (t) => {
  const { workers, substrate } = await stage(t, { config: { idlePause: '50ms' } })
  const session = newSession()
  const link = workers.link(session)
  const state = async () => String((await link.exportState('general', session.id))?.bytes)
  assert.equal(await link.exportState('general', session.id), undefined)
  await play(workers, session, 'marmalade')
  assert.equal(await state(), '["marmalade"]')
  await eventually('it is paused', () => substrate.boxes[0]!.state === 'paused')
  const resumes = substrate.calls.filter((call) => call.startsWith('resume')).length
  assert.equal(await state(), '["marmalade"]')
  assert.equal(substrate.calls.filter((call) => call.startsWith('resume')).length, resumes, 'it was not woken')
  substrate.crash(substrate.boxes[0]!)
  assert.equal(await state(), '["marmalade"]')
})

test('a session that left has no sandbox, nor one that is just starting', async (t) => {
  const { workers, substrate } = await stage(t)
  const [resting, starting] = [newSession(), newSession()]
  await play(workers, resting, 'hello')
  await workers.release(resting)
  assert.equal(substrate.live().length, 0)
  assert.equal(await workers.lease('acme', resting.id), undefined)
  const { promise: gate, resolve: open } = Promise.withResolvers<void>()
  substrate.gate = gate
  const run = play(workers, starting, 'hello')
  await eventually('the launch is under way', () => substrate.calls.filter((call) => call === 'launch').length === 2)
  assert.equal((await workers.lease('acme', starting.id))?.state, 'starting')
  const released = workers.link(starting).forget('general', starting.id)
  await assert.rejects(run, { code: 'session_shutdown' })
  open()
  await released
  await eventually('nothing is left', () => substrate.live().length === 0)
})

test('a static session has a sandbox for its tools, started by the first of them; without one a tool says so', async (t) => {
  const { workers, substrate } = await stage(t)
  const options = { signal: new AbortController().signal, timeoutMs: 30_000 }
  const plain = newSession(sandboxed('plain', { workerMode: 'static' }))
  assert.deepEqual(await workers.callTool(plain, 'shell', {}, options), {
    ok: false,
    content: 'This session has no sandbox.',
  })
  const session = newSession(sandboxed('tools', { workerMode: 'static', sandbox: { provider: 'box' } }))
  assert.equal(await workers.prepare(session, { resume: true, onUsage() {} }, options.signal), undefined)
  assert.equal((await workers.callTool(session, 'shell', {}, options)).ok, true)
  assert.equal(substrate.boxes.length, 1)
  const prepared = await workers.prepare(session, { resume: true, onUsage() {} }, options.signal)
  assert.deepEqual([prepared?.event.start, prepared?.event.provider], ['running', 'box'])
  prepared?.over()
})

test('a worker that does not come back from its sleep is replaced by one with the conversation', async (t) => {
  const { workers, substrate } = await stage(t, { config: { idlePause: '50ms' } })
  const session = newSession()
  await play(workers, session, 'marmalade')
  const [box] = substrate.boxes
  await eventually('it is paused', () => box!.state === 'paused')
  substrate.mute = true
  const lines = play(workers, session, 'recall', { resume: true })
  await eventually('it is woken', () => box!.resumed.length === 1)
  substrate.mute = false
  box!.state = 'gone'
  assert.deepEqual([startOf(await lines), answerOf(await lines)], ['launched', 'marmalade'])
})

test('a tenant has as many sandboxes as its conductor says it may; one that is gone makes room', async (t) => {
  const { workers, substrate } = await stage(t)
  const limited = (tenantId = 'acme') => ({ ...newSession(sandboxed(), tenantId), limits: { sandboxes: 1 } })
  const first = limited()
  await play(workers, first, 'hello')
  const second = limited()
  await assert.rejects(play(workers, second, 'hello'), { code: 'limit_reached', status: 429 })
  const told = await workers.callTool(second, 'one', {}, { signal: new AbortController().signal, timeoutMs: 30_000 })
  assert.match(told.content, /limit sandboxes of this tenant is 1/)
  assert.equal(answerOf(await play(workers, limited('globex'), 'hello')), 'ok')
  await workers.release(first)
  assert.equal(answerOf(await play(workers, second, 'hello')), 'ok')
  assert.equal(substrate.boxes.length, 3)
})
