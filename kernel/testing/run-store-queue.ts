import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type EndReason, maxQueued, type NextOutcome, type RunStore } from '#contracts/run-store'
import {
  again,
  assertOneEnding,
  begin,
  chunkOf,
  errorEnd,
  type OpenStore,
  promptParts,
  readAll,
  resultEnd,
  shownParts,
  stolen,
  unique,
} from './run-store-steps.ts'

export const enqueue = (store: RunStore, sessionId: string, runId = unique('run'), interrupt = false) =>
  store.enqueue({
    tenantId: 'acme',
    runId,
    sessionId,
    task: { profile: 'writer', prompt: `prompt of ${runId}`, metadata: { of: runId }, ...promptParts },
    interrupt,
  })

export function startedOf(outcome: NextOutcome): NextOutcome & { kind: 'started' } {
  assert.equal(outcome.kind, 'started')
  return outcome as NextOutcome & { kind: 'started' }
}

/** Runs wait for their session in a line, and are claimed in its order. */
export function testQueueOrder(open: OpenStore): void {
  test('runs that wait are claimed in their order, with what they were given, and numbered as they are claimed', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    const [first, second] = [unique('run'), unique('run')]
    assert.deepEqual(await enqueue(store, sessionId, first), { kind: 'queued' })
    assert.deepEqual(await enqueue(store, sessionId, second), { kind: 'queued' })
    assert.deepEqual(await store.claimNext('acme', sessionId), { kind: 'none' })
    const waiting = await store.findRun('acme', first)
    assert.equal(waiting?.status, 'queued')
    assert.ok(waiting.queuedAt)
    assert.deepEqual(await store.readLog('acme', first, 0), { chunks: [], status: 'queued' })
    await store.finish({ ...resultEnd(claim, 1), runtimeSessionId: 'vendor-1' })
    const next = startedOf(await store.claimNext('acme', sessionId))
    assert.deepEqual(next.task, {
      id: first,
      sessionId,
      profile: 'writer',
      prompt: `prompt of ${first}`,
      metadata: { of: first },
      ...promptParts,
    })
    assert.deepEqual(waiting.subTask.attachments, shownParts.attachments)
    assert.equal(next.session.runtimeSessionId, 'vendor-1')
    assert.ok(next.claim.epoch > claim.epoch)
    const running = await store.findRun('acme', first)
    assert.equal(running?.status, 'running')
    assert.equal(running.queuedAt, waiting.queuedAt)
    assert.ok(running.startedAt >= waiting.startedAt)
    const session = await store.getSession('acme', sessionId)
    assert.deepEqual([session?.status, session?.runCount, session?.lastPrompt], ['running', 2, `prompt of ${first}`])
    assert.equal(await store.append(next.claim, chunkOf(next.claim, 1, 2)), true)
    await store.finish(errorEnd(next.claim, 3))
    const last = startedOf(await store.claimNext('acme', sessionId))
    assert.equal(last.claim.runId, second)
    await store.finish(resultEnd(last.claim, 1))
    assert.deepEqual(await store.claimNext('acme', sessionId), { kind: 'none' })
    const { items: runs } = await store.listRuns('acme', { sessionId })
    assert.deepEqual(
      runs.map((run) => run.runId),
      [second, first, claim.runId],
    )
    const numbered = await store.runsOfSession('acme', sessionId, 0)
    assert.deepEqual(
      numbered?.runs.map((run) => run.runId),
      [claim.runId, first, second],
    )
  })

  test('a session that runs wait for is busy even while it is free: nobody overtakes them', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    await enqueue(store, sessionId)
    await store.finish(resultEnd(claim, 1))
    assert.equal((await store.getSession('acme', sessionId))?.status, 'idle')
    assert.deepEqual(await again(store, sessionId), { kind: 'busy' })
    const { claim: next } = startedOf(await store.claimNext('acme', sessionId))
    await store.finish(resultEnd(next, 1))
    assert.equal((await again(store, sessionId)).kind, 'started')
  })

  test('who ends a run hears that another waits for its session, whichever way the run ended', async (t) => {
    const store = await open(t)
    const heard: string[] = []
    store.onWaiting((tenantId, sessionId) => void heard.push(`${tenantId} ${sessionId}`))
    const { claim, sessionId } = await begin(store)
    await enqueue(store, sessionId)
    await enqueue(store, sessionId)
    assert.deepEqual(heard, [])
    await store.finish(resultEnd(claim, 1))
    const { claim: next } = startedOf(await store.claimNext('acme', sessionId))
    await store.steal('acme', next.runId, 'cancelled', stolen)
    assert.deepEqual(heard, [`acme ${sessionId}`, `acme ${sessionId}`])
    const { claim: last } = startedOf(await store.claimNext('acme', sessionId))
    await store.finish(resultEnd(last, 1))
    assert.equal(heard.length, 2)
  })
}

/** The next run is claimed once, or cancelled once, whoever is first. */
export function testQueueRaces(open: OpenStore): void {
  test('of 20 parallel claims exactly one takes the next run', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    for (let i = 0; i < 3; i++) await enqueue(store, sessionId)
    await store.finish(resultEnd(claim, 1))
    const claims = await Promise.all(Array.from({ length: 20 }, () => store.claimNext('acme', sessionId)))
    assert.equal(claims.filter((next) => next.kind === 'started').length, 1)
    assert.equal((await store.listRuns('acme', { sessionId, status: 'running' })).total, 1)
    assert.equal((await store.listRuns('acme', { sessionId, status: 'queued' })).total, 2)
  })

  test('a run that waits is taken out of its line with one terminal event, and never starts', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    const [first, second] = [unique('run'), unique('run')]
    await enqueue(store, sessionId, first)
    await enqueue(store, sessionId, second)
    assert.equal(await store.steal('acme', first, 'cancelled', stolen), true)
    assert.equal(await store.steal('acme', first, 'cancelled', stolen), false)
    assert.equal(await assertOneEnding(store, 'acme', first), 'cancelled')
    assert.equal((await store.getSession('acme', sessionId))?.status, 'running')
    await store.finish(resultEnd(claim, 1))
    assert.equal(startedOf(await store.claimNext('acme', sessionId)).claim.runId, second)
  })

  test('a cancel and a claim of the same waiting run race: it ends once, and the session is not lost', async (t) => {
    const store = await open(t)
    for (let i = 0; i < 25; i++) {
      const { claim, sessionId } = await begin(store)
      const waiting = unique('run')
      await enqueue(store, sessionId, waiting)
      await store.finish(resultEnd(claim, 1))
      const [next, taken] = await Promise.all([
        store.claimNext('acme', sessionId),
        store.steal('acme', waiting, 'cancelled', stolen),
      ])
      assert.equal(taken, true)
      if (next.kind === 'started') assert.equal(await store.finish(resultEnd(next.claim, 1)), false)
      assert.equal(await assertOneEnding(store, 'acme', waiting), 'cancelled')
      assert.equal((await again(store, sessionId)).kind, 'started')
    }
  })
}

/** An interrupt goes first, a line is bounded, and what cannot wait is refused with its reason. */
export function testQueueLimits(open: OpenStore): void {
  test('an interrupt goes before all that wait, names the run that holds the session, and replaces an older one', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    const [patient, first, second] = [unique('run'), unique('run'), unique('run')]
    await enqueue(store, sessionId, patient)
    await enqueue(store, sessionId, first, true)
    assert.deepEqual(await store.claimNext('acme', sessionId), {
      kind: 'held',
      runId: claim.runId,
      interrupt: first,
    })
    await enqueue(store, sessionId, second, true)
    assert.equal(await assertOneEnding(store, 'acme', first), 'cancelled')
    const { events } = await readAll(store, 'acme', first)
    assert.equal(events[0]?.['code'], 'interrupted_by')
    assert.ok(String(events[0]?.['message']).includes(second))
    await store.steal('acme', claim.runId, 'cancelled', stolen)
    assert.equal(startedOf(await store.claimNext('acme', sessionId)).claim.runId, second)
    assert.equal((await store.findRun('acme', patient))?.status, 'queued')
  })

  test('a line is bounded, an interrupt always fits', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    const outcomes = await Promise.all(Array.from({ length: maxQueued + 5 }, () => enqueue(store, sessionId)))
    assert.equal(outcomes.filter((outcome) => outcome.kind === 'queued').length, maxQueued)
    assert.equal(outcomes.filter((outcome) => outcome.kind === 'full').length, 5)
    assert.equal((await store.listRuns('acme', { sessionId, status: 'queued' })).total, maxQueued)
    assert.deepEqual(await enqueue(store, sessionId, unique('run'), true), { kind: 'queued', holder: claim.runId })
    await store.steal('acme', claim.runId, 'cancelled', stolen)
    assert.deepEqual(await enqueue(store, sessionId, unique('run'), true), { kind: 'queued' })
  })

  test('what cannot wait is told why: a taken id, another profile, no session, another tenant', async (t) => {
    const store = await open(t)
    const { claim, sessionId, runId } = await begin(store)
    assert.equal((await enqueue(store, sessionId, runId)).kind, 'exists')
    assert.deepEqual(await enqueue(store, unique('sess')), { kind: 'no_session' })
    const task = { profile: 'other', prompt: 'x' }
    const order = { runId: unique('run'), sessionId, task, interrupt: false }
    assert.deepEqual(await store.enqueue({ tenantId: 'acme', ...order }), { kind: 'other_profile', profile: 'writer' })
    assert.deepEqual(await store.enqueue({ tenantId: 'globex', ...order }), { kind: 'no_session' })
    const waiting = unique('run')
    await enqueue(store, sessionId, waiting)
    assert.equal(await store.steal('globex', waiting, 'cancelled', stolen), false)
    await store.finish(resultEnd(claim, 1))
    assert.deepEqual(await store.claimNext('globex', sessionId), { kind: 'none' })
    assert.equal(startedOf(await store.claimNext('acme', sessionId)).claim.runId, waiting)
    const ids = await Promise.all(Array.from({ length: 10 }, () => enqueue(store, sessionId, `${runId}-twice`)))
    assert.equal(ids.filter((outcome) => outcome.kind === 'queued').length, 1)
    assert.equal(ids.filter((outcome) => outcome.kind === 'exists').length, 9)
  })

  test('shutting a session down cancels what waits for it', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    const waiting = [unique('run'), unique('run')]
    for (const id of waiting) await enqueue(store, sessionId, id)
    assert.equal(await store.shutdownSession('acme', sessionId), 'running')
    await store.finish(resultEnd(claim, 1))
    assert.equal(await store.shutdownSession('acme', sessionId), 'shutdown')
    for (const id of waiting) {
      assert.equal(await assertOneEnding(store, 'acme', id), 'cancelled')
      assert.equal((await store.findRun('acme', id))?.error?.code, 'session_shutdown')
    }
    assert.deepEqual(await store.claimNext('acme', sessionId), { kind: 'none' })
    assert.deepEqual(await enqueue(store, sessionId), { kind: 'no_session' })
  })

  test('a question reaches whoever executes the run', async (t) => {
    const store = await open(t)
    const reason: EndReason = { code: 'cancelled', message: 'please' }
    const heard = new Promise((resolve) => store.onEndRequested((...question) => resolve(question)))
    await store.requestEnd('acme', 'run-1', reason)
    assert.deepEqual(await heard, ['acme', 'run-1', reason])
  })
}

/** What a tenant has is counted, and how much it may have is kept. */
export function testTenantUse(open: OpenStore): void {
  test('a run that brings attachments is claimed once there is room for them, and others meanwhile', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    const [large, small] = [unique('run'), unique('run')]
    const asked: [string, number][] = []
    const admits = (room: number) => (runId: string, bytes: number) => {
      asked.push([runId, bytes])
      return bytes <= room
    }
    await enqueue(store, sessionId, large)
    assert.deepEqual(await store.claimNext('acme', sessionId, admits(100)), { kind: 'none' })
    assert.deepEqual(asked, [], 'its session is busy')
    await store.finish(resultEnd(claim, 1))
    assert.deepEqual(await store.claimNext('acme', sessionId, admits(15)), { kind: 'none' })
    assert.deepEqual(asked.splice(0), [[large, 16]])
    assert.equal((await store.findRun('acme', large))?.status, 'queued')
    const next = startedOf(await store.claimNext('acme', sessionId, admits(16)))
    assert.deepEqual([next.claim.runId, asked.splice(0)], [large, [[large, 16]]])
    const task = { profile: 'writer', prompt: 'small' }
    await store.enqueue({ tenantId: 'acme', runId: small, sessionId, task, interrupt: false })
    await store.finish(resultEnd(next.claim, 1))
    assert.equal(startedOf(await store.claimNext('acme', sessionId, admits(0))).claim.runId, small)
    assert.deepEqual(asked, [], 'it brings none')
  })

  test('what a tenant has of its limits is counted: runs that wait, sessions, bytes of logs', async (t) => {
    const store = await open(t)
    const { sessionId } = await begin(store)
    const before = await store.countWaiting('acme')
    await enqueue(store, sessionId)
    assert.equal(await store.countWaiting('acme'), before + 1)
    assert.equal(await store.countWaiting('nobody'), 0)
    const runId = unique('run')
    const task = { profile: 'writer', prompt: 'x' }
    const order = { tenantId: 'acme', sessionId, runId, task, interrupt: false }
    assert.deepEqual(await store.enqueue({ ...order, most: before + 1 }), { kind: 'tenant_full' })
    assert.deepEqual(await store.enqueue({ ...order, most: before + 2 }), { kind: 'queued' })
    assert.equal(await store.countSessions('acme', 1), 1)
    assert.equal(await store.countSessions('nobody', 1), 0)
    const bytes = await store.countLogBytes('acme', 40)
    assert.equal(await store.countLogBytes('acme', 2), bytes + 2)
    assert.equal(await store.countLogBytes('globex', 0), 0)
  })
  test('a process may execute as many runs as it wants, or as the limit says', async (t) => {
    const store = await open(t)
    assert.equal(await store.holdRuns('acme', 3, 10), 3)
    assert.equal(await store.countHeld('acme'), 3)
    assert.equal(await store.holdRuns('acme', 30, 10), 10)
    assert.equal(await store.holdRuns('acme', 10, 4), 4, 'a limit that was lowered')
    assert.equal(await store.holdRuns('acme', 0, 4), 0)
    assert.equal(await store.countHeld('acme'), 0)
  })
}
