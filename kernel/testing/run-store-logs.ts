import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createEventEncoder } from '#contracts/run-event'
import { begin, chunkOf, type OpenStore, profile, readAll, resultEnd, unique } from './run-store-steps.ts'

/** The event log of a run. */
export function testLogs(open: OpenStore): void {
  test('a log is read from any event on, in order and whole', async (t) => {
    const store = await open(t)
    const { claim, runId } = await begin(store)
    let seq = 1
    const all: string[] = []
    for (const count of [1, 7, 64, 2]) {
      const chunk = chunkOf(claim, seq, count)
      await store.append(claim, chunk)
      all.push(...chunk.lines.toString().trimEnd().split('\n'))
      seq += count
    }
    await store.finish(resultEnd(claim, seq))
    for (const after of [0, 1, 2, 8, 9, 40, 71, 72, 73, 74, 75, 1_000]) {
      const page = await store.readLog('acme', runId, after)
      const first = page?.chunks[0]
      if (after >= seq) assert.equal(first, undefined)
      else assert.ok(first && first.firstSeq <= after + 1 && first.firstSeq + first.count > after + 1)
    }
    const { events } = await readAll(store, 'acme', runId)
    assert.deepEqual(
      events.slice(0, -1),
      all.map((line) => JSON.parse(line)),
    )
    assert.equal(await store.readLog('acme', unique('run'), 0), undefined)
  })

  test('another attempt is counted with the event that begins it, and refused to whoever lost the run', async (t) => {
    const store = await open(t)
    const { claim, runId } = await begin(store)
    assert.equal((await store.findRun('acme', runId))?.attempt, 1)
    await store.append(claim, chunkOf(claim, 1, 3))
    const again = chunkOf(claim, 4, 1)
    assert.equal(await store.retry(claim, 2, again), true)
    assert.equal(await store.retry(claim, 2, again), true, 'a repeated call changes nothing')
    assert.equal((await store.findRun('acme', runId))?.attempt, 2)
    assert.equal((await readAll(store, 'acme', runId)).events.length, 4)
    assert.equal(await store.retry({ ...claim, epoch: claim.epoch - 1 }, 3, chunkOf(claim, 5, 1)), false)
    await store.finish(resultEnd(claim, 5))
    assert.equal(await store.retry(claim, 3, chunkOf(claim, 6, 1)), false)
    assert.equal((await store.findRun('acme', runId))?.attempt, 2)
    assert.equal((await readAll(store, 'acme', runId)).events.length, 5)
  })

  test('one read of a log is bounded to about a megabyte', async (t) => {
    const store = await open(t)
    const { claim, runId } = await begin(store)
    const line = createEventEncoder(claim.runId, claim.sessionId, 1)
    for (let seq = 1; seq <= 6; seq++) {
      const text = 'x'.repeat(400_000)
      const lines = Buffer.from(line.line({ type: 'assistant', text, delta: true }))
      await store.append(claim, { firstSeq: seq, count: 1, lines })
    }
    const page = await store.readLog('acme', runId, 0)
    assert.ok(page!.chunks.length >= 2 && page!.chunks.length <= 4)
    assert.equal((await readAll(store, 'acme', runId)).events.length, 6)
  })

  test('text that PostgreSQL has no form for does not keep a run from ending', async (t) => {
    const store = await open(t)
    const { sessionId } = await begin(store)
    const nul = `a\0b\u2028\ud800`
    const outcome = await store.start({
      tenantId: 'acme',
      runId: unique('run'),
      sessionId: unique('sess'),
      task: { profile: 'writer', prompt: nul, metadata: { note: nul } },
      create: { profile: profile() },
    })
    assert.equal(outcome.kind, 'started')
    if (outcome.kind !== 'started') return
    const { claim } = outcome
    assert.equal(await store.finish({ ...resultEnd(claim, 1), result: nul, runtimeSessionId: nul }), true)
    assert.deepEqual((await store.findRun('acme', claim.runId))?.subTask.metadata, { note: nul })
    assert.notEqual(claim.sessionId, sessionId)
  })
}
