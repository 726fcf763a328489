import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isAppError } from '#kernel'
import { invalidSandbox } from '#contracts/sandbox'
import { workerPaths } from '#contracts/wire/worker'
import { answerOf, eventually, newSession, play, sandboxed, stage, startOf } from './stage.ts'

const failureOf = async (run: Promise<unknown>): Promise<readonly unknown[]> => {
  const error: unknown = await run.then(
    () => assert.fail('nothing failed'),
    (failure: unknown) => failure,
  )
  assert.ok(isAppError(error), String(error))
  return [error.code, error.status, error.retryable, error.sentence]
}

test('without a signing key a run is refused by the name of the setting, and no sandbox is started', async (t) => {
  const { workers, substrate } = await stage(t, { keyless: true })
  const [code, status, , sentence] = await failureOf(play(workers, newSession(), 'hello'))
  assert.deepEqual([code, status], ['worker_token_unavailable', 503])
  assert.match(String(sentence), /AGENT_ORC_WORKER_SIGNING_KEY_CURRENT/)
  const tool = await workers.callTool(newSession(), 'shell', {}, { signal: new AbortController().signal, timeoutMs: 1 })
  assert.equal(tool.ok, false)
  assert.match(tool.content, /AGENT_ORC_WORKER_SIGNING_KEY_CURRENT/)
  assert.deepEqual(substrate.calls, [])
})

test('a runner without a sandbox provider says so to whoever calls as a worker', async (t) => {
  const { kernel } = await stage(t, { bare: true })
  for (const listener of ['runner', 'workers']) {
    const reply = await kernel.listeners[listener]!.inject(workerPaths('sess-00000000-00000001').poll)
    assert.deepEqual([reply.statusCode, reply.json<{ error: string }>().error], [503, 'dynamic_workers_unavailable'])
  }
})

test('a worker that never calls fails the run after the limit, its sandbox goes, and the next run may have another one', async (t) => {
  const { workers, substrate } = await stage(t, { config: { connectTimeout: '1s' } })
  const session = newSession()
  substrate.mute = true
  assert.deepEqual(await failureOf(play(workers, session, 'hello')), [
    'sandbox_start_failed',
    503,
    true,
    'The sandbox was not ready within 1 s.',
  ])
  await eventually('its sandbox goes', () => substrate.live().length === 0)
  assert.equal(await workers.lease('acme', session.id), undefined)
  substrate.mute = false
  assert.equal(answerOf(await play(workers, session, 'hello')), 'ok')
})

test('a sandbox that ends before its worker called is not waited for until the limit', async (t) => {
  const { workers, substrate } = await stage(t, { config: { connectTimeout: '1d' } })
  substrate.mute = true
  const run = play(workers, newSession(), 'hello')
  await eventually('it is launched', () => substrate.boxes.length === 1)
  substrate.boxes[0]!.state = 'gone'
  const [code, , , sentence] = await failureOf(run)
  assert.deepEqual([code, sentence], ['sandbox_start_failed', 'The sandbox ended before its worker was ready.'])
})

test('what a provider says in words for people is told, and nothing else of its failures', async (t) => {
  const { workers, substrate } = await stage(t)
  substrate.failure = new Error('connect ECONNREFUSED 10.1.2.3:443')
  const plain = ['sandbox_start_failed', 503, true, 'The sandbox could not be started.']
  assert.deepEqual(await failureOf(play(workers, newSession(), 'hello')), plain)
  substrate.failure = invalidSandbox("There is no template 'x'.")
  assert.deepEqual(await failureOf(play(workers, newSession(), 'hello')), [
    'invalid_sandbox',
    400,
    false,
    "There is no template 'x'.",
  ])
  assert.equal(substrate.boxes.length, 0)
})

test('settings of a profile that make no sense are refused by their names before anything is started', async (t) => {
  const { workers, substrate } = await stage(t)
  const refused = async (sandbox: unknown) =>
    (await failureOf(play(workers, newSession(sandboxed('p', { sandbox })), 'hello'))).filter((_, i) => i !== 2)
  assert.deepEqual(await refused({ provider: 'box', resources: { cpu: 2 } }), [
    'invalid_sandbox',
    400,
    'The profile has no setting sandbox.resources.cpu; there are memoryMb, cpus, pids, diskMb.',
  ])
  assert.deepEqual(await refused({ provider: 'box', image: 'x' }), [
    'invalid_sandbox',
    400,
    'The profile has no setting sandbox.image; there are provider, template, resources.',
  ])
  for (const resources of [{ memoryMb: '1g' }, { memoryMb: -5 }, { cpus: 0 }, { pids: 1.5 }, []]) {
    const [code, , sentence] = await refused({ provider: 'box', resources })
    assert.equal(code, 'invalid_sandbox')
    assert.match(String(sentence), /sandbox\.resources/)
  }
  assert.deepEqual(substrate.calls, [])
})

test('a provider that this runner does not have is named, with those that it has', async (t) => {
  const { workers } = await stage(t)
  const run = play(workers, newSession(sandboxed('p', { sandbox: { provider: 'moon' } })), 'hello')
  const [code, status, , sentence] = await failureOf(run)
  assert.deepEqual(
    [code, status, sentence],
    ['no_sandbox_substrate', 503, "This runner has no sandbox provider 'moon' for this tenant; it has box."],
  )
})

test('a tenant that a provider does not name has no sandbox of it, and none is started', async (t) => {
  const tenants = { allows: (id: string) => id === 'acme', empty: false }
  const { workers, substrate } = await stage(t, { tenants })
  const profile = sandboxed('p', { sandbox: { provider: 'box' } })
  const [code, , , sentence] = await failureOf(play(workers, newSession(profile, 'globex'), 'hello'))
  assert.deepEqual(
    [code, sentence],
    ['no_sandbox_substrate', "This runner has no sandbox provider 'box' for this tenant; it has none."],
  )
  assert.deepEqual(substrate.calls, [])
})

test('a substrate that is away when a sandbox is to be woken fails the run and not the sandbox', async (t) => {
  const { workers, substrate } = await stage(t, { config: { idlePause: '50ms' } })
  const session = newSession()
  await play(workers, session, 'marmalade')
  await eventually('it is paused', () => substrate.boxes[0]!.state === 'paused')
  substrate.away = true
  assert.equal((await failureOf(play(workers, session, 'recall', { resume: true })))[0], 'sandbox_start_failed')
  substrate.away = false
  const lines = await play(workers, session, 'recall', { resume: true })
  assert.deepEqual([startOf(lines), answerOf(lines)], ['resumed', 'marmalade'])
})

test('a run that is aborted while its sandbox starts ends at once, and the sandbox is there for the next one', async (t) => {
  const { workers, substrate } = await stage(t)
  const session = newSession()
  const { promise, resolve } = Promise.withResolvers<void>()
  substrate.gate = promise
  const stop = new AbortController()
  const run = play(workers, session, 'hello', { signal: stop.signal })
  await eventually('the launch is under way', () => substrate.calls.length === 1)
  stop.abort(new Error('enough'))
  await assert.rejects(run, /enough/)
  resolve()
  assert.equal(answerOf(await play(workers, session, 'hello')), 'ok')
  assert.equal(substrate.boxes.length, 1)
})

test('a sandbox that cannot be destroyed is tried again until it is', async (t) => {
  const { workers, substrate, kernel } = await stage(t)
  const session = newSession()
  await play(workers, session, 'hello')
  substrate.away = true
  await workers.release(session)
  assert.equal(substrate.live().length, 1)
  assert.ok(kernel.logs.some(({ msg }) => msg === 'a sandbox could not be destroyed'))
  substrate.away = false
  await eventually('it is destroyed', () => substrate.live().length === 0)
})
