import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises'
import type { AppError } from '#kernel'
import type { StateBundle } from '#contracts/runtime'
import {
  answer,
  collect,
  execute,
  type Fixture,
  hang,
  profile,
  run,
  runnerOf,
  type Script,
  types,
  until,
} from './fixtures.ts'

const other = 'sess-00000000-00000002'
const first = run().sessionId
const bundle: StateBundle = { bytes: Buffer.from('{}'), contentType: 'application/json' }
const refusedAsDraining = (promise: Promise<unknown>) =>
  assert.rejects(promise, (e: AppError) => e.code === 'runner_draining' && e.status === 503 && e.retryable)
const never = new AbortController().signal
/** Asks for the runner's state as a conductor on the network does, so that the stopping runner waits for it. */
const stateOf = async ({ call }: Fixture) => (await call('GET', '/runner/info')).json<{ state: string }>().state
/** Tells the runner to stop, and returns when it says so to conductors. */
async function stopping(f: Fixture): Promise<{ over: Promise<void> }> {
  assert.equal(await stateOf(f), 'live')
  const over = f.stop()
  while ((await stateOf(f)) !== 'draining') await turn()
  return { over }
}

/** Hangs in one session and answers in the others. */
const hangIn = (sessionId: string): Script =>
  async function* (envelope, events, signal) {
    yield* envelope.sessionId === sessionId ? hang(envelope, events, signal) : answer(envelope, events, signal)
  }

test('a session is unsaved from the end of a run until it is exported, and never while a run is under way', async (t) => {
  const f = await runnerOf(t, hangIn(other), { drain: '15s' })
  f.states.set(first, bundle)
  assert.deepEqual(await f.runner.unsaved(), [])
  await execute(f)
  assert.deepEqual(await f.runner.unsaved(), [{ tenantId: 'acme', sessionId: first }])
  await f.runner.exportState('acme', first)
  assert.deepEqual(await f.runner.unsaved(), [])
  const stop = new AbortController()
  const lines = execute(f, { sessionId: other }, stop.signal)
  await until(() => f.signals.length === 2)
  assert.deepEqual(await f.runner.unsaved(), [])
  stop.abort()
  await lines
  await f.runner.hydrate('acme', 'sess-00000000-00000003', profile(), bundle)
  assert.deepEqual(await f.runner.unsaved(), [{ tenantId: 'acme', sessionId: other }], 'what was just brought is saved')
})

test('an export that a run overtook leaves the session unsaved', async (t) => {
  const f = await runnerOf(t, answer, { drain: '15s' })
  f.states.set(first, bundle)
  await execute(f)
  // The sidecar is asked, a run begins and ends, and only then the export is given out.
  const exporting = f.runner.exportState('acme', first)
  await execute(f, { runId: 'r2' })
  await exporting
  assert.deepEqual(await f.runner.unsaved(), [{ tenantId: 'acme', sessionId: first }])
})

test('a stopping runner takes no new session, lets runs end, and waits until every changed conversation was fetched', async (t) => {
  const f = await runnerOf(t, hangIn(other), { drain: '15s' })
  f.states.set(first, bundle)
  await execute(f)
  const stop = new AbortController()
  const running = execute(f, { sessionId: other }, stop.signal)
  await until(() => f.signals.length === 2)
  let stopped = false
  const { over } = await stopping(f)
  void over.then(() => (stopped = true))
  await refusedAsDraining(execute(f, { sessionId: 'sess-00000000-00000003' }))
  await refusedAsDraining(f.runner.hydrate('acme', 'sess-00000000-00000003', profile()))
  await assert.rejects(
    collect(f.runner.execute('acme', { ...withoutProfile(), sessionId: 'sess-00000000-00000003' }, never)),
    (e: AppError) => e.code === 'unknown_session',
  )
  // The run is taken, because its conversation is nowhere else.
  assert.equal(types(await execute(f, { runId: 'r2' })).at(-1), 'result')
  await f.runner.exportState('acme', first)
  await sleep(50)
  assert.equal(stopped, false, 'a run is under way')
  stop.abort()
  await running
  await sleep(50)
  assert.equal(stopped, false, 'the conversation of that run is unsaved')
  await f.runner.exportState('acme', other)
  await over
})

test('once a conversation was fetched and stored, its next run is for another runner', async (t) => {
  const f = await runnerOf(t, hangIn(other), { drain: '15s' })
  f.states.set(first, bundle)
  await execute(f)
  await f.runner.exportState('acme', first)
  const stop = new AbortController()
  const running = execute(f, { sessionId: other }, stop.signal)
  await until(() => f.signals.length === 2)
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
  const { over } = await stopping(f)
  // Until then the run is taken: the conductor that fetched the conversation may not have stored it yet.
  const refused = async (): Promise<boolean> => {
    try {
      await execute(f, { runId: 'r3' })
    } catch (error) {
      assert.equal((error as AppError).code, 'runner_draining')
      return true
    }
    await f.runner.exportState('acme', first)
    return false
  }
  assert.equal(await refused(), false)
  t.mock.timers.tick(1_001)
  assert.equal(await refused(), true)
  stop.abort()
  await running
  await f.runner.exportState('acme', other)
  t.mock.timers.reset()
  await over
})

test('a runner that no conductor asks for waits for none, and waits for nobody beyond its time', async (t) => {
  const alone = await runnerOf(t, answer, { drain: '15s' })
  await execute(alone)
  await alone.stop()
  const asked = await runnerOf(t, hang, { drain: '100ms' })
  await stateOf(asked)
  const lines = execute(asked)
  await until(() => asked.signals.length === 1)
  await asked.stop()
  assert.equal((await lines).at(-1)!['code'], 'runner_stopping')
})

test('an old copy is replaced by the newest conversation, or by an empty one; a run under way is not', async (t) => {
  const f = await runnerOf(t, hangIn(other), { drain: '15s' })
  await execute(f)
  await f.runner.hydrate('acme', first, profile(), bundle)
  assert.deepEqual(f.hydrated, [], 'nothing happens to a session that is here')
  await f.runner.hydrate('acme', first, profile(), bundle, true)
  assert.deepEqual(f.hydrated, [first])
  assert.deepEqual(await f.runner.unsaved(), [], 'what was here before is of no interest any more')
  await f.runner.hydrate('acme', first, profile(), undefined, true)
  assert.deepEqual(f.forgotten, [first])
  const stop = new AbortController()
  const running = execute(f, { sessionId: other }, stop.signal)
  await until(() => f.signals.length === 2)
  await assert.rejects(
    f.runner.hydrate('acme', other, profile(), bundle, true),
    (e: AppError) => e.code === 'session_busy',
  )
  stop.abort()
  await running
})

function withoutProfile() {
  const { create: _, ...rest } = run()
  return rest
}
