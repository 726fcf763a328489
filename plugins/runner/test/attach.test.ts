import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises'
import { linesOf } from '#kernel'
import { type AttachRun, type ExecuteRun, failingStops, leaving } from '#contracts/runner'
import {
  answer,
  codeOf,
  collect,
  execute,
  type Fixture,
  hang,
  type Line,
  paced,
  profile,
  run,
  runnerOf,
  types,
  until,
} from './fixtures.ts'

const never = new AbortController().signal
const keepMs = 30_000
const { sessionId } = run()
const kept = (over: Partial<ExecuteRun> = {}) => run({ keepMs, epoch: 1, ...over })
const from = (afterSeq: number, over: Partial<AttachRun> = {}): AttachRun => ({
  sessionId,
  runId: 'r1',
  afterSeq,
  epoch: 1,
  ...over,
})
const seqs = (lines: readonly Line[]): unknown[] => lines.map(({ seq }) => seq)
const attach = (f: Fixture, afterSeq: number, over: Partial<AttachRun> = {}): Promise<Line[]> =>
  collect(f.runner.attach('acme', from(afterSeq, over), never))

/** Reads line by line, and says how far it is. */
function reading(chunks: AsyncIterable<Buffer>) {
  const lines: Line[] = []
  const over = (async () => {
    for await (const chunk of chunks) {
      for (const line of linesOf(chunk)) lines.push(JSON.parse(line.toString()) as Line)
    }
  })()
  return { lines, over }
}

test('who attaches behind any event of a run under way gets exactly the rest, and whoever read it before is cut off', async (t) => {
  const { f, say } = await paced(t)
  const first = reading(f.runner.execute('acme', kept(), never))
  say('a', 'b', 'c')
  await until(() => first.lines.length === 4)
  let former = first
  for (const afterSeq of [0, 1, 2, 3, 4]) {
    const next = reading(f.runner.attach('acme', from(afterSeq), never))
    await until(() => next.lines.length >= 4 - afterSeq)
    await former.over
    assert.deepEqual(seqs(next.lines), [1, 2, 3, 4].slice(afterSeq))
    former = next
  }
  say('d', 'end')
  await former.over
  assert.deepEqual(types(former.lines), ['assistant', 'result'])
  assert.deepEqual(types(first.lines), ['progress', 'assistant', 'assistant', 'assistant'], 'it was told no end')
  // The run has ended, and a conductor that has not stored all of it attaches again.
  for (const afterSeq of [0, 3, 5, 6])
    assert.deepEqual(seqs(await attach(f, afterSeq)), [1, 2, 3, 4, 5, 6].slice(afterSeq))
})

test('a run whose reader leaves, or is lost, goes on and is read on; any other reason ends it', async (t) => {
  for (const how of [leaving, 'client_gone', 'return'] as const) {
    const { f, say } = await paced(t)
    const gone = new AbortController()
    const chunks = f.runner.execute('acme', kept(), gone.signal)
    await chunks[Symbol.asyncIterator]().next()
    say('a')
    await until(() => f.signals.length === 1)
    if (how === 'return') await chunks[Symbol.asyncIterator]().return!()
    else gone.abort(how)
    assert.deepEqual(await collect(chunks), [], 'it sees no end')
    say('b', 'end')
    assert.equal(f.signals[0]!.aborted, false)
    assert.deepEqual(seqs(await attach(f, 1)), [2, 3, 4])
  }
  for (const why of [undefined, 'whatever']) {
    const { f } = await paced(t)
    const gone = new AbortController()
    const lines = collect(f.runner.execute('acme', kept(), gone.signal))
    await until(() => f.signals.length === 1)
    gone.abort(why)
    assert.equal(codeOf(await lines), 'cancelled')
    assert.equal((await f.runner.getSession('acme', sessionId))!.status, 'idle')
  }
})

test('a run that its reader stops for a reason by which runs fail ends with that reason, and leaves its session errored', async (t) => {
  for (const reason of failingStops) {
    for (const over of [run(), kept()]) {
      const f = await runnerOf(t, hang)
      const reader = new AbortController()
      const lines = collect(f.runner.execute('acme', over, reader.signal))
      await until(() => f.signals.length === 1)
      reader.abort(reason)
      assert.equal(codeOf(await lines), reason)
      assert.equal((await f.runner.getSession('acme', sessionId))!.status, 'errored')
    }
  }
})

test('a run that is left ends as cancelled when nobody came for it in its time, and its lines stay as long again', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const f = await runnerOf(t, hang)
  const gone = new AbortController()
  const lines = collect(f.runner.execute('acme', kept(), gone.signal))
  await until(() => f.signals.length === 1)
  gone.abort('client_gone')
  await lines
  t.mock.timers.tick(keepMs - 1)
  assert.equal(f.signals[0]!.aborted, false)
  t.mock.timers.tick(1)
  assert.equal(f.signals[0]!.aborted, true)
  assert.equal((await f.runner.getSession('acme', sessionId))!.status, 'idle')
  while ((await f.runner.info()).activeRuns! > 0) await turn()
  assert.equal(codeOf(await attach(f, 0)), 'cancelled')
  t.mock.timers.tick(keepMs)
  await assert.rejects(attach(f, 0), { code: 'unknown_run', status: 404 })
})

test('without a time to keep it a run ends with its reader, and nothing of it stays', async (t) => {
  const f = await runnerOf(t, hang)
  const gone = new AbortController()
  const lines = collect(f.runner.execute('acme', run(), gone.signal))
  await until(() => f.signals.length === 1)
  gone.abort(leaving)
  assert.equal(codeOf(await lines), 'cancelled')
  while ((await f.runner.info()).activeRuns! > 0) await turn()
  await assert.rejects(attach(f, 0), { code: 'unknown_run' })
})

test('another tenant, another run and an unknown session are an unknown run', async (t) => {
  const f = await runnerOf(t, answer)
  await collect(f.runner.execute('acme', kept(), never))
  const unknown = { code: 'unknown_run', status: 404 }
  await assert.rejects(collect(f.runner.attach('globex', from(0), never)), unknown)
  await assert.rejects(attach(f, 0, { runId: 'r2' }), unknown)
  await assert.rejects(attach(f, 0, { sessionId: 'other' }), unknown)
  // A conductor that starts the next run of the session has read the end of the former one.
  await collect(f.runner.execute('acme', kept({ runId: 'r2' }), never))
  await assert.rejects(attach(f, 0), unknown)
})

test('a reader of an older claim is refused, and so is its next run', async (t) => {
  const f = await runnerOf(t, hang)
  const first = reading(f.runner.execute('acme', kept({ epoch: 3 }), never))
  await until(() => first.lines.length === 2)
  await assert.rejects(attach(f, 0, { epoch: 2 }), { code: 'attempt_superseded', status: 409 })
  const second = reading(f.runner.attach('acme', from(0, { epoch: 5 }), never))
  await first.over
  await assert.rejects(attach(f, 0, { epoch: 3 }), { code: 'attempt_superseded' })
  await assert.rejects(execute(f, { runId: 'r2', epoch: 4 }), { code: 'attempt_superseded' })
  await assert.rejects(execute(f, { runId: 'r2', epoch: 5 }), { code: 'session_busy' })
  await assert.rejects(execute(f, { runId: 'r2' }), { code: 'session_busy' })
  f.runner.runs.cancel('acme', 'r1')
  await second.over
})

test('a run of a later claim takes the session, from a run with a reader and from one without', async (t) => {
  for (const left of [false, true]) {
    const f = await runnerOf(t, hang)
    const gone = new AbortController()
    const first = reading(f.runner.execute('acme', kept(), gone.signal))
    await until(() => first.lines.length === 2)
    if (left) gone.abort('client_gone')
    const second = reading(f.runner.execute('acme', kept({ runId: 'r2', epoch: 2 }), never))
    await first.over
    assert.equal(codeOf(first.lines), left ? undefined : 'cancelled')
    await until(() => second.lines.length === 2)
    assert.equal(f.sessions.get(sessionId)!.activeRunId, 'r2')
    await assert.rejects(attach(f, 0), { code: 'unknown_run' })
    f.runner.runs.cancel('acme', 'r2')
    await second.over
    assert.equal(codeOf(second.lines), 'cancelled')
  }
})

test('a run that nobody reads is cancelled like any other', async (t) => {
  const f = await runnerOf(t, hang)
  const gone = new AbortController()
  const lines = collect(f.runner.execute('acme', kept(), gone.signal))
  await until(() => f.signals.length === 1)
  gone.abort(leaving)
  await lines
  f.runner.runs.cancel('acme', 'r1')
  assert.equal(f.signals[0]!.aborted, true)
  assert.equal(codeOf(await attach(f, 0)), 'cancelled')
})

test('what was read is kept up to its bound and then is a gap; what was not read stops the sidecar', async (t) => {
  let sent = 0
  const f = await runnerOf(t, async function* (_envelope, events) {
    for (; sent < 1_000; sent++) yield events.line({ type: 'assistant', text: 'x'.repeat(1_000), delta: true })
    yield events.line({ type: 'result', text: '', finishReason: 'stop' })
  })
  const gone = new AbortController()
  const chunks = f.runner.execute('acme', kept(), gone.signal)[Symbol.asyncIterator]()
  let read = 0
  for (let bytes = 0; bytes < 600_000;) {
    const { value } = await chunks.next()
    bytes += value!.length
    read += [...linesOf(value!)].length
  }
  gone.abort('client_gone')
  await until(() => sent > read + 150)
  for (let i = 0; i < 100; i++) await turn()
  const unread = sent - read
  assert.ok(unread < 256, `${unread} lines wait for a reader`)
  await assert.rejects(attach(f, 0), { code: 'run_gap', status: 410 })
  await assert.rejects(attach(f, read + 2_000), { code: 'run_gap' })
  await assert.rejects(attach(f, read - 280), { code: 'run_gap' })
  const rest = await attach(f, read - 200)
  assert.deepEqual(
    seqs(rest),
    Array.from({ length: 1_002 - (read - 200) }, (_, i) => read - 200 + 1 + i),
  )
})

test('a stopping runner waits for the end of a run that nobody reads, and until somebody has it', async (t) => {
  const { f, say } = await paced(t, { drain: '15s' })
  const gone = new AbortController()
  const lines = collect(
    f.runner.execute('acme', kept({ create: { profile: profile('p', [], 'general') } }), gone.signal),
  )
  await until(() => f.signals.length === 1)
  gone.abort(leaving)
  await lines
  let stopped = false
  const over = f.stop().then(() => (stopped = true))
  for (let i = 0; i < 20; i++) await turn()
  say('end')
  while ((await f.runner.info()).activeRuns! > 0) await turn()
  await sleep(50)
  assert.equal(stopped, false, 'nobody has its end')
  assert.equal(types(await attach(f, 0)).at(-1), 'result')
  await over
})
