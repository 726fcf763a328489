import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { testQueueLimits, testQueueOrder, testQueueRaces } from './run-store-queue.ts'
import { testLogs, testReads, testState } from './run-store-reads.ts'
import { testParallelStarts, testStarts } from './run-store-starts.ts'
import {
  again,
  assertOneEnding,
  begin,
  chunkOf,
  errorEnd,
  type OpenStore,
  readAll,
  resultEnd,
  stolen,
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
    testReads(open)
    testState(open)
    testQueueOrder(open)
    testQueueRaces(open)
    testQueueLimits(open)
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
