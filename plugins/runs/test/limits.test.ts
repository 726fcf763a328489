import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { type Limits, overLimit, TenantLimits } from '#contracts/limits'
import type { RunStore } from '#contracts/run-store'
import type { RunSummary } from '#contracts/runs'
import { fake } from '#testing'
import {
  endless,
  eventually,
  FakeRunner,
  limitsOf,
  meddling,
  parkedRuns,
  profileNamed,
  result,
  type Script,
  stage,
  type Stage,
  type StageOptions,
  text,
} from './stage.ts'
import { FairQueue } from '../fair-queue.ts'
import { RunLimits } from '../limits.ts'
import { Line } from '../line.ts'
import { MemoryRunStore } from '../memory/store.ts'

/** A stage whose tenants have these limits. */
async function limited(
  t: TestContext,
  own: Partial<Limits>,
  script: Script = endless,
  options: StageOptions = {},
): Promise<Stage> {
  const runner = new FakeRunner()
  runner.script = script
  return stage(t, { runner, ...options, more: [fake(TenantLimits, limitsOf(own)), ...(options.more ?? [])] })
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

test('an interrupt gets the slot of the run that it interrupts', async (t) => {
  // Without sweeps and deadlines.
  t.mock.timers.enable({ apis: ['setInterval'] })
  const s = await limited(t, { runningRuns: 1 })
  const { sessionId, runId } = (await post(s, {})).json()
  const waiting = await post(s, { id: 'urgent', sessionId, whenBusy: 'interrupt' })
  assert.deepEqual([waiting.statusCode, waiting.json().status], [202, 'queued'])
  await eventually('it begins', async () => (await status(s, 'urgent')) === 'running')
  assert.equal((await s.store.findRun('acme', runId))!.error!.code, 'interrupted_by')
})

test('a run that waits behind one without room begins once that one is cancelled, or has an interrupt before it', async (t) => {
  const memory = new MemoryRunStore()
  let advance: Parameters<RunStore['onWaiting']>[0] = () => {}
  const onWaiting: RunStore['onWaiting'] = (listener) => memory.onWaiting((advance = listener))
  const s = await limited(t, { attachmentBytes: 8 }, endless, { store: meddling(memory, { onWaiting }) })
  const attachments = [{ mediaType: 'image/png', data: 'AAAAAAAA' }]
  const first = [await post(s, {}), await post(s, {})].map((answer) => answer.json())
  for (const [n, { sessionId }] of first.entries()) {
    await post(s, { id: `large-${n}`, sessionId, whenBusy: 'enqueue', attachments })
    await post(s, { id: `small-${n}`, sessionId, whenBusy: 'enqueue' })
  }
  assert.equal((await post(s, { attachments })).statusCode, 202)
  for (const { runId } of first) await s.dispatch.cancel('acme', runId)
  const idle = async ({ sessionId }: { sessionId: string }) =>
    (await s.store.getSession('acme', sessionId))?.status === 'idle'
  await eventually('there is no room', async () => (await idle(first[0])) && (await idle(first[1])))
  await s.dispatch.cancel('acme', 'large-0')
  // As the next sweep of queues does.
  advance('acme', first[0].sessionId)
  await eventually('the one behind it begins', async () => (await status(s, 'small-0')) === 'running')
  await post(s, { id: 'urgent', sessionId: first[1].sessionId, whenBusy: 'interrupt' })
  await eventually('the interrupt begins', async () => (await status(s, 'urgent')) === 'running')
  assert.equal(await status(s, 'large-1'), 'queued')
})

test('runs that people have decided about go on within the limit, one for each slot, before what a tenant has queued since', async (t) => {
  const { store, parked, approvals, decide } = await parkedRuns(profileNamed('writer'), 'one', 'two', 'three')
  const s = await limited(t, { runningRuns: 1 }, endless, { store, more: [approvals] })
  const { runId: idle, sessionId } = (await post(s, {})).json()
  await s.dispatch.cancel('acme', idle)
  const other = (await post(s, {})).json().runId
  // The second wake-up of a run changes nothing.
  for (const id of ['one', 'two', 'one', 'three']) await decide(id)
  assert.equal((await post(s, { id: 'queued', sessionId, whenBusy: 'enqueue' })).json().status, 'queued')
  assert.equal(parked.size, 3)
  const goesOn = async (before: string, id: string): Promise<void> => {
    await s.dispatch.cancel('acme', before)
    await eventually(`${id} goes on`, () => s.runner.executed.some(({ runId }) => runId === id))
  }
  await goesOn(other, 'one')
  assert.deepEqual([...parked.keys()], ['two', 'three'])
  await goesOn('one', 'two')
  assert.deepEqual([...parked.keys()], ['three'])
  await goesOn('two', 'three')
  assert.equal(await status(s, 'queued'), 'queued')
  await goesOn('three', 'queued')
  assert.equal(s.runner.executed.length, 6)
})

test('where all slots belong to parents, one delegated run of each goes on at a time: none would, if it needed a slot', async (t) => {
  const children = ['busy_one', 'busy_two', 'away_three'] as const
  const { store, parked, approvals, decide } = await parkedRuns(profileNamed('writer'), ...children)
  const s = await limited(t, { runningRuns: 1 }, endless, { store, more: [approvals] })
  assert.equal((await post(s, { id: 'busy' })).statusCode, 202)
  await Promise.all(children.map(decide))
  await eventually('one goes on', () => parked.size === 2)
  assert.equal([...parked.keys()].filter((id) => id.startsWith('busy')).length, 1)
  assert.equal((await post(s, {})).statusCode, 429, 'it is no slot for others')
  const [first] = children.filter((id) => !parked.has(id))
  await s.dispatch.cancel('acme', first!)
  await decide('busy_one')
  await decide('busy_two')
  await eventually('the other one goes on', () => parked.size === 1)
  assert.deepEqual([...parked.keys()], ['away_three'], 'its parent does not execute, so it waits for a slot')
})

test('once a delegated run in the slot of its parent is over, the next one of that parent goes on, whoever else waits', async (t) => {
  // Without sweeps, which would find it ten seconds later.
  t.mock.timers.enable({ apis: ['setInterval'] })
  const { store, parked, approvals, decide } = await parkedRuns(profileNamed('writer'), 'busy_one', 'busy_two')
  const s = await limited(t, { runningRuns: 1 }, endless, { store, more: [approvals] })
  const { runId: idle, sessionId } = (await post(s, {})).json()
  await s.dispatch.cancel('acme', idle)
  assert.equal((await post(s, { id: 'busy' })).statusCode, 202)
  assert.equal((await post(s, { id: 'queued', sessionId, whenBusy: 'enqueue' })).json().status, 'queued')
  await decide('busy_one')
  await eventually('one goes on', () => s.runner.executed.some(({ runId }) => runId === 'busy_one'))
  await decide('busy_two')
  await s.dispatch.cancel('acme', 'busy_one')
  await eventually('the other one goes on', () => parked.size === 0)
  assert.equal(await status(s, 'queued'), 'queued')
})

test('a delegated run that went on with a slot of its own leaves that of its parent to the next one', async (t) => {
  const { store, parked, approvals, decide } = await parkedRuns(profileNamed('writer'), 'busy_one', 'busy_two')
  // The first call of a run to go on is answered after the second one.
  const first = Promise.withResolvers<void>()
  let calls = 0
  const resume: RunStore['resume'] = async (...run) => {
    if (run[1] === 'busy_one' && ++calls === 1) await first.promise
    return store.resume(...run)
  }
  const more = [approvals]
  const s = await limited(t, { runningRuns: 3 }, endless, { store: meddling(store, { resume }), more })
  const others = [await post(s, {}), await post(s, {})].map((answer) => answer.json().runId as string)
  assert.equal((await post(s, { id: 'busy' })).statusCode, 202)
  const late = decide('busy_one')
  await eventually('it has the slot of its parent', () => calls === 1)
  for (const other of others) await s.dispatch.cancel('acme', other)
  await decide('busy_one')
  assert.deepEqual([...parked.keys()], ['busy_two'])
  first.resolve()
  await late
  assert.equal((await post(s, {})).statusCode, 202)
  assert.equal((await post(s, {})).statusCode, 429)
  await decide('busy_two')
  assert.equal(parked.size, 0)
})

/** Limits of one tenant, and runs that were accepted earlier. Each begins with its bytes, or says that it has not. */
function accepted(own: Partial<Limits>, store: Partial<RunStore> = {}) {
  const limits = new RunLimits(meddling(new MemoryRunStore(), store), limitsOf(own), { warn() {} })
  const [begun, claimed]: string[][] = [[], []]
  const looking = new Set<string>()
  const begin = async (id: string, bytes = 0): Promise<void> => {
    // As in the queue of sessions to look at.
    if (looking.has(id)) return
    looking.add(id)
    const again = (): void => void begin(id, bytes)
    await limits.beginLater('acme', id, again, async (admits) => {
      claimed!.push(id)
      if (bytes > 0 && !admits!(id, bytes)) return false
      limits.holdAttachments('acme', id, bytes)
      return begun!.push(id) > 0
    })
    looking.delete(id)
  }
  const end = (bytes = 0): void => {
    limits.give('acme')
    limits.giveAttachments('acme', bytes)
  }
  return { limits, begun: begun!, claimed: claimed!, begin, end }
}
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

test('when there is room again it goes to the first ones that fit, and nobody else is tried', async () => {
  const { limits, begun, claimed, begin, end } = accepted({ runningRuns: 40, attachmentBytes: 8 })
  await begin('first', 6)
  for (const [id, bytes] of [
    ['large', 9],
    ['small', 2],
    ['second', 2],
    ['third', 2],
    ['fourth', 2],
    ['fifth', 2],
  ] as const)
    await begin(id, bytes)
  assert.deepEqual(begun, ['first', 'small'])
  claimed.length = 0
  end(6)
  await settled()
  assert.deepEqual(
    [begun.splice(0), claimed.splice(0)],
    [
      ['first', 'small', 'second', 'third', 'fourth'],
      ['second', 'third', 'fourth'],
    ],
  )
  await begin('large', 9)
  assert.deepEqual(claimed, [], 'while there is no room for it the store is not asked')
  for (let n = 0; n < 4; n++) {
    end(2)
    await settled()
  }
  assert.deepEqual([begun, claimed], [['fifth'], ['fifth']])
  end(2)
  await settled()
  assert.deepEqual(begun, ['fifth', 'large'])
  await limits.close()
})

test('a run that found a slot in the store calls the next one, until the store has no more', async () => {
  let free = 0
  const holdRuns: RunStore['holdRuns'] = async (_tenantId, wanted) => Math.min(wanted, free)
  const { limits, begun, begin, end } = accepted({ runningRuns: 10 }, { holdRuns })
  const ids = Array.from({ length: 6 }, (_, n) => `run ${n}`)
  await Promise.all(ids.map((id) => begin(id)))
  assert.deepEqual(begun, [])
  // Another process has given back five.
  free = 5
  limits.force('acme')
  end()
  for (let n = 0; n < 20; n++) await settled()
  assert.deepEqual(begun, ids.slice(0, 5))
  await limits.close()
})

test('who is called in vain stays the first in line, and who does not come is forgotten', () => {
  const line = new Line()
  const called: string[] = []
  const join = (id: string, needs = 0): void => line.join(id, () => void called.push(id), needs)
  for (const id of ['one', 'two', 'three']) join(id)
  line.callFirst()
  line.callFirst()
  assert.deepEqual(called.splice(0), ['one', 'two'])
  join('one')
  line.callFirst()
  assert.deepEqual(called.splice(0), ['one'])
  line.sweep()
  assert.equal(line.size, 3)
  line.callFirst()
  line.sweep()
  assert.deepEqual([called.splice(0), line.size], [['three'], 1], 'called since the sweep before')
  join('three', 5)
  line.callFirst(2, (needs) => needs < 5)
  assert.deepEqual([called, line.needsOf('three'), line.needsOf('one')], [[], 5, undefined])
})

test('whoever is called and can do nothing with it has the next one called; of others it does not matter', () => {
  const line = new Line()
  const called: string[] = []
  for (const id of ['one', 'two', 'three']) line.join(id, () => void called.push(id))
  line.pass('two')
  assert.deepEqual(called, [])
  line.callFirst()
  line.pass('one')
  assert.deepEqual([called, line.size], [['one', 'three'], 1])
})

test('a slot that is on its way back to the store is not taken meanwhile', async () => {
  const answers: (() => void)[] = []
  const holdRuns: RunStore['holdRuns'] = (_tenantId, wanted) =>
    new Promise((resolve) => answers.push(() => resolve(wanted)))
  const store = meddling(new MemoryRunStore(), { holdRuns })
  const limits = new RunLimits(store, limitsOf({ runningRuns: 1 }), { warn() {} })
  const first = limits.take('acme')
  answers.shift()!()
  assert.equal(await first, true)
  limits.give('acme')
  assert.equal(answers.length, 1, 'it is given back')
  const second = limits.take('acme')
  assert.notEqual(second, true)
  while (answers.length > 0) {
    answers.shift()!()
    await new Promise((resolve) => setImmediate(resolve))
  }
  assert.equal(await second, true, 'asked for anew')
  await limits.close()
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

test('sessions that begin while they are counted are counted as well', async (t) => {
  const asked: (() => void)[] = []
  let gated = false
  const memory = new MemoryRunStore()
  const countSessions: RunStore['countSessions'] = async (...of) => {
    const count = await memory.countSessions(...of)
    if (gated) await new Promise<void>((resolve) => asked.push(resolve))
    return count
  }
  const store = meddling(memory, { countSessions })
  const s = await limited(t, { sessions: 4 }, endless, { store })
  for (let i = 0; i < 3; i++) assert.equal((await post(s, {})).statusCode, 202)
  gated = true
  const answers = Promise.all(Array.from({ length: 6 }, () => post(s, {})))
  await eventually('they are counted', () => asked.length > 0)
  gated = false
  for (const go of asked) go()
  const begun = (await answers).filter(({ statusCode }) => statusCode === 202)
  assert.equal(begun.length, 1)
})

test('of what all processes may begin together each looks at the others before long', async (t) => {
  const store = new MemoryRunStore()
  const conductors = [
    await limited(t, { sessions: 40 }, endless, { store }),
    await limited(t, { sessions: 40 }, endless, { store }),
    await limited(t, { sessions: 40 }, endless, { store }),
  ]
  let begun = 0
  for (let i = 0; i < 40; i++) for (const s of conductors) if ((await post(s, {})).statusCode === 202) begun++
  assert.ok(begun >= 40 && begun <= 43, `${begun} sessions`)
})

test('a tenant far from its limit has its sessions counted behind the back of its starts', async (t) => {
  const memory = new MemoryRunStore()
  let counted = 0
  const countSessions: RunStore['countSessions'] = () => {
    counted++
    return new Promise(() => {})
  }
  const s = await limited(t, { sessions: 1_000 }, endless, { store: meddling(memory, { countSessions }) })
  for (let i = 0; i < 60; i++) assert.equal((await post(s, {})).statusCode, 202)
  assert.equal(counted, 1)
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
    attachmentBytes: 256 * 1024 ** 2,
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

test('queued runs with attachments begin as others end, never more at once than there is room for', async (t) => {
  const attachments = [{ mediaType: 'image/png', data: 'AAAAAAAA' }]
  let now = 0
  let most = 0
  const s = await limited(t, { attachmentBytes: 8 }, async function* (run, signal) {
    const brings = run.attachments ? 1 : 0
    most = Math.max(most, (now += brings))
    try {
      yield* endless(run, signal)
    } finally {
      now -= brings
    }
  })
  const first = [await post(s, {}), await post(s, {}), await post(s, {})].map((answer) => answer.json())
  const waiting = []
  for (const { sessionId } of first) {
    const answer = await post(s, { sessionId, whenBusy: 'enqueue', attachments })
    assert.equal(answer.json().status, 'queued')
    waiting.push(answer.json().runId as string)
  }
  await Promise.all(first.map(({ runId }) => s.dispatch.cancel('acme', runId)))
  for (let left = waiting; left.length > 0;) {
    const running = async (): Promise<string[]> => {
      const found = await Promise.all(left.map(async (id) => ((await status(s, id)) === 'running' ? [id] : [])))
      return found.flat()
    }
    await eventually('one of them begins', async () => (await running()).length > 0)
    const [next] = await running()
    await eventually('its runner has it', () => s.runner.executed.some(({ runId }) => runId === next))
    assert.equal((await post(s, {})).statusCode, 202, 'a run without any')
    await s.dispatch.cancel('acme', next!)
    left = left.filter((id) => id !== next)
  }
  assert.equal(most, 1)
})

test('an accepted run waits for a runner that is full of attachments; another is refused', async (t) => {
  const s = await limited(t, { attachmentBytes: 8 })
  const attachments = [{ mediaType: 'image/png', data: 'AAAAAAAA' }]
  const { runId, sessionId } = (await post(s, {})).json()
  await post(s, { id: 'waits', sessionId, whenBusy: 'enqueue', attachments })
  let full = 1
  s.runner.onExecute = (run) => {
    if (run.attachments && full-- > 0) throw overLimit('attachmentBytes', 8)
  }
  await s.dispatch.cancel('acme', runId)
  await eventually('it is sent again', () => s.runner.executed.filter((run) => run.runId === 'waits').length === 2)
  assert.equal(await status(s, 'waits'), 'running')
  await s.dispatch.cancel('acme', 'waits')
  full = 1
  const refused = await post(s, { id: 'new', attachments })
  assert.deepEqual([refused.statusCode, refused.json().limit], [429, 'attachmentBytes'])
  assert.equal(await status(s, 'new'), undefined)
})

test('a run that waits for room at a runner is handed over when its conductor stops: nobody has begun it', async (t) => {
  const handed: string[] = []
  const store = meddling(new MemoryRunStore(), {
    retreat: async () => true,
    handOver: async ({ runId }) => handed.push(runId) > 0,
  })
  const s = await limited(t, { attachmentBytes: 8 }, endless, { store, config: { drain: '20s' } })
  const attachments = [{ mediaType: 'image/png', data: 'AAAAAAAA' }]
  const { runId, sessionId } = (await post(s, {})).json()
  await post(s, { id: 'waits', sessionId, whenBusy: 'enqueue', attachments })
  s.runner.onExecute = (run) => {
    if (run.attachments) throw overLimit('attachmentBytes', 8)
  }
  await s.dispatch.cancel('acme', runId)
  await eventually('it is sent', () => s.runner.executed.some((run) => run.runId === 'waits'))
  const stopped = s.kernel.stop()
  await eventually('it is handed over', () => handed.includes('waits'))
  await stopped
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
  assert.equal(seen.at(-1), 'modest-a', 'the greedy tenant has no more than a part of the places')
  assert.equal(before, 5)
  for (let i = 0; i < 20; i++) turns.add(`tenant-${i}`, 'a')
  assert.equal(seen.length, 16)
  while (held.length > 0) {
    held.splice(0).forEach((release) => release())
    await new Promise((resolve) => setImmediate(resolve))
  }
  assert.equal(seen.filter((one) => one === 'greedy-0').length, 2)
  assert.equal(new Set(seen).size, 1_021)
})
