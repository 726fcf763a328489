import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createEventEncoder } from '#contracts/run-event'
import type { StartOutcome } from '#contracts/run-store'
import {
  again,
  begin,
  chunkOf,
  type OpenStore,
  profile,
  readAll,
  resultEnd,
  stolen,
  unique,
} from './run-store-steps.ts'

/** The newest copy of a conversation is kept. */
export function testState(open: OpenStore): void {
  test('the newest state bundle of a session is kept and counted', async (t) => {
    const store = await open(t)
    const { claim, sessionId } = await begin(store)
    await store.finish(resultEnd(claim, 1))
    assert.equal(await store.loadState('acme', sessionId), undefined)
    const bundle = (text: string) => ({ bytes: Buffer.from(text), contentType: 'application/json' })
    const of = { runner: 'aaaaaaaa', epoch: claim.epoch }
    assert.equal(await store.saveState('acme', sessionId, bundle('{"old":1}'), of), 9)
    assert.equal(
      await store.saveState('acme', sessionId, { ...bundle('{"new":1}'), runtimeSessionId: 'vendor-2' }, of),
      0,
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
    assert.equal(await store.saveState('acme', sessionId, bundle('old'), { runner: 'aaaaaaaa', epoch }), undefined)
    assert.equal((await store.findSession('acme', sessionId))?.stateRev, 1)
    assert.equal(await store.saveState('acme', sessionId, bundle('two!'), { runner: 'bbbbbbbb', epoch }), 1)
    assert.equal(Buffer.from((await store.loadState('acme', sessionId))!.bytes).toString(), 'two!')
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
    assert.equal(await save('half a turn', claim.epoch), undefined)
    await store.finish({ ...resultEnd(claim, 1), runner: 'aaaaaaaa' })
    assert.equal((await store.findSession('acme', sessionId))?.epoch, claim.epoch)
    const second = (await again(store, sessionId)) as StartOutcome & { kind: 'started' }
    assert.equal(await save('from before the run under way', claim.epoch), undefined)
    await store.finish({ ...resultEnd(second.claim, 1), runner: 'aaaaaaaa' })
    assert.equal(await save('new', second.claim.epoch), 3)
    assert.equal(await save('old', claim.epoch), undefined)
    assert.equal(Buffer.from((await store.loadState('acme', sessionId))!.bytes).toString(), 'new')
    const third = (await again(store, sessionId)) as StartOutcome & { kind: 'started' }
    await store.steal('acme', third.claim.runId, 'cancelled', stolen)
    assert.equal(await save('of a run that was taken away', third.claim.epoch), undefined)
    assert.equal((await store.findSession('acme', sessionId))?.stateRev, 1)
  })
}

/** The event log of a run is read whole and in order. */
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

/** Events are appended by the holder of the claim alone. */
export function testAppends(open: OpenStore): void {
  test('appends to many logs at once are each stored or refused by their own claim', async (t) => {
    const store = await open(t)
    const [mine, lost, over, long] = await Promise.all(['mine', 'lost', 'over', 'long'].map(() => begin(store)))
    const foreign = { ...mine!.claim, tenantId: 'globex' }
    await store.finish(resultEnd(over!.claim, 1))
    const many = Array.from({ length: 150 }, () => begin(store))
    const others = await Promise.all(many)
    const encoder = createEventEncoder(long!.runId, long!.sessionId, 1)
    const wide = [1, 2].map(() => encoder.line({ type: 'assistant', text: 'é\0"'.repeat(40_000), delta: true }))
    const chunk = (seq: number) => ({ firstSeq: seq, count: 1, lines: Buffer.from(wide[seq - 1]!) })
    const answers = await Promise.all([
      store.append(mine!.claim, chunkOf(mine!.claim, 1, 3)),
      store.append({ ...lost!.claim, epoch: lost!.claim.epoch + 1 }, chunkOf(lost!.claim, 1, 1)),
      store.append(over!.claim, chunkOf(over!.claim, 2, 1)),
      store.append(foreign, chunkOf(foreign, 1, 1)),
      store.append(long!.claim, chunk(1)),
      store.append(long!.claim, chunk(2)),
      store.append(mine!.claim, chunkOf(mine!.claim, 1, 3)),
    ])
    assert.deepEqual(answers, [true, false, false, false, true, true, true])
    assert.ok((await Promise.all(others.map(({ claim }) => store.append(claim, chunkOf(claim, 1, 2))))).every(Boolean))
    const read = async (runId: string) => (await readAll(store, 'acme', runId)).events
    assert.deepEqual(
      (await read(mine!.runId)).map(({ seq, runId }) => [seq, runId]),
      [1, 2, 3].map((seq) => [seq, mine!.runId]),
    )
    assert.deepEqual(await read(lost!.runId), [])
    assert.equal((await read(over!.runId)).length, 1)
    const same = (await read(long!.runId)).map((event) => JSON.stringify(event)).join('\n') === wide.join('').trimEnd()
    assert.ok(same, 'long lines come back as they were')
    for (const { runId } of others) {
      assert.deepEqual(
        (await read(runId)).map((event) => [event.seq, event.runId]),
        [1, 2].map((seq) => [seq, runId]),
      )
    }
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
}
