import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { type Limits, overLimit, TenantLimits } from '#contracts/limits'
import type { RunSummary } from '#contracts/runs'
import { fake } from '#testing'
import { endless, eventually, FakeRunner, limitsOf, result, type Script, stage, type Stage, text } from './stage.ts'
import { FairQueue } from '../fair-queue.ts'

/** A stage whose tenants have these limits. */
async function limited(t: TestContext, own: Partial<Limits>, script: Script = endless): Promise<Stage> {
  const runner = new FakeRunner()
  runner.script = script
  return stage(t, { runner, more: [fake(TenantLimits, limitsOf(own))] })
}

const post = (s: Stage, task: object) =>
  s.kernel.listeners['conductor']!.inject({
    method: 'POST',
    url: '/api/runs',
    payload: { profile: 'writer', prompt: 'x', ...task },
  })
const status = async (s: Stage, id: string): Promise<RunSummary['status'] | undefined> =>
  (await s.store.findRun('acme', id))?.status

test('a tenant has as many runs at once as it may; the next is refused, and starts once one has ended', async (t) => {
  const s = await limited(t, { runningRuns: 2 })
  const first = (await post(s, {})).json().runId
  await post(s, { id: 'second' })
  const refused = await post(s, {})
  const { error, limit, max, message } = refused.json()
  assert.deepEqual([refused.statusCode, error, limit, max], [429, 'limit_reached', 'runningRuns', 2])
  assert.match(message, /runningRuns of this tenant is 2\./)
  assert.equal(refused.headers['retry-after'], '1')
  assert.equal((await post(s, { id: 'second' })).statusCode, 202, 'a repeated call joins its run')
  await s.dispatch.cancel('acme', first)
  assert.equal((await post(s, {})).statusCode, 202)
})

test('of many starts at once as many begin as may', async (t) => {
  const s = await limited(t, { runningRuns: 7 })
  const answers = await Promise.all(Array.from({ length: 30 }, () => post(s, {})))
  const begun = answers.filter(({ statusCode }) => statusCode === 202)
  assert.equal(begun.length, 7)
  await Promise.all(begun.map((answer) => s.dispatch.cancel('acme', answer.json().runId)))
  assert.equal((await post(s, {})).statusCode, 202, 'every slot came back')
})

test('starts that come while the first one asks for slots are not refused', async (t) => {
  const s = await limited(t, { runningRuns: 100 })
  const answers = await Promise.all(Array.from({ length: 100 }, () => post(s, {})))
  assert.deepEqual([...new Set(answers.map(({ statusCode }) => statusCode))], [202])
  assert.equal((await post(s, {})).statusCode, 429)
})

test('a run that may wait waits for a slot as it does for its session', async (t) => {
  const s = await limited(t, { runningRuns: 1 })
  const { sessionId, runId } = (await post(s, {})).json()
  await s.dispatch.cancel('acme', runId)
  const other = (await post(s, {})).json().runId
  const waiting = await post(s, { id: 'waits', sessionId, whenBusy: 'enqueue' })
  assert.deepEqual([waiting.statusCode, waiting.json().status], [202, 'queued'])
  await s.dispatch.cancel('acme', other)
  await eventually('it begins', async () => (await status(s, 'waits')) === 'running')
})

test('as many runs of a tenant wait as may', async (t) => {
  const s = await limited(t, { queuedRuns: 1 })
  const { sessionId } = (await post(s, {})).json()
  assert.equal((await post(s, { sessionId, whenBusy: 'enqueue' })).json().status, 'queued')
  const refused = await post(s, { sessionId, whenBusy: 'enqueue' })
  assert.deepEqual([refused.statusCode, refused.json().limit], [429, 'queuedRuns'])
})

test('a tenant with as many sessions as it may have gets no other, and goes on in those', async (t) => {
  const s = await limited(t, { sessions: 1 }, async function* () {
    yield result('done')
  })
  const { sessionId, runId } = (await post(s, {})).json()
  await eventually('it ends', async () => (await status(s, runId)) === 'ok')
  const refused = await post(s, {})
  assert.deepEqual(
    [refused.statusCode, refused.json().error, refused.json().limit],
    [409, 'limit_exceeded', 'sessions'],
  )
  assert.equal((await post(s, { sessionId })).statusCode, 202)
  await eventually('the session rests', async () => (await s.store.shutdownSession('acme', sessionId)) === 'shutdown')
  await eventually('one that was shut down counts no more', async () => (await post(s, {})).statusCode === 202)
})

test('runs that have written as much to their logs as they may in a day end, and no other begins', async (t) => {
  const s = await limited(t, { eventLogBytesPerDay: 2_000 }, async function* (_run, signal) {
    while (!signal.aborted) {
      yield text('x'.repeat(500))
      await new Promise((resolve) => setImmediate(resolve))
    }
  })
  const { runId } = (await post(s, {})).json()
  await eventually('it ends', async () => (await status(s, runId)) === 'error')
  assert.equal((await s.store.findRun('acme', runId))!.error!.code, 'log_full')
  const refused = await post(s, {})
  assert.deepEqual([refused.statusCode, refused.json().limit], [429, 'eventLogBytesPerDay'])
  assert.ok(Number(refused.headers['retry-after']) <= 86_400)
})

test('runs end when as much is stored of their tenant as may be, and no other begins', async (t) => {
  const s = await limited(t, { storedBytes: 20_000 }, async function* (_run, signal) {
    while (!signal.aborted) {
      yield text('x'.repeat(500))
      await new Promise((resolve) => setImmediate(resolve))
    }
  })
  const { runId } = (await post(s, {})).json()
  await eventually('it ends', async () => (await status(s, runId)) === 'error')
  assert.equal((await s.store.findRun('acme', runId))!.error!.code, 'storage_full')
  const refused = await post(s, {})
  assert.deepEqual(
    [refused.statusCode, refused.json().error, refused.json().limit],
    [409, 'limit_exceeded', 'storedBytes'],
  )
})

test('prompts count, those of runs that wait as well, and the profile of each new session', async (t) => {
  const s = await limited(t, { storedBytes: 50_000 })
  const { sessionId } = (await post(s, { prompt: 'x'.repeat(10_000) })).json()
  assert.equal((await post(s, { sessionId, whenBusy: 'enqueue', prompt: 'x'.repeat(40_000) })).json().status, 'queued')
  assert.equal((await post(s, {})).json().limit, 'storedBytes')
})

test('a run that its runner has no room for is refused by the name of the limit, as if it had never been asked for', async (t) => {
  const s = await limited(t, { stateBytes: 7 })
  s.runner.onExecute = () => {
    throw overLimit('stateBytes', 7)
  }
  const refused = await post(s, { id: 'refused' })
  assert.deepEqual(
    [refused.statusCode, refused.json().error, refused.json().limit, refused.json().max],
    [429, 'limit_reached', 'stateBytes', 7],
  )
  assert.equal(await status(s, 'refused'), undefined)
  assert.deepEqual(s.runner.executed[0]!.limits, {
    stateBytes: 7,
    sandboxes: 100,
    workspaceBytes: 20 * 1024 ** 3,
    toolCallsPerMinute: 30_000,
    vfsBytes: 10 * 1024 ** 3,
    vfsEntries: 200_000,
    vfsSessions: 10_000,
    objects: 100_000,
    objectBytes: 10 * 1024 ** 3,
  })
})

test('attachments of runs that execute are bounded together; one run always may have its own', async (t) => {
  const s = await limited(t, { attachmentBytes: 6 })
  const attachments = [{ mediaType: 'image/png', data: 'AAAAAAAA' }]
  const first = await post(s, { attachments })
  assert.equal(first.statusCode, 202)
  const refused = await post(s, { attachments })
  assert.deepEqual([refused.statusCode, refused.json().limit], [429, 'attachmentBytes'])
  assert.equal((await post(s, {})).statusCode, 202, 'a run without any')
  await s.dispatch.cancel('acme', first.json().runId)
  await eventually('there is room again', async () => (await post(s, { attachments })).statusCode === 202)
})

test('attachments that come at once are bounded as those that come one after the other', async (t) => {
  const s = await limited(t, { attachmentBytes: 16 })
  const attachments = [{ mediaType: 'image/png', data: 'AAAAAAAA' }]
  const answers = await Promise.all(Array.from({ length: 8 }, () => post(s, { attachments })))
  const begun = answers.filter(({ statusCode }) => statusCode === 202)
  assert.equal(begun.length, 2)
  const wrong = [{ mediaType: 'image/png', data: 'A' }]
  await Promise.all(begun.map((answer) => s.dispatch.cancel('acme', answer.json().runId)))
  for (let i = 0; i < 3; i++) assert.equal((await post(s, { attachments: wrong })).statusCode, 400)
  const again = await Promise.all(Array.from({ length: 2 }, () => post(s, { attachments })))
  assert.deepEqual(
    again.map(({ statusCode }) => statusCode),
    [202, 202],
    'all of it came back',
  )
})

test('sessions are looked at in turns of their tenants, each again that was named meanwhile', async () => {
  const seen: string[] = []
  const held: (() => void)[] = []
  const turns = new FairQueue(async (tenantId, sessionId) => {
    seen.push(`${tenantId}-${sessionId}`)
    await new Promise<void>((resolve) => held.push(resolve))
  })
  for (let i = 0; i < 1_000; i++) turns.add('greedy', String(i))
  turns.add('modest', 'a')
  turns.add('greedy', '0')
  const before = seen.length
  assert.ok(before < 100, 'not all at once')
  assert.ok(!seen.includes('modest-a'))
  held.splice(0).forEach((release) => release())
  await new Promise((resolve) => setImmediate(resolve))
  assert.ok(seen.indexOf('modest-a') <= before + 1, 'it comes after one of the greedy tenant')
  while (held.length > 0) {
    held.splice(0).forEach((release) => release())
    await new Promise((resolve) => setImmediate(resolve))
  }
  assert.equal(seen.filter((one) => one === 'greedy-0').length, 2)
  assert.equal(new Set(seen).size, 1_001)
})
