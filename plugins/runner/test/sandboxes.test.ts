import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AppError } from '#kernel'
import { createEventEncoder } from '#contracts/run-event'
import type { WorkerLease } from '#contracts/leases'
import type { RunnerSession } from '#contracts/runner'
import type { UsageEvent } from '#contracts/run-event'
import type { MeasuredCalls, SandboxOrder, SandboxWorkers } from '#contracts/workers'
import { testProfile } from '#testing'
import { Relay } from '../relay.ts'
import { answer, codeOf, execute, run, runnerOf, types, until } from './fixtures.ts'

const profile = testProfile('p', { workerMode: 'sandbox', tools: ['calculate'] })
const toolsOnly = testProfile('p', { tools: ['calculate'], sandbox: { provider: 'box' } })

/** Sandboxes that record what they are asked, and answer each run. */
function sandboxes() {
  const calls: string[] = []
  const over = { count: 0 }
  const pace: {
    prepare?: Promise<unknown>
    failure?: Error
    nothing?: true
    says?: readonly string[]
    /** Measures the model calls. */
    calls?: MeasuredCalls
    /** The worker fails so, behind what it says. */
    refuses?: Error
    orders: SandboxOrder[]
  } = { orders: [] }
  const envelopes: { firstSeq: number; timeoutMs: number }[] = []
  const lease: WorkerLease = { sessionId: run().sessionId, state: 'paused' }
  const workers: SandboxWorkers = {
    substrates: ['box', 'vm'],
    defaultSubstrate: 'box',
    async prepare(session, order) {
      const { resume } = order
      pace.orders.push(order)
      calls.push(`prepare ${session.id}${resume ? ', resuming' : ''}`)
      await pace.prepare
      if (pace.failure) throw pace.failure
      if (pace.nothing) return undefined
      return {
        event: { type: 'progress', stage: 'sandbox', provider: 'box', start: 'launched', startMs: 7, idleSeconds: 3 },
        over: () => void over.count++,
        ...(pace.calls ? { calls: pace.calls } : {}),
      }
    },
    link: (session: RunnerSession) => ({
      async health() {
        calls.push('health')
        return { ok: true, runtime: 'general', runtimes: ['general'], instance: 'box-1', inflight: 0 }
      },
      async *run(envelope) {
        calls.push(`run ${session.id}`)
        envelopes.push(envelope)
        const events = createEventEncoder(envelope.runId, envelope.sessionId, envelope.firstSeq)
        for (const line of pace.says ?? []) yield Buffer.from(`${line}\n`)
        if (pace.refuses) throw pace.refuses
        yield Buffer.from(events.line({ type: 'result', text: 'done', finishReason: 'stop' }))
      },
      exportState: async () => ({ bytes: Buffer.from('state'), contentType: 'application/json' }),
      hydrate: async (_runtime, id) => void calls.push(`hydrate ${id}`),
      forget: async (_runtime, id) => void calls.push(`forget ${id}`),
    }),
    async callTool(session, name, input, { timeoutMs }) {
      return { ok: true, content: JSON.stringify([session.id, name, input, timeoutMs]) }
    },
    settleFiles: async () => undefined,
    has: () => false,
    countIn() {},
    usage: () => ({ sandboxes: 2, workspaceBytes: 7 }),
    leases: async (tenantId) => (tenantId === 'globex' ? [] : [lease]),
    lease: async (tenantId, id) => (tenantId === 'acme' && id === lease.sessionId ? lease : undefined),
    release: async ({ id }) => void calls.push(`release ${id}`),
    invalidate: (provider, id) => (provider === 'box' && id === 'box-1' ? 1 : 0),
    sawProfile: (tenantId, name, seen) => void calls.push(`${seen ? 'saw' : 'lost'} ${tenantId}/${name}`),
  }
  return { workers, calls, over, pace, envelopes }
}
const id = run().sessionId

const usageOf = (inputTokens: number): UsageEvent => ({
  type: 'usage',
  inputTokens,
  outputTokens: 1,
  model: 'openai/m',
})
/** Calls of which so many were under way when the run ended. */
const endingWith = (...left: readonly UsageEvent[]): MeasuredCalls => {
  const rest = [left]
  return { end: () => rest.pop() ?? [] }
}
const tokens = (lines: readonly Record<string, unknown>[]): unknown[] =>
  lines.filter(({ type }) => type === 'usage').map(({ inputTokens, costCents }) => [inputTokens, costCents])

test('what was measured of the model calls of a worker is the usage of its run, and its own word is left out', async (t) => {
  const { workers, pace } = sandboxes()
  const f = await runnerOf(t, answer, {}, workers)
  const lie = JSON.stringify({ type: 'usage', inputTokens: 1, outputTokens: 0, model: 'builtin/free', costCents: 0 })
  const delta = '{"type":"assistant","text":"a","delta":true}'
  pace.says = [lie, delta, lie]
  pace.calls = endingWith(usageOf(500), usageOf(600))
  const budget = { cents: 5, price: { inputCentsPerMillion: 1, outputCentsPerMillion: 2 } }
  const lines = await execute(f, { create: { profile }, budget })
  assert.deepEqual(types(lines), ['progress', 'progress', 'assistant', 'usage', 'usage', 'result'])
  assert.deepEqual(
    lines.map(({ seq }) => seq),
    [1, 2, 3, 4, 5, 6],
  )
  assert.deepEqual(tokens(lines), [
    [500, undefined],
    [600, undefined],
  ])
  assert.deepEqual(pace.orders[0]!.budget, budget)
  // A worker whose model calls do not come by here is the only one who knows.
  delete pace.calls
  assert.deepEqual(tokens(await execute(f, { runId: 'r2' })), [
    [1, 0],
    [1, 0],
  ])
})

test('a run that is ended from outside ends with what its calls under way had used', async (t) => {
  const { workers, pace } = sandboxes()
  const f = await runnerOf(t, answer, {}, workers)
  const link = workers.link
  workers.link = (session) => ({
    ...link(session),
    async *run(_envelope, signal) {
      pace.orders[0]!.onUsage(usageOf(1))
      yield Buffer.from('{"type":"assistant","text":"a","delta":true}\n')
      f.runner.runs.cancel('acme', 'r1')
      await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }))
    },
  })
  pace.calls = endingWith(usageOf(2))
  const lines = await execute(f, { create: { profile } })
  assert.deepEqual(types(lines), ['progress', 'progress', 'usage', 'assistant', 'usage', 'error'])
  assert.equal(codeOf(lines), 'cancelled')
})

test('a worker that has called a model cannot have its run begun anew as if it had not', async (t) => {
  const { workers, pace } = sandboxes()
  const f = await runnerOf(t, answer, {}, workers)
  await execute(f, { create: { profile } })
  pace.refuses = new AppError('session_state_missing', 409)
  pace.calls = endingWith(usageOf(3))
  const lines = await execute(f, { runId: 'r2' })
  assert.deepEqual([tokens(lines), codeOf(lines)], [[[3, undefined]], 'session_state_missing'])
})

test('a worker that names another of its lines names it behind a line of usage that was left out', () => {
  const relay = new Relay('r1', id, 1, true)
  relay.measuredBy({ end: () => [] })
  const said = [
    { type: 'assistant', text: 'before', delta: true },
    { type: 'usage', inputTokens: 1, outputTokens: 1, model: 'm' },
    { type: 'assistant', text: 'cut', delta: true },
    { type: 'progress', stage: 'retrying', supersedes: 3 },
  ]
  const passed = said
    .map((event) => relay.pass(Buffer.from(`${JSON.stringify(event)}\n`)).toString())
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Record<string, unknown>)
  assert.deepEqual(
    passed.map(({ seq, type, supersedes }) => [seq, type, supersedes]),
    [
      [1, 'assistant', undefined],
      [2, 'assistant', undefined],
      [3, 'progress', 2],
    ],
  )
})

test('a run of a sandbox profile goes to its sandbox, and its readers hear of the sandbox first', async (t) => {
  const { workers, calls, over, envelopes } = sandboxes()
  const f = await runnerOf(t, answer, {}, workers)
  const lines = await execute(f, { create: { profile } })
  assert.deepEqual(
    lines.map(({ type, stage, seq }) => [type, stage, seq]),
    [
      ['progress', 'runner_accepted', 1],
      ['progress', 'sandbox', 2],
      ['result', undefined, 3],
    ],
  )
  assert.deepEqual([lines[1]!['start'], lines[1]!['startMs'], lines[1]!['idleSeconds']], ['launched', 7, 3])
  assert.deepEqual([calls, over.count, f.envelopes.length], [[`prepare ${id}`, `run ${id}`], 1, 0])
  assert.ok(envelopes[0]!.firstSeq === 3 && envelopes[0]!.timeoutMs <= 60_000)
  await execute(f, { runId: 'r2' })
  assert.equal(calls[2], `prepare ${id}, resuming`)
})

test('the accepted line does not wait for the sandbox of a new session', async (t) => {
  const { workers, pace } = sandboxes()
  const f = await runnerOf(t, answer, {}, workers)
  const { promise, resolve } = Promise.withResolvers<void>()
  pace.prepare = promise
  const chunks = f.runner.execute('acme', run({ create: { profile } }), new AbortController().signal)
  assert.match(String((await chunks[Symbol.asyncIterator]().next()).value), /runner_accepted/)
  resolve()
  assert.deepEqual((await Array.fromAsync(chunks)).length, 2)
})

test('a sandbox that does not start ends the run with its error, and the session may run again', async (t) => {
  const { workers, pace, over } = sandboxes()
  const f = await runnerOf(t, answer, {}, workers)
  pace.failure = new AppError('worker_token_unavailable', 503, { message: 'Set the key.' })
  const lines = await execute(f, { create: { profile } })
  assert.deepEqual(types(lines), ['progress', 'error'])
  assert.deepEqual(
    [codeOf(lines), lines.at(-1)!['message'], over.count],
    ['worker_token_unavailable', 'Set the key.', 0],
  )
  delete pace.failure
  assert.equal((await execute(f, { runId: 'r2' })).at(-1)!['type'], 'result')
})

test('a conversation that is nowhere here is brought by the conductor', async (t) => {
  const { workers, pace, calls } = sandboxes()
  const f = await runnerOf(t, answer, {}, workers)
  await execute(f, { create: { profile } })
  pace.failure = new AppError('session_state_missing', 409)
  const { create: _, ...again } = run({ runId: 'r2' })
  const stream = f.runner.execute('acme', again, new AbortController().signal)
  await assert.rejects(Array.fromAsync(stream), { code: 'unknown_session' })
  await until(() => calls.includes(`release ${id}`))
  delete pace.failure
  const bundle = { bytes: Buffer.from('newest'), contentType: 'application/json' }
  await f.runner.hydrate('acme', id, profile, bundle)
  assert.equal(calls.at(-1), `hydrate ${id}`)
  assert.equal(String((await f.runner.exportState('acme', id))?.bytes), 'state')
})

test('a run that is cancelled while its sandbox starts ends at once, and the sandbox is let go when it is there', async (t) => {
  const { workers, pace, over, calls } = sandboxes()
  const f = await runnerOf(t, answer, {}, workers)
  const { promise, resolve } = Promise.withResolvers<void>()
  pace.prepare = promise
  const lines = execute(f, { create: { profile } })
  await until(() => calls.length === 1)
  f.runner.runs.cancel('acme', 'r1')
  assert.equal(codeOf(await lines), 'cancelled')
  assert.equal(over.count, 0)
  resolve()
  await until(() => over.count === 1)
  assert.deepEqual(calls, [`prepare ${id}`], 'nothing was sent to it')
})

test('a runner without sandboxes ends the run of a sandbox profile by its name, and offers none', async (t) => {
  const f = await runnerOf(t, answer)
  const lines = await execute(f, { create: { profile } })
  assert.deepEqual([codeOf(lines), lines.at(-1)!['message']], ['no_sandbox_substrate', 'This runner has no sandboxes.'])
  const info = await f.runner.info()
  assert.deepEqual([info.substrates, info.substratesKnown, 'defaultSubstrate' in info], [[], true, false])
  assert.deepEqual((await f.call('GET', '/runner/worker/leases', { tenant: '' })).json(), [])
  assert.equal(await f.runner.invalidateSandbox('box', 'box-1'), 0)
})

test('substrates, leases and events of substrates are those of the sandboxes', async (t) => {
  const { workers, calls } = sandboxes()
  const f = await runnerOf(t, answer, {}, workers)
  const { substrates, defaultSubstrate } = await f.runner.info()
  assert.deepEqual([substrates, defaultSubstrate], [['box', 'vm'], 'box'])
  assert.equal((await f.runner.workerLeases('acme')).length, 1)
  assert.equal((await f.runner.workerLeases('globex')).length, 0)
  assert.equal((await f.runner.workerLease('acme', id))?.state, 'paused')
  assert.equal(await f.runner.invalidateSandbox('box', 'box-1'), 1)
  f.runner.broadcast.putProfile('acme', profile)
  f.runner.broadcast.putProfile('acme', { ...profile, updatedAt: '2025-01-01T00:00:00.000Z' })
  f.runner.broadcast.deleteProfile('acme', 'p')
  f.runner.broadcast.deleteProfile('acme', 'p')
  assert.deepEqual(calls, ['saw acme/p', 'lost acme/p', 'lost acme/p'], 'an older version changes nothing')
  await execute(f, { create: { profile } })
  assert.deepEqual((await f.call('GET', `/runner/sessions/${id}/health`)).json(), { healthy: true })
  assert.equal(calls.at(-1), 'health')
})

test('a session that is deleted or evicted gives up its sandbox, one for tools as well', async (t) => {
  const { workers, calls } = sandboxes()
  const f = await runnerOf(t, answer, { maxSessions: 1 }, workers)
  await execute(f, { create: { profile } })
  await f.runner.deleteSession('acme', id)
  await until(() => calls.includes(`release ${id}`))
  assert.deepEqual(f.forgotten, [], 'no sidecar knew it')
  await f.runner.hydrate('acme', 'b', toolsOnly)
  await f.runner.hydrate('acme', 'c', toolsOnly)
  await until(() => calls.includes('release b') && f.forgotten.includes('b'))
})

test('a static session with a sandbox for its tools runs on its sidecar, and says when the sandbox was awake', async (t) => {
  const { workers, pace, over } = sandboxes()
  const f = await runnerOf(t, answer, {}, workers)
  assert.deepEqual(
    (await execute(f, { create: { profile: toolsOnly } })).map(({ stage, type }) => stage ?? type),
    ['runner_accepted', 'sandbox', 'assistant', 'result'],
  )
  assert.deepEqual([f.envelopes[0]!.firstSeq, over.count], [3, 1])
  pace.nothing = true
  assert.deepEqual(
    (await execute(f, { runId: 'r2' })).map(({ stage, type }) => stage ?? type),
    ['runner_accepted', 'assistant', 'result'],
  )
  assert.equal(over.count, 1)
})

test('tools are given the sandbox of their session, if its profile has one', async (t) => {
  const { workers } = sandboxes()
  const f = await runnerOf(t, answer, {}, workers)
  const { signal } = new AbortController()
  for (const [sessionId, one] of [
    ['a', profile],
    ['b', toolsOnly],
    ['c', testProfile('p', { tools: ['calculate'] })],
  ] as const) {
    await f.runner.hydrate('acme', sessionId, one)
    await f.sessions.invokeTool(f.sessions.get(sessionId)!, 'calculate', {}, signal)
  }
  const [a, b, c] = f.invoked.map(({ context }) => context.sandbox)
  assert.equal((await a!.call('shell', { x: 1 }, 500)).content, JSON.stringify(['a', 'shell', { x: 1 }, 500]))
  assert.equal((await b!.call('shell', {}, 5)).ok, true)
  assert.equal(c, undefined)
})

test('whatever a worker writes, the lines that go on are events of its run, one a line, in their order', async (t) => {
  const { workers, pace } = sandboxes()
  const f = await runnerOf(t, answer, {}, workers)
  const stamp = (of: object) => JSON.stringify({ runId: 'r1', sessionId: id, seq: 3, at: '1', ...of }).slice(1, -1)
  const delta = (of: object, text = '"a"') => `{"type":"assistant",${stamp(of)},"text":${text},"delta":true}`
  await execute(f, { runId: 'r0', create: { profile } })
  // A check of both ends alone would let these pass; the last one would end a line, and so an event, for the reader of a stream.
  for (const [i, text] of ['a', '1', '"a\rdata: {}\r\r"'].entries()) {
    const runId = `broken-${i}`
    pace.says = [delta({ runId }), delta({ runId, seq: 4 }, text)]
    const lines = await execute(f, { runId })
    assert.deepEqual([types(lines).slice(2), codeOf(lines)], [['assistant', 'error'], 'bad_event'], text)
  }
  // A line that names another run or another `seq` is stamped as this run's next one.
  const foreign = { runId: 'other', sessionId: 'sess-other', seq: 77 }
  pace.says = [delta({}), delta(foreign), `{"type":"progress",${stamp(foreign)},"stage":"s"}`]
  const lines = await execute(f, { runId: 'r1' })
  assert.deepEqual(
    lines.map(({ type, runId, sessionId, seq }) => [type, runId, sessionId, seq]),
    ['progress', 'progress', 'assistant', 'assistant', 'progress', 'result'].map((type, i) => [type, 'r1', id, i + 1]),
  )
  // Of two `type` fields the one that parsers see counts: nothing follows a result.
  pace.says = [
    `{"type":"progress",${stamp({ runId: 'two' })},"stage":"s","type":"result","text":"x","finishReason":"stop"}`,
  ]
  assert.deepEqual(types(await execute(f, { runId: 'two' })), ['progress', 'progress', 'result'])
})

test("a worker's line that names another by its stamp still names it behind what a tool reported", () => {
  const relay = new Relay('r1', id, 1, true)
  const events = createEventEncoder('r1', id, 1)
  const passed = [
    relay.pass(Buffer.from(events.line({ type: 'assistant', text: 'before', delta: true }))),
    relay.insert({ type: 'progress', stage: 'tool' }),
    relay.pass(Buffer.from(events.line({ type: 'assistant', text: 'again', delta: true }))),
    relay.pass(Buffer.from(events.line({ type: 'progress', stage: 'repeated', supersedes: 2 }))),
  ].map((line) => JSON.parse(line.toString()) as Record<string, unknown>)
  assert.deepEqual(
    passed.map(({ seq, supersedes }) => [seq, supersedes]),
    [
      [1, undefined],
      [2, undefined],
      [3, undefined],
      [4, 3],
    ],
  )
})
