import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { describe, type TestContext, test } from 'node:test'
import fc from 'fast-check'
import type { Profile } from '#contracts/profiles'
import { createEventEncoder, parseLine } from '#contracts/run-event'
import type { Claim, FinishRun, RunStore, StartOutcome } from '#contracts/run-store'
import type { LogChunk, RunStatus } from '#contracts/runs'

const profile = (name = 'writer'): Profile => ({
  name,
  id: `prof_${name}`,
  runtime: 'general',
  model: 'builtin/demo',
  instructions: '',
  tools: [],
  skills: [],
  mcpServers: [],
  workerMode: 'static',
  limits: {},
  metadata: {},
  createdAt: '2026-01-01T00:00:00.000Z',
  updatedAt: '2026-01-01T00:00:00.000Z',
})

const unique = (kind: string): string => `${kind}-${randomBytes(6).toString('hex')}`

interface Begun {
  readonly claim: Claim
  readonly sessionId: string
  readonly runId: string
}

async function begin(store: RunStore, tenantId = 'acme', runId = unique('run')): Promise<Begun> {
  const sessionId = unique('sess')
  const outcome = await store.start({
    tenantId,
    runId,
    sessionId,
    task: { profile: 'writer', prompt: 'hello' },
    create: profile(),
  })
  assert.equal(outcome.kind, 'started')
  return { claim: (outcome as StartOutcome & { kind: 'started' }).claim, sessionId, runId }
}

const again = (store: RunStore, sessionId: string, runId = unique('run'), name = 'writer', tenantId = 'acme') =>
  store.start({ tenantId, runId, sessionId, task: { profile: name, prompt: 'and then?' } })

/** `count` events of a run from `firstSeq` on, as the conductor would hand them over. */
export function chunkOf(claim: Claim, firstSeq: number, count: number): LogChunk {
  const encoder = createEventEncoder(claim.runId, claim.sessionId, firstSeq)
  const lines = Array.from({ length: count }, (_, i) =>
    encoder.line({ type: 'assistant', text: `word ${firstSeq + i} `, delta: true }),
  )
  return { firstSeq, count, lines: Buffer.from(lines.join('')) }
}

const resultEnd = (claim: Claim, firstSeq: number): FinishRun => ({
  claim,
  status: 'ok',
  sessionStatus: 'idle',
  result: 'done',
  tail: {
    firstSeq,
    count: 1,
    lines: Buffer.from(
      createEventEncoder(claim.runId, claim.sessionId, firstSeq).line({
        type: 'result',
        text: 'done',
        finishReason: 'stop',
      }),
    ),
  },
})

const errorEnd = (claim: Claim, firstSeq: number, status: 'error' | 'cancelled' = 'error'): FinishRun => ({
  claim,
  status,
  sessionStatus: status === 'error' ? 'errored' : 'idle',
  error: { code: status, message: 'no more' },
  tail: {
    firstSeq,
    count: 1,
    lines: Buffer.from(
      createEventEncoder(claim.runId, claim.sessionId, firstSeq).line({
        type: 'error',
        code: status,
        message: 'no more',
      }),
    ),
  },
})

const stolen = { code: 'cancelled', message: 'taken away' }

async function readAll(store: RunStore, tenantId: string, runId: string) {
  const events: Record<string, unknown>[] = []
  let status: RunStatus | undefined
  for (let after = 0; ;) {
    const page = await store.readLog(tenantId, runId, after)
    assert.ok(page, 'the run has a log')
    status = page.status
    if (page.chunks.length === 0) break
    for (const chunk of page.chunks) {
      const lines = chunk.lines.toString().trimEnd().split('\n')
      assert.equal(lines.length, chunk.count)
      for (const line of lines) events.push(parseLine(Buffer.from(line))!)
      after = chunk.firstSeq + chunk.count - 1
    }
  }
  return { events, status }
}

/** Every log ends once, counts without a gap, and agrees with the run's status. */
async function assertOneEnding(store: RunStore, tenantId: string, runId: string): Promise<RunStatus> {
  const { events, status } = await readAll(store, tenantId, runId)
  assert.deepEqual(
    events.map((e) => e['seq']),
    events.map((_, i) => i + 1),
  )
  const terminal = events.filter((e) => e['type'] === 'result' || e['type'] === 'error')
  assert.equal(terminal.length, 1, 'exactly one terminal event')
  assert.equal(events.at(-1), terminal[0])
  assert.equal(terminal[0]?.['type'] === 'result', status === 'ok')
  assert.equal((await store.findRun(tenantId, runId))?.status, status)
  return status!
}

/** What every RunStore promises. `open` gives a store with the tenants `acme` and `globex`; it is called once per test. */
export function testRunStore(name: string, open: (t: TestContext) => Promise<RunStore>): void {
  describe(`${name} keeps the promises of a run store`, () => {
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

    test('a run id is taken once, whatever session it asks for', async (t) => {
      const store = await open(t)
      const { claim, sessionId, runId } = await begin(store)
      const repeated = await store.start({
        tenantId: 'acme',
        runId,
        sessionId: unique('sess'),
        task: { profile: 'writer', prompt: 'hello' },
        create: profile(),
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
            create: profile(),
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
        { numRuns: 60 },
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
        create: profile(),
      })
      assert.equal(outcome.kind, 'started')
      if (outcome.kind !== 'started') return
      const { claim } = outcome
      assert.equal(await store.finish({ ...resultEnd(claim, 1), result: nul, runtimeSessionId: nul }), true)
      assert.deepEqual((await store.findRun('acme', claim.runId))?.subTask.metadata, { note: nul })
      assert.notEqual(claim.sessionId, sessionId)
    })

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
      await store.saveState('acme', sessionId, bundle('{"old":1}'))
      await store.saveState('acme', sessionId, { ...bundle('{"new":1}'), runtimeSessionId: 'vendor-2' })
      const loaded = await store.loadState('acme', sessionId)
      assert.equal(Buffer.from(loaded!.bytes).toString(), '{"new":1}')
      assert.equal(loaded!.contentType, 'application/json')
      assert.equal(loaded!.runtimeSessionId, 'vendor-2')
      const session = await store.findSession('acme', sessionId)
      assert.equal(session?.stateRev, 2)
      assert.equal(session.runtimeSessionId, 'vendor-2')
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
      await store.saveState('globex', mine.sessionId, { bytes: Buffer.from('x'), contentType: 'text/plain' })
      assert.equal(await store.loadState('globex', mine.sessionId), undefined)
      const theirs = await begin(store, 'globex', mine.runId)
      assert.equal(await store.finish(resultEnd({ ...mine.claim, tenantId: 'globex' }, 1)), true)
      assert.equal((await store.findRun('acme', mine.runId))?.status, 'running')
      assert.equal((await store.findRun('globex', theirs.runId))?.status, 'ok')
    })
  })
}
