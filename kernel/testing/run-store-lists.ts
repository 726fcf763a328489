import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Listing } from '#contracts/paging'
import {
  again,
  begin,
  type Begun,
  type OpenStore,
  profile,
  promptParts,
  resultEnd,
  shownParts,
  stolen,
  unique,
} from './run-store-steps.ts'

/** Lists show what they are asked for, and a tenant is shown nothing of another. */
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
      all.items.map((r) => r.runId),
      newest,
    )
    const page = await store.listRuns('acme', { limit: 2, offset: 1 })
    assert.equal(page.total, 5)
    assert.deepEqual(
      page.items.map((r) => r.runId),
      newest.slice(1, 3),
    )
    assert.deepEqual((await store.listRuns('acme', { limit: 2, offset: 9 })).items, [])
    assert.equal((await store.listRuns('acme', { status: 'ok' })).total, 1)
    assert.equal((await store.listRuns('acme', { profile: 'other' })).total, 0)
    const ofSession = await store.listRuns('acme', { sessionId: runs[2]!.sessionId })
    assert.deepEqual(
      ofSession.items.map((r) => r.runId),
      [runs[2]!.runId],
    )
    assert.equal((await store.listSessions('acme', { limit: 2 })).items.length, 2)
    const found = await store.listSessions('acme', { q: runs[3]!.sessionId.slice(5) })
    assert.deepEqual(
      found.items.map((s) => s.id),
      [runs[3]!.sessionId],
    )
    assert.equal((await store.listSessions('acme', { q: 'WRITE' })).total, 5)
    assert.equal((await store.listSessions('acme', { q: '%' })).total, 0)
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

/** Lists are bounded: in what they show of a run, and in what they read at once. */
export function testListBounds(open: OpenStore): void {
  test('a list shows the beginning of each text, cut between characters, and says what it has cut', async (t) => {
    const store = await open(t)
    const run = async (chars: number, metadata: Record<string, unknown>) => {
      const runId = unique('run')
      const task = { profile: 'writer', prompt: '🦉'.repeat(chars), metadata, ...promptParts }
      const create = { profile: profile() }
      const outcome = await store.start({ tenantId: 'acme', runId, sessionId: unique('sess'), task, create })
      assert.ok(outcome.kind === 'started')
      const error = { code: 'failed', message: 'é'.repeat(chars) }
      await store.finish({ ...resultEnd(outcome.claim, 1), result: '"'.repeat(chars), error, status: 'error' })
      const { items } = await store.listRuns('acme', {})
      const { attachments, responseFormat, ...whole } = (await store.findRun('acme', runId))!.subTask
      assert.deepEqual({ attachments, responseFormat }, shownParts)
      assert.deepEqual([whole.prompt.length, whole.metadata], [2 * chars, metadata])
      return items.find((one) => one.runId === runId)!
    }
    const begin = { prompt: '🦉'.repeat(1_000), result: '"'.repeat(1_000), message: 'é'.repeat(1_000) }
    const small = { note: 'n' }
    for (const [chars, metadata, kept, truncated] of [
      [1_000, small, small, undefined],
      [1_001, small, small, ['error', 'prompt', 'result']],
      [9_000, { note: 'é'.repeat(2_041) }, { note: 'é'.repeat(2_041) }, ['error', 'prompt', 'result']],
      [9_000, { note: 'é'.repeat(2_043) }, undefined, ['error', 'metadata', 'prompt', 'result']],
      [9_000, { note: 'x'.repeat(400_000) }, undefined, ['error', 'metadata', 'prompt', 'result']],
    ] as const) {
      const { subTask, result, error, ...shown } = await run(chars, metadata)
      assert.deepEqual({ prompt: subTask.prompt, result, message: error?.message }, begin)
      assert.deepEqual(subTask.metadata, kept)
      assert.deepEqual(
        Object.keys(subTask).filter((key) => key in promptParts),
        [],
      )
      assert.deepEqual(shown.truncated?.toSorted(), truncated)
    }
  })

  test('a long list comes by and by, each item once, however much of it is asked for', async (t) => {
    const store = await open(t)
    const begun = await Promise.all(Array.from({ length: 150 }, () => begin(store)))
    const all = async <T>({ items, rest }: Listing<T>): Promise<T[]> => {
      const read = [...items]
      for await (const more of rest ?? []) {
        assert.ok(more.length <= 100, 'a read is bounded')
        read.push(...more)
      }
      return read
    }
    const whole = await store.listRuns('acme', {})
    assert.ok(whole.items.length <= 100 && whole.total === 150)
    const ids = (await all(whole)).map(({ runId }) => runId)
    assert.deepEqual(ids.toSorted(), begun.map(({ runId }) => runId).toSorted())
    for (const [limit, offset] of [
      [130, 0],
      [130, 15],
      [130, 140],
      [64, 64],
      [128, 22],
    ] as const) {
      const page = await all(await store.listRuns('acme', { limit, offset }))
      const wanted = ids.slice(offset, offset + limit)
      assert.deepEqual(
        page.map(({ runId }) => runId),
        wanted,
      )
    }
    const sessions = (await all(await store.listSessions('acme', {}))).map(({ id }) => id)
    assert.deepEqual(sessions.toSorted(), begun.map(({ sessionId }) => sessionId).toSorted())
  })
}
