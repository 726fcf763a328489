import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  again,
  begin,
  chunkOf,
  errorEnd,
  type OpenStore,
  profile,
  promptParts,
  resultEnd,
  shownParts,
  unique,
} from './run-store-steps.ts'

/** A run takes its session when it starts. */
export function testStarts(open: OpenStore): void {
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
    const { runs } = await store.listRuns('acme', { sessionId })
    assert.deepEqual(
      runs.map(({ subTask }) => subTask),
      [shown, { id: claim.runId, sessionId, profile: 'writer', prompt: 'hello' }],
    )
  })

  test('a session is reused by the same profile only, remembers its snapshot and its runtime handle', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    await store.finish({ ...resultEnd(claim, 1), runtimeSessionId: 'vendor-1' })
    assert.deepEqual(await again(store, sessionId, unique('run'), 'other'), {
      kind: 'other_profile',
      profile: 'writer',
    })
    const outcome = await again(store, sessionId)
    assert.equal(outcome.kind, 'started')
    if (outcome.kind !== 'started') return
    assert.ok(outcome.claim.epoch > claim.epoch)
    assert.equal(outcome.session.runtimeSessionId, 'vendor-1')
    assert.deepEqual(outcome.session.profile, profile())
    await store.finish(errorEnd(outcome.claim, 1))
    assert.equal((await store.getSession('acme', sessionId))?.status, 'errored')
    assert.equal((await again(store, sessionId)).kind, 'started')
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
export function testParallelStarts(open: OpenStore): void {
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
