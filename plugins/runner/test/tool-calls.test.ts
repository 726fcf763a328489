import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Replay } from '#contracts/replay'
import type { RuntimeEvent } from '#contracts/run-event'
import type { RunnerSession } from '#contracts/runner'
import type { Toolkit } from '#contracts/tools'
import { Ahead } from '#kit'
import { createToolCalls, type Ledger, Ledgers } from '../tool-calls.ts'
import { codeOf, collect, execute, hang, profile, run, runnerOf, type Script, types, until } from './fixtures.ts'

const session = { tenantId: 'acme', id: 's' }
const replayed = (id: string, name: string, args: unknown, content: string): Replay => [
  { type: 'tool_call', id, name, arguments: args },
  { type: 'tool_result', id, name, ok: true, content },
]

/** Calls `name`; resolves to the answer, with a `*` when the tool was executed. */
const asker = () => {
  let executed = 0
  const ask = async (ledger: Ledger | undefined, name: string, id?: string, input: unknown = {}, finished = true) => {
    const before = executed
    const { content } = await ledger!.call(name, input, id, async () => ({
      result: { ok: true, content: `${name} ${++executed}` },
      finished,
    }))
    return executed > before ? `*${content}` : content
  }
  return ask
}

test('a runtime that does the turn again gets each recorded result once, in order, whoever recorded it', async () => {
  const ask = asker()
  const ledgers = new Ledgers()
  const first = ledgers.open(session, { runId: 'r' })
  assert.deepEqual([await ask(first, 'a'), await ask(first, 'a'), await ask(first, 'b')], ['*a 1', '*a 2', '*b 3'])
  // The conductor knew of the first call only; the runner knows all three.
  const second = ledgers.open(session, { runId: 'r', attempt: 2, replay: replayed('1', 'a', {}, 'a 1') })
  assert.deepEqual([await ask(second, 'a'), await ask(second, 'a'), await ask(second, 'a')], ['a 1', 'a 2', '*a 4'])
  assert.equal(await ask(second, 'b'), 'b 3')
  // Another runner knows only what it is sent.
  const replay = replayed('1', 'a', { x: 1, y: [{ z: 1, w: 2 }] }, 'sent')
  const elsewhere = new Ledgers().open(session, { runId: 'r', attempt: 3, replay })
  assert.equal(await ask(elsewhere, 'a', undefined, { y: [{ w: 2, z: 1 }], x: 1 }), 'sent')
  assert.match(await ask(elsewhere, 'a', undefined, { x: 1 }), /^\*/)
})

test('a runtime that goes on behind the replay may make a finished call again, and gets only what was not replayed', async () => {
  const ask = asker()
  const ledgers = new Ledgers()
  const first = ledgers.open(session, { runId: 'r' })
  await ask(first, 'clock', '1')
  await ask(first, 'pay', '2')
  const replay = replayed('1', 'clock', {}, 'clock 1')
  const second = ledgers.open(session, { runId: 'r', attempt: 2, replay })
  assert.equal(await ask(second, 'clock', '7'), '*clock 3', 'the model wants to know the time now')
  assert.equal(await ask(second, 'pay', '8'), 'pay 2', 'its result was never stored: the model asks under another id')
  assert.equal(await ask(second, 'pay', '9'), '*pay 4', 'it answers once')
  const third = ledgers.open(session, { runId: 'r', attempt: 3, replay })
  assert.equal(await ask(third, 'pay', '10'), 'pay 2', 'the second attempt died before it was stored')
})

test('a call whose end is not known is executed again, and a call under way is joined', async () => {
  const ask = asker()
  const ledgers = new Ledgers()
  const first = ledgers.open(session, { runId: 'r' })!
  await ask(first, 'a', '1', {}, false)
  const slow = Promise.withResolvers<void>()
  let slowly = 0
  const work = async () => {
    slowly++
    await slow.promise
    return { result: { ok: true, content: 'at last' }, finished: true }
  }
  void first.call('slow', {}, '2', work)
  const second = ledgers.open(session, { runId: 'r', attempt: 2 })!
  assert.match(await ask(second, 'a', '1'), /^\*/)
  const joined = second.call('slow', {}, '2', work)
  slow.resolve()
  assert.equal((await joined).content, 'at last')
  assert.equal(slowly, 1)
})

test('another run begins an empty ledger, an attempt that was overtaken gets none, and ledgers are bounded', async () => {
  const ask = asker()
  const ledgers = new Ledgers(1_000)
  await ask(ledgers.open(session, { runId: 'r' }), 'a')
  assert.ok(ledgers.open(session, { runId: 'r', attempt: 3 }))
  assert.equal(ledgers.open(session, { runId: 'r', attempt: 2 }), undefined)
  assert.match(await ask(ledgers.open(session, { runId: 'next' }), 'a'), /^\*/)
  assert.match(await ask(ledgers.open({ ...session, tenantId: 'globex' }, { runId: 'r', attempt: 2 }), 'a'), /^\*/)
  const fill = ledgers.open({ ...session, id: 'big' }, { runId: 'r' })!
  await fill.call('big', {}, undefined, async () => ({
    result: { ok: true, content: 'x'.repeat(2_000) },
    finished: true,
  }))
  assert.equal(ledgers.of(session), undefined)
  assert.ok(ledgers.of({ ...session, id: 'big' }))
})

const retrying = { create: { profile: { ...profile('p', ['calculate']), onCrash: 'retry' as const } } }

test('a sidecar that died after a call gets its result again in the next attempt; the tool has one name for the call', async (t) => {
  const script: Script = async function* (envelope, events) {
    const held: RunnerSession = f.sessions.get(envelope.sessionId)!
    const { content } = await f.sessions.invokeTool(held, 'calculate', { n: 1 }, new AbortController().signal, 'c1')
    if (envelope.attempt === 2) yield events.line({ type: 'result', text: content, finishReason: 'stop' })
  }
  const f = await runnerOf(t, script)
  assert.equal(codeOf(await execute(f, retrying)), 'sidecar_lost')
  const lines = await execute(f, { ...retrying, attempt: 2, replay: [], firstSeq: 9 })
  assert.equal(lines.at(-1)!['text'], 'done')
  assert.deepEqual(
    f.invoked.map(({ name, context }) => [name, context.idempotencyKey]),
    [['calculate', 'r1:c1']],
  )
  assert.deepEqual([f.envelopes[1]!.attempt, f.envelopes[1]!.replay], [2, []])
})

test('the connection of a sidecar that dies under a call does not stop the call of a run that is tried again', async (t) => {
  const f = await runnerOf(t, hang)
  for (const [more, stopped] of [[retrying, false] as const, [{ sessionId: 'sess-2' }, true] as const]) {
    const leaving = new AbortController()
    const create = { profile: { ...profile('p', ['calculate']), ...('create' in more ? more.create.profile : {}) } }
    const reading = execute(f, { ...more, create }, leaving.signal)
    const id = run(more).sessionId
    await until(() => f.sessions.get(id)?.status === 'running')
    const connection = new AbortController()
    await f.sessions.invokeTool(f.sessions.get(id)!, 'calculate', {}, connection.signal)
    connection.abort()
    assert.equal(f.invoked.at(-1)!.context.signal.aborted, stopped)
    leaving.abort()
    await reading
  }
})

test(
  'a later attempt takes the session from one whose reader is frozen, and an earlier one is refused',
  { timeout: 20_000 },
  async (t) => {
    const f = await runnerOf(t, hang)
    const frozen = f.runner.execute('acme', run(retrying), new AbortController().signal)[Symbol.asyncIterator]()
    await frozen.next()
    await until(() => f.signals.length === 1)
    const leaving = new AbortController()
    const second = execute(f, { ...retrying, attempt: 2 }, leaving.signal)
    await until(() => f.signals.length === 2)
    assert.equal(f.signals[0]!.aborted, true)
    assert.equal(f.sessions.get(run().sessionId)!.activeRunId, 'r1')
    await assert.rejects(collect(f.runner.execute('acme', run(retrying), leaving.signal)), { code: 'session_busy' })
    leaving.abort()
    assert.equal(codeOf(await second), 'cancelled')
    await assert.rejects(execute(f, retrying), { code: 'attempt_superseded', status: 409 })
  },
)

test('a sidecar that dies under a call does not stop the call of a run that is tried again: the next attempt gets its result', async (t) => {
  const dies = Promise.withResolvers<void>()
  const f = await runnerOf(t, async function* (envelope, events) {
    const held = f.sessions.get(envelope.sessionId)!
    const call = f.sessions.invokeTool(held, 'calculate', { n: 1 }, new AbortController().signal, 'c1')
    if (envelope.attempt !== 2) return void (await dies.promise)
    yield events.line({ type: 'result', text: (await call).content, finishReason: 'stop' })
  })
  const first = execute(f, retrying)
  await until(() => f.invoked.length === 1)
  dies.resolve()
  assert.equal(codeOf(await first), 'sidecar_lost')
  assert.equal(f.invoked[0]!.context.signal.aborted, false)
  assert.equal((await execute(f, { ...retrying, attempt: 2 })).at(-1)!['text'], 'done')
  assert.equal(f.invoked.length, 1)
})

const said = (message: string): Extract<RuntimeEvent, { type: 'progress' }> => ({
  type: 'progress',
  stage: 'tool',
  message,
})

test('what a tool reports stands between the lines of the sidecar, and every stamp counts on', async (t) => {
  const told = Promise.withResolvers<void>()
  const f = await runnerOf(t, async function* (envelope, events) {
    yield events.line({ type: 'tool_call', id: 'c', name: 'calculate', arguments: {} })
    const session = f.sessions.get(envelope.sessionId)!
    await f.sessions.invokeTool(session, 'calculate', {}, new AbortController().signal)
    const { report } = f.invoked[0]!.context
    report!(said('one'))
    report!(said('two'))
    await told.promise
    yield (
      events.line({ type: 'tool_result', id: 'c', name: 'calculate', ok: true, content: 'done' }) +
      events.line({ type: 'assistant', text: 'x', delta: true })
    )
    yield events.line({ type: 'result', text: 'x', finishReason: 'stop' })
  })
  const lines = []
  for await (const chunk of f.runner.execute(
    'acme',
    run({ firstSeq: 5, create: { profile: profile('p', ['calculate']) } }),
    new AbortController().signal,
  )) {
    lines.push(...(await collect([chunk] as never)))
    if (lines.at(-1)!['message'] === 'two') told.resolve()
  }
  assert.deepEqual(types(lines), [
    'progress',
    'tool_call',
    'progress',
    'progress',
    'tool_result',
    'assistant',
    'result',
  ])
  assert.deepEqual(
    lines.map(({ seq }) => seq),
    [5, 6, 7, 8, 9, 10, 11],
  )
})

test('a line that names another by its stamp still names it', async (t) => {
  const f = await runnerOf(t, async function* (envelope, events) {
    yield events.line({ type: 'assistant', text: 'before', delta: true })
    const from = events.next
    const session = f.sessions.get(envelope.sessionId)!
    await f.sessions.invokeTool(session, 'calculate', {}, new AbortController().signal)
    f.invoked[0]!.context.report!(said('between'))
    yield events.line({ type: 'assistant', text: 'again', delta: true })
    yield events.line({ type: 'progress', stage: 'repeated', supersedes: from })
    yield events.line({ type: 'result', text: 'x', finishReason: 'stop' })
  })
  const lines = await execute(f, { create: { profile: profile('p', ['calculate']) } })
  assert.deepEqual(
    lines.map(({ seq }) => seq),
    lines.map((_, i) => i + 1),
  )
  const again = lines.find(({ text }) => text === 'again')!
  assert.equal(lines.find(({ stage }) => stage === 'repeated')!['supersedes'], again['seq'])
})

test('a sidecar whose stamps go wrong behind a report ends the run once', async (t) => {
  const f = await runnerOf(t, async function* (envelope, events) {
    yield events.line({ type: 'assistant', text: 'a', delta: true })
    const session = f.sessions.get(envelope.sessionId)!
    await f.sessions.invokeTool(session, 'calculate', {}, new AbortController().signal)
    f.invoked[0]!.context.report!(said('between'))
    yield events.line({ type: 'assistant', text: 'b', delta: true }).replace(/"seq":\d+/, '"seq":99')
    yield events.line({ type: 'result', text: 'x', finishReason: 'stop' })
  })
  const lines = await execute(f, { create: { profile: profile('p', ['calculate']) } })
  assert.equal(lines.at(-1)!['code'], 'bad_event')
  assert.equal(lines.filter(({ type }) => type === 'error' || type === 'result').length, 1)
})

test('a sidecar that does not stamp its lines may be reported between, and a report for a run that is over is dropped', async (t) => {
  let report: ((event: ReturnType<typeof said>) => void) | undefined
  const f = await runnerOf(t, async function* (envelope) {
    yield '{"type":"assistant","text":"a"}\n'
    const session = f.sessions.get(envelope.sessionId)!
    await f.sessions.invokeTool(session, 'calculate', {}, new AbortController().signal)
    report = f.invoked[0]!.context.report!
    report(said('between'))
    yield '{"type":"result","text":"a"}\n'
  })
  const lines = await execute(f, { create: { profile: profile('p', ['calculate']) } })
  assert.deepEqual(
    lines.map(({ seq }) => seq),
    lines.map((_, i) => i + 1),
  )
  assert.ok(lines.some(({ message }) => message === 'between'))
  report!(said('late'))
  await until(() => true)
})

test('the calls of a tenant take turns: some pass at once, and one that would wait for too long is refused', async () => {
  let looked: ((lateMs: number) => void) | undefined
  const toolkit = { specs: () => [], invoke: async () => ({ ok: true, content: 'done' }) } as unknown as Toolkit
  const call = createToolCalls(
    toolkit,
    { ledgers: new Ledgers(), of: () => undefined },
    { sandboxes: undefined, vfs: undefined },
    new Ahead({ start: (told) => void (looked = told), stop: () => {} }),
  )
  const outcomes = async (
    tenantId: string,
    limits: RunnerSession['limits'],
    count: number,
    signal = new AbortController().signal,
  ): Promise<number[]> => {
    const session = { id: 's', tenantId, tools: ['clock'], profile, limits } as unknown as RunnerSession
    const calls = Array.from({ length: count }, () => call(session, 'clock', {}, signal))
    const settled = await Promise.allSettled(calls)
    const refused = settled.filter(
      (one) => one.status === 'rejected' && (one.reason as { code: string }).code === 'limit_reached',
    )
    return [settled.filter((one) => one.status === 'fulfilled').length, refused.length]
  }
  assert.deepEqual(await outcomes('slow', { toolCallsPerMinute: 1 }, 23), [21, 2])
  assert.deepEqual(await outcomes('quick', { toolCallsPerMinute: 6_000 }, 23), [23, 0])
  assert.deepEqual(await outcomes('none', { toolCallsPerMinute: 0 }, 1), [0, 1])
  assert.deepEqual(await outcomes('any', undefined, 23), [23, 0])
  // This runner is short of time, and one tenant calls more tools than the others. Its run has ended, so nothing is waited for.
  for (let n = 0; n < 50; n++) {
    await outcomes('heavy', { toolCallsPerMinute: 1_000_000 }, 2, AbortSignal.abort())
    for (let look = 0; look < 10; look++) looked!(20)
  }
  assert.deepEqual(await outcomes('heavy', { toolCallsPerMinute: 600 }, 23, AbortSignal.abort()), [23, 0])
  assert.deepEqual(await outcomes('quick', { toolCallsPerMinute: 1_000_000 }, 900), [900, 0])
  const most = await outcomes('heavy', { toolCallsPerMinute: 30_000 }, 900, AbortSignal.abort())
  assert.ok(most[1]! > 300, `${most} of 900 were done and refused`)
})
