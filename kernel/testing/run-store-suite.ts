import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { testQueueLimits, testQueueOrder, testQueueRaces, testTenantUse } from './run-store-queue.ts'
import { testListBounds, testReads } from './run-store-lists.ts'
import { testAppends, testLogs, testState } from './run-store-reads.ts'
import {
  again,
  assertOneEnding,
  begin,
  chunkOf,
  errorEnd,
  type OpenStore,
  profile,
  promptParts,
  readAll,
  resultEnd,
  shownParts,
  stolen,
  unique,
} from './run-store-steps.ts'

/** How many orders of events race in one run of the suite; `npm run chaos:schedules` tries 10,000. */
const schedules = Number(process.env['AGENT_ORC_SCHEDULES'] || 200)

/** The contract of a run store as tests. `open` gives each of them a store of its own. */
export function testRunStore(name: string, open: OpenStore): void {
  describe(`${name} keeps the promises of a run store`, () => {
    testStarts(open)
    testParallelStarts(open)
    testClaims(open)
    testEndings(open)
    testLogs(open)
    testAppends(open)
    testReads(open)
    testListBounds(open)
    testState(open)
    testQueueOrder(open)
    testQueueRaces(open)
    testQueueLimits(open)
    testTenantUse(open)
  })
}

/** A run takes its session when it starts. */
function testStarts(open: OpenStore): void {
  test('a run without a session creates one and holds its claim until it ends', async (t) => {
    const store = await open(t)
    const { claim, sessionId, runId } = await begin(store)
    assert.equal((await store.getSession('acme', sessionId))?.status, 'running')
    assert.deepEqual(await again(store, sessionId), { kind: 'busy' })
    assert.equal(await store.append(claim, chunkOf(claim, 1, 3)), true)
    assert.equal(await store.finish(resultEnd(claim, 4)), true)
    const session = await store.getSession('acme', sessionId)
    assert.equal(session?.status, 'idle')
    assert.equal(session.lastRunStatus, 'ok')
    assert.equal(session.lastPrompt, 'hello')
    assert.equal(session.runCount, 1)
    const run = await store.findRun('acme', runId)
    assert.equal(run?.status, 'ok')
    assert.equal(run.result, 'done')
    assert.deepEqual(run.subTask, { id: runId, sessionId, profile: 'writer', prompt: 'hello' })
    assert.ok(run.finishedAt! >= run.startedAt)
  })

  test('what a run brings beside its text is shown without its content, before and after it has ended', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    await store.finish(resultEnd(claim, 1))
    const runId = unique('run')
    const task = { profile: 'writer', prompt: 'look', ...promptParts }
    const outcome = await store.start({ tenantId: 'acme', runId, sessionId, task })
    assert.ok(outcome.kind === 'started')
    const shown = { id: runId, sessionId, profile: 'writer', prompt: 'look', ...shownParts }
    assert.deepEqual((await store.findRun('acme', runId))?.subTask, shown)
    await store.finish(resultEnd(outcome.claim, 1))
    const { items: runs } = await store.listRuns('acme', { sessionId })
    assert.deepEqual(
      runs.map(({ subTask }) => subTask),
      [
        { id: runId, sessionId, profile: 'writer', prompt: 'look' },
        { id: claim.runId, sessionId, profile: 'writer', prompt: 'hello' },
      ],
      'lists leave out what is not text',
    )
  })

  test('a session is reused by the same profile only, remembers its snapshot and its runtime handle', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    await store.finish({ ...resultEnd(claim, 1), runtimeSessionId: 'vendor-1', contextTokens: 5_000_000_000 })
    assert.deepEqual(await again(store, sessionId, unique('run'), 'other'), {
      kind: 'other_profile',
      profile: 'writer',
    })
    const outcome = await again(store, sessionId)
    assert.equal(outcome.kind, 'started')
    if (outcome.kind !== 'started') return
    assert.ok(outcome.claim.epoch > claim.epoch)
    assert.equal(outcome.session.runtimeSessionId, 'vendor-1')
    assert.equal(outcome.session.contextTokens, 5_000_000_000)
    assert.deepEqual(outcome.session.profile, profile())
    await store.finish(errorEnd(outcome.claim, 1))
    assert.equal((await store.getSession('acme', sessionId))?.status, 'errored')
    const third = await again(store, sessionId)
    assert.ok(third.kind === 'started')
    assert.equal(third.session.contextTokens, 5_000_000_000, 'a run without a call has read nothing')
  })

  test('a missing or shut-down session starts nothing', async (t) => {
    const store = await open(t)
    assert.deepEqual(await again(store, unique('sess')), { kind: 'no_session' })
    const { claim, sessionId, runId } = await begin(store)
    assert.equal(await store.shutdownSession('acme', sessionId), 'running')
    await store.finish(resultEnd(claim, 1))
    assert.equal(await store.shutdownSession('acme', sessionId), 'shutdown')
    assert.equal(await store.shutdownSession('acme', sessionId), 'shutdown')
    assert.equal(await store.shutdownSession('acme', unique('sess')), undefined)
    assert.deepEqual(await again(store, sessionId), { kind: 'no_session' })
    assert.equal((await store.getSession('acme', sessionId))?.status, 'shutdown')
    assert.equal((await store.findRun('acme', runId))?.status, 'ok')
  })
}

/** A run id and a session are taken once, however many ask for them at the same time. */
function testParallelStarts(open: OpenStore): void {
  test('a new session does not take the id of another one, which stays as it is', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    const create = { profile: profile() }
    const start = (runId: string) =>
      store.start({ tenantId: 'acme', runId, sessionId, task: { profile: 'writer', prompt: 'mine' }, create })
    assert.deepEqual(await start(unique('run')), { kind: 'session_taken' })
    assert.equal(await store.finish(resultEnd(claim, 1)), true)
    const before = await store.getSession('acme', sessionId)
    assert.deepEqual(await start(unique('run')), { kind: 'session_taken' })
    assert.deepEqual(await store.getSession('acme', sessionId), before)
  })

  test('a run id is taken once, whatever session it asks for', async (t) => {
    const store = await open(t)
    const { claim, sessionId, runId } = await begin(store)
    const repeated = await store.start({
      tenantId: 'acme',
      runId,
      sessionId: unique('sess'),
      task: { profile: 'writer', prompt: 'hello' },
      create: { profile: profile() },
    })
    assert.equal(repeated.kind, 'exists')
    assert.equal(repeated.kind === 'exists' && repeated.run.sessionId, sessionId)
    await store.finish(resultEnd(claim, 1))
    assert.equal((await again(store, sessionId, runId)).kind, 'exists')
    assert.equal((await store.getSession('acme', sessionId))?.status, 'idle')
    assert.equal((await store.listSessions('acme', {})).total, 1)
  })

  test('of 20 parallel starts of one run id exactly one is started and leaves exactly one session', async (t) => {
    const store = await open(t)
    const runId = unique('run')
    const outcomes = await Promise.all(
      Array.from({ length: 20 }, () =>
        store.start({
          tenantId: 'acme',
          runId,
          sessionId: unique('sess'),
          task: { profile: 'writer', prompt: 'hello' },
          create: { profile: profile() },
        }),
      ),
    )
    assert.equal(outcomes.filter((o) => o.kind === 'started').length, 1)
    assert.equal(outcomes.filter((o) => o.kind === 'exists').length, 19)
    assert.equal((await store.listSessions('acme', {})).total, 1)
  })

  test('of 100 parallel starts in one session exactly one is started', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    await store.finish(resultEnd(claim, 1))
    const outcomes = await Promise.all(Array.from({ length: 100 }, () => again(store, sessionId)))
    assert.equal(outcomes.filter((o) => o.kind === 'started').length, 1)
    assert.equal(outcomes.filter((o) => o.kind === 'busy').length, 99)
    assert.equal((await store.getSession('acme', sessionId))?.runCount, 2)
  })
}

/** Only the holder of a claim writes to its run. */
function testClaims(open: OpenStore): void {
  test('a stolen run is over: late writes of its owner are refused and the session is free', async (t) => {
    const store = await open(t)
    const { claim, sessionId, runId } = await begin(store)
    await store.append(claim, chunkOf(claim, 1, 2))
    assert.equal(await store.steal('acme', runId, 'cancelled', stolen), true)
    assert.equal(await store.append(claim, chunkOf(claim, 3, 1)), false)
    assert.equal(await store.finish(resultEnd(claim, 3)), false)
    assert.equal(await store.steal('acme', runId, 'cancelled', stolen), false)
    assert.equal(await assertOneEnding(store, 'acme', runId), 'cancelled')
    assert.equal((await store.findRun('acme', runId))?.error?.message, 'taken away')
    const next = await again(store, sessionId)
    assert.equal(next.kind, 'started')
    assert.equal(await store.finish(resultEnd(claim, 3)), false)
    assert.equal((await store.getSession('acme', sessionId))?.status, 'running')
  })

  test('a claim with another epoch writes nothing', async (t) => {
    const store = await open(t)
    const { claim, runId } = await begin(store)
    for (const epoch of [claim.epoch - 1, claim.epoch + 1]) {
      const foreign = { ...claim, epoch }
      assert.equal(await store.append(foreign, chunkOf(foreign, 1, 1)), false)
      assert.equal(await store.finish(resultEnd(foreign, 1)), false)
    }
    assert.deepEqual((await store.readLog('acme', runId, 0))?.chunks, [])
  })
}

/** A run ends once, whatever happens at the same time. */
function testEndings(open: OpenStore): void {
  test('however result, error, cancel, steal and sweep race, a run ends once', async (t) => {
    const store = await open(t)
    const actions = ['append', 'result', 'error', 'cancel', 'steal', 'sweep'] as const
    await fc.assert(
      fc.asyncProperty(fc.shuffledSubarray([...actions, ...actions], { minLength: 2 }), async (order) => {
        const { claim, sessionId, runId } = await begin(store)
        await store.append(claim, chunkOf(claim, 1, 2))
        const won = await Promise.all(
          order.map(async (action) => {
            if (action === 'append') return (await store.append(claim, chunkOf(claim, 1, 2)), false)
            if (action === 'result') return store.finish(resultEnd(claim, 3))
            if (action === 'error') return store.finish(errorEnd(claim, 3))
            if (action === 'cancel') return store.finish(errorEnd(claim, 3, 'cancelled'))
            if (action === 'steal') return store.steal('acme', runId, 'cancelled', stolen)
            await store.sweepOrphans()
            return false
          }),
        )
        const ends = order.filter((a) => a !== 'sweep' && a !== 'append').length
        assert.equal(won.filter(Boolean).length, Math.min(1, ends))
        if (ends === 0) assert.equal(await store.finish(resultEnd(claim, 3)), true)
        await assertOneEnding(store, 'acme', runId)
        assert.notEqual((await store.getSession('acme', sessionId))?.status, 'running')
      }),
      { numRuns: schedules },
    )
  })

  test('an append that races with a theft lands before the terminal event or not at all', async (t) => {
    const store = await open(t)
    for (let i = 0; i < 25; i++) {
      const { claim, runId } = await begin(store)
      const [first, , theft, late] = await Promise.all([
        store.append(claim, chunkOf(claim, 1, 2)),
        store.sweepOrphans(),
        store.steal('acme', runId, 'cancelled', stolen),
        store.append(claim, chunkOf(claim, 1, 2)),
      ])
      assert.equal(theft, true)
      await assertOneEnding(store, 'acme', runId)
      assert.equal((await readAll(store, 'acme', runId)).events.length, first || late ? 3 : 1)
    }
  })
}
