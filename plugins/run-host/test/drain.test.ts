import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Runtime } from '#contracts/runtime'
import { collectRun, terminalOf, testEnvelope } from '#testing'
import { aborted, hostOf, result, says, scripted } from './support.ts'

const keeping = (over: Partial<Runtime> = {}): Partial<Runtime> => ({
  exportState: async () => ({ bytes: Buffer.from('{}'), contentType: 'application/json' }),
  hydrate: async () => {},
  forget: async () => {},
  ...over,
})
/** Only vendors keep conversations that nobody else can restore. */
const envelope = (sessionId?: string) =>
  testEnvelope({ ...(sessionId === undefined ? {} : { sessionId }), profile: { runtime: 'runtime_a' } })
const answering = (over?: Partial<Runtime>): Runtime => scripted(() => [says('hi'), result('hi')], keeping(over))

test('a stopping sidecar waits until its runner has fetched every conversation that changed', async (t) => {
  const { kernel, link } = await hostOf(t, { runtime_a: answering() }, { drain: '10m' })
  await link.health()
  const sessions = ['sess-00000000-00000001', 'sess-00000000-00000002', 'sess-00000000-00000003']
  for (const sessionId of sessions) await collectRun(link, envelope(sessionId))
  await link.exportState('runtime_a', sessions[0]!)
  await link.forget('runtime_a', sessions[1]!)
  let stopped = false
  const over = kernel.stop().then(() => (stopped = true))
  await sleep(50)
  assert.equal(stopped, false)
  await link.exportState('runtime_a', sessions[2]!)
  await over
})

test('a run that begins while its session is exported leaves it to be fetched again', async (t) => {
  let exporting: () => void = () => {}
  const slow = { exportState: () => new Promise<never>((resolve) => (exporting = () => resolve(undefined as never))) }
  const { kernel, link } = await hostOf(t, { runtime_a: answering(slow) }, { drain: '300ms' })
  await link.health()
  const sessionId = 'sess-00000000-00000001'
  await collectRun(link, envelope(sessionId))
  const exported = link.exportState('runtime_a', sessionId)
  await collectRun(link, envelope(sessionId))
  exporting()
  await exported
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
  let stopped = false
  const over = kernel.stop().then(() => (stopped = true))
  t.mock.timers.tick(299)
  await sleep(60)
  assert.equal(stopped, false)
  t.mock.timers.tick(2)
  await over
})

test('a stopping sidecar sends elsewhere what others can go on with, and offers nothing more', async (t) => {
  const runtimes = { runtime_a: answering(), general: answering() }
  const { kernel, link } = await hostOf(t, runtimes, { drain: '10m' })
  const post = (sessionId: string, runtime: string) =>
    kernel.listeners['sidecar']!.inject({
      method: 'POST',
      url: '/run',
      payload: testEnvelope({ sessionId, profile: { runtime } }),
    })
  const [kept, logged] = ['sess-00000000-00000001', 'sess-00000000-00000002'] as const
  assert.deepEqual((await link.health()).runtimes, ['general', 'runtime_a'])
  for (const [id, runtime] of [
    [kept, 'runtime_a'],
    [logged, 'general'],
  ] as const) {
    assert.equal((await post(id, runtime)).statusCode, 200)
  }
  const over = kernel.stop()
  assert.deepEqual((await link.health()).runtimes, [])
  assert.equal((await post(kept, 'runtime_a')).statusCode, 200, 'its conversation is nowhere else')
  for (const id of [logged, 'sess-00000000-00000003']) {
    const reply = await post(id, 'general')
    assert.equal(reply.statusCode, 503)
    const { error, retryable } = reply.json<{ error: string; retryable: boolean }>()
    assert.deepEqual([error, retryable], ['sidecar_draining', true])
  }
  await link.exportState('runtime_a', kept)
  assert.equal((await post(kept, 'runtime_a')).statusCode, 200, 'it is fetched, but perhaps not stored yet')
  await link.exportState('runtime_a', kept)
  await over
})

test('a stopping sidecar lets its runs end, and interrupts what outlasts its time', async (t) => {
  let finish: () => void = () => {}
  const runtime = scripted(async function* (prompt, signal) {
    yield says('working')
    await (prompt === 'soon' ? new Promise<void>((resolve) => (finish = resolve)) : aborted(signal))
    yield result('done')
  }, keeping())
  const first = await hostOf(t, { general: runtime }, { drain: '10m' })
  const run = collectRun(first.link, testEnvelope({ prompt: 'soon' }))
  await sleep(20)
  const over = first.kernel.stop()
  await sleep(20)
  finish()
  assert.equal(terminalOf(await run).type, 'result')
  await over
  const second = await hostOf(t, { general: runtime }, { drain: '50ms' })
  const endless = collectRun(second.link, testEnvelope())
  await sleep(20)
  await second.kernel.stop()
  assert.equal((terminalOf(await endless) as { code?: string }).code, 'interrupted')
})

test('a run of 20 s that began just before the sidecar was stopped ends as it would have', async (t) => {
  const finish = Promise.withResolvers<void>()
  const runtime = scripted(async function* () {
    yield says('working')
    await finish.promise
    yield result('done')
  })
  const { link, kernel } = await hostOf(t, { general: runtime }, { drain: 'as shipped' })
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() })
  const lines = link.run(testEnvelope(), new AbortController().signal)[Symbol.asyncIterator]()
  await lines.next()
  let stopped = false
  const over = kernel.stop().then(() => (stopped = true))
  t.mock.timers.tick(20_000)
  await sleep(60)
  assert.equal(stopped, false)
  finish.resolve()
  assert.match(String((await lines.next()).value), /"type":"result"/)
  await over
})

test('a sidecar without a runner waits for nobody, and so does one whose runtime keeps nothing that its logs do not have', async (t) => {
  const alone = await hostOf(t, { runtime_a: answering() }, { drain: '10m' })
  await collectRun(alone.link, envelope())
  await alone.kernel.stop()
  const forgetful = await hostOf(t, { general: scripted(() => [result('hi')]) }, { drain: '10m' })
  await forgetful.link.health()
  await collectRun(forgetful.link, testEnvelope())
  await forgetful.kernel.stop()
  const logged = await hostOf(t, { general: answering() }, { drain: '10m' })
  await logged.link.health()
  await collectRun(logged.link, testEnvelope())
  await logged.kernel.stop()
})
