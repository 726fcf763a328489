import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { StartOutcome } from '#contracts/run-store'
import { again, begin, type Begun, type OpenStore, resultEnd, stolen, unique } from './run-store-steps.ts'

/** Lists, state bundles, and the wall between tenants. */
export function testReads(open: OpenStore): void {
  test('lists are newest first, filtered, paged and counted', async (t) => {
    const store = await open(t)
    const runs: Begun[] = []
    for (let i = 0; i < 5; i++) runs.push(await begin(store))
    await store.finish(resultEnd(runs[0]!.claim, 1))
    const newest = runs.map((r) => r.runId).toReversed()
    const all = await store.listRuns('acme', {})
    assert.equal(all.total, 5)
    assert.deepEqual(
      all.runs.map((r) => r.runId),
      newest,
    )
    const page = await store.listRuns('acme', { limit: 2, offset: 1 })
    assert.equal(page.total, 5)
    assert.deepEqual(
      page.runs.map((r) => r.runId),
      newest.slice(1, 3),
    )
    assert.deepEqual((await store.listRuns('acme', { limit: 2, offset: 9 })).runs, [])
    assert.equal((await store.listRuns('acme', { status: 'ok' })).total, 1)
    assert.equal((await store.listRuns('acme', { profile: 'other' })).total, 0)
    const ofSession = await store.listRuns('acme', { sessionId: runs[2]!.sessionId })
    assert.deepEqual(
      ofSession.runs.map((r) => r.runId),
      [runs[2]!.runId],
    )
    assert.equal((await store.listSessions('acme', { limit: 2 })).sessions.length, 2)
    const found = await store.listSessions('acme', { q: runs[3]!.sessionId.slice(5) })
    assert.deepEqual(
      found.sessions.map((s) => s.id),
      [runs[3]!.sessionId],
    )
    assert.equal((await store.listSessions('acme', { q: 'WRITE' })).total, 5)
    assert.equal((await store.listSessions('acme', { q: '%' })).total, 0)
  })

  test('the newest state bundle of a session is kept and counted', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    await store.finish(resultEnd(claim, 1))
    assert.equal(await store.loadState('acme', sessionId), undefined)
    const bundle = (text: string) => ({ bytes: Buffer.from(text), contentType: 'application/json' })
    const of = { runner: 'aaaaaaaa', epoch: claim.epoch }
    assert.equal(await store.saveState('acme', sessionId, bundle('{"old":1}'), of), true)
    assert.equal(
      await store.saveState('acme', sessionId, { ...bundle('{"new":1}'), runtimeSessionId: 'vendor-2' }, of),
      true,
    )
    const loaded = await store.loadState('acme', sessionId)
    assert.equal(Buffer.from(loaded!.bytes).toString(), '{"new":1}')
    assert.equal(loaded!.contentType, 'application/json')
    assert.equal(loaded!.runtimeSessionId, 'vendor-2')
    const session = await store.findSession('acme', sessionId)
    assert.equal(session?.stateRev, 2)
    assert.equal(session.runtimeSessionId, 'vendor-2')
  })

  test('a session remembers which runner took its last run, and keeps no older copy of its conversation', async (t) => {
    const store = await open(t)
    const bundle = (text: string) => ({ bytes: Buffer.from(text), contentType: 'application/json' })
    const { claim, sessionId } = await begin(store)
    assert.equal((await store.findSession('acme', sessionId))?.runner, undefined)
    await store.finish({ ...resultEnd(claim, 1), runner: 'aaaaaaaa' })
    await store.saveState('acme', sessionId, bundle('one'), { runner: 'aaaaaaaa', epoch: claim.epoch })
    const second = (await again(store, sessionId)) as StartOutcome & { kind: 'started' }
    assert.equal(second.session.runner, 'aaaaaaaa')
    await store.finish({ ...resultEnd(second.claim, 1), runner: 'bbbbbbbb' })
    const { epoch } = second.claim
    assert.equal(await store.saveState('acme', sessionId, bundle('old'), { runner: 'aaaaaaaa', epoch }), false)
    assert.equal((await store.findSession('acme', sessionId))?.stateRev, 1)
    assert.equal(await store.saveState('acme', sessionId, bundle('two'), { runner: 'bbbbbbbb', epoch }), true)
    assert.equal(Buffer.from((await store.loadState('acme', sessionId))!.bytes).toString(), 'two')
    const third = (await again(store, sessionId)) as StartOutcome & { kind: 'started' }
    await store.steal('acme', third.claim.runId, 'cancelled', stolen)
    assert.equal(
      (await store.findSession('acme', sessionId))?.runner,
      'bbbbbbbb',
      'a run that no runner took moves nothing',
    )
  })

  test('an old copy of a conversation does not replace a newer one, whoever held it back', async (t) => {
    const store = await open(t)
    const bundle = (text: string) => ({ bytes: Buffer.from(text), contentType: 'application/json' })
    const save = (text: string, epoch: number) =>
      store.saveState('acme', sessionId, bundle(text), { runner: 'aaaaaaaa', epoch })
    const { claim, sessionId } = await begin(store)
    assert.equal(await save('half a turn', claim.epoch), false)
    await store.finish({ ...resultEnd(claim, 1), runner: 'aaaaaaaa' })
    assert.equal((await store.findSession('acme', sessionId))?.epoch, claim.epoch)
    const second = (await again(store, sessionId)) as StartOutcome & { kind: 'started' }
    assert.equal(await save('from before the run under way', claim.epoch), false)
    await store.finish({ ...resultEnd(second.claim, 1), runner: 'aaaaaaaa' })
    assert.equal(await save('new', second.claim.epoch), true)
    assert.equal(await save('old', claim.epoch), false)
    assert.equal(Buffer.from((await store.loadState('acme', sessionId))!.bytes).toString(), 'new')
    const third = (await again(store, sessionId)) as StartOutcome & { kind: 'started' }
    await store.steal('acme', third.claim.runId, 'cancelled', stolen)
    assert.equal(await save('of a run that was taken away', third.claim.epoch), false)
    assert.equal((await store.findSession('acme', sessionId))?.stateRev, 1)
  })

  test('one tenant sees and touches nothing of another, even under the same ids', async (t) => {
    const store = await open(t)
    const mine = await begin(store, 'acme')
    assert.equal(await store.findRun('globex', mine.runId), undefined)
    assert.equal(await store.readLog('globex', mine.runId, 0), undefined)
    assert.equal(await store.findSession('globex', mine.sessionId), undefined)
    assert.equal(await store.getSession('globex', mine.sessionId), undefined)
    assert.equal(await store.shutdownSession('globex', mine.sessionId), undefined)
    assert.equal(await store.steal('globex', mine.runId, 'cancelled', stolen), false)
    assert.deepEqual(await again(store, mine.sessionId, unique('run'), 'writer', 'globex'), { kind: 'no_session' })
    assert.equal((await store.listRuns('globex', {})).total, 0)
    assert.equal((await store.listSessions('globex', {})).total, 0)
    await store.saveState(
      'globex',
      mine.sessionId,
      { bytes: Buffer.from('x'), contentType: 'text/plain' },
      { runner: 'aaaaaaaa', epoch: 1 },
    )
    assert.equal(await store.loadState('globex', mine.sessionId), undefined)
    const theirs = await begin(store, 'globex', mine.runId)
    assert.equal(await store.finish(resultEnd({ ...mine.claim, tenantId: 'globex' }, 1)), true)
    assert.equal((await store.findRun('acme', mine.runId))?.status, 'running')
    assert.equal((await store.findRun('globex', theirs.runId))?.status, 'ok')
  })
}
