import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { AppError } from '#kernel'
import type { EventBatch, RunEvent, RuntimeEvent } from '#contracts/run-event'
import type { Runtime } from '#contracts/runtime'
import { collectRun, terminalOf, testEnvelope, textOf } from '#testing'
import { aborted, hostOf, never, result, says, scripted } from './support.ts'

const timeout = 20_000

async function eventsOf(
  t: TestContext,
  runtime: Runtime,
  signal?: AbortSignal,
  timeoutMs = 30_000,
): Promise<RunEvent[]> {
  const { link } = await hostOf(t, { general: runtime })
  return collectRun(link, testEnvelope({ timeoutMs, firstSeq: 5 }), signal)
}

const broken: Record<string, { runtime: Runtime; code: string; text?: string }> = {
  'stops without a terminal event': { runtime: scripted(() => [says('half')]), code: 'runtime_error', text: 'half' },
  throws: {
    runtime: scripted(function* () {
      yield says('half')
      throw new Error('secret text')
    }),
    code: 'runtime_error',
    text: 'half',
  },
  'throws before it yields': {
    runtime: {
      contract: 'runtime/1',
      run: () => {
        throw new Error('secret text')
      },
    },
    code: 'runtime_error',
  },
  'throws an AppError': {
    runtime: scripted(() => {
      throw new AppError('quota', 402, { message: 'Pay first.', retryable: true })
    }),
    code: 'quota',
  },
  'yields an event of no known type': { runtime: scripted(() => [{ type: 'joke' } as never]), code: 'runtime_error' },
  'yields null': { runtime: scripted(() => [null as never]), code: 'runtime_error' },
  'yields text that is none': {
    runtime: scripted(() => [{ type: 'assistant', text: 7, delta: true } as never]),
    code: 'runtime_error',
  },
  'yields a result without text': { runtime: scripted(() => [{ type: 'result' } as never]), code: 'runtime_error' },
  'yields an event of more than 4 MiB': {
    runtime: scripted(() => [says('ok'), says('ü'.repeat(3_000_000))]),
    code: 'runtime_error',
    text: 'ok',
  },
}

for (const [what, { runtime, code, text = '' }] of Object.entries(broken)) {
  test(`an adapter that ${what} still ends in exactly one error`, { timeout }, async (t) => {
    const events = await eventsOf(t, runtime)
    const terminal = terminalOf(events)
    assert.ok(terminal.type === 'error')
    assert.equal(terminal.code, code)
    assert.doesNotMatch(terminal.message, /secret/)
    assert.equal(textOf(events), text)
  })
}

const late: Record<string, () => Generator<RuntimeEvent>> = {
  'yields after its result': function* () {
    yield result('done')
    yield says('more')
    yield { type: 'error', code: 'late', message: 'late' }
  },
  'throws after its result': function* () {
    yield result('done')
    throw new Error('late')
  },
  'throws while it is put away': function* () {
    try {
      yield result('done')
    } finally {
      // oxlint-disable-next-line no-unsafe-finally
      throw new Error('late')
    }
  },
}
for (const [what, script] of Object.entries(late)) {
  test(`an adapter that ${what} has ended with that result`, { timeout }, async (t) => {
    const events = await eventsOf(t, scripted(script))
    assert.deepEqual(
      events.map(({ type, seq }) => [type, seq]),
      [['result', 5]],
    )
  })
}

test(
  'cancelling ends a run in cancelled, whatever the adapter still says; usage is still counted',
  { timeout },
  async (t) => {
    const abort = new AbortController()
    const runtime = scripted(async function* (_prompt, signal) {
      yield says('one')
      abort.abort()
      await aborted(signal)
      yield says('two')
      yield { type: 'usage', inputTokens: 1, outputTokens: 1, model: 'm' }
      yield result('one two')
    })
    const events = await eventsOf(t, runtime, abort.signal)
    assert.deepEqual(
      events.map((e) => (e.type === 'error' ? e.code : e.type)),
      ['assistant', 'usage', 'cancelled'],
    )
  },
)

test('a run that takes longer than timeoutMs ends in timeout', { timeout }, async (t) => {
  const runtime = scripted(async function* (_prompt, signal) {
    yield says('one')
    await aborted(signal)
  })
  const terminal = terminalOf(await eventsOf(t, runtime, undefined, 20))
  assert.ok(terminal.type === 'error')
  assert.equal(terminal.code, 'timeout')
})

test(
  'an adapter that ignores its signal is given up after a grace, and its session is free again',
  { timeout },
  async (t) => {
    const runtime = scripted(async function* (prompt) {
      yield says('one')
      if (prompt === 'stuck') await never()
      yield result('one')
    })
    const { link } = await hostOf(t, { general: runtime })
    const { sessionId } = testEnvelope()
    const stuck = await collectRun(link, testEnvelope({ sessionId, prompt: 'stuck', timeoutMs: 20 }))
    const terminal = terminalOf(stuck)
    assert.ok(terminal.type === 'error')
    assert.equal(terminal.code, 'timeout')
    assert.equal((await link.health()).inflight, 0)
    assert.equal(terminalOf(await collectRun(link, testEnvelope({ sessionId }))).type, 'result')
  },
)

test('an adapter that yields without end after it was cancelled does not stop the process', { timeout }, async (t) => {
  const abort = new AbortController()
  const runtime = scripted(async function* () {
    for (;;) {
      yield { type: 'usage', inputTokens: 1, outputTokens: 1, model: 'm' }
      abort.abort()
    }
  })
  const events = await eventsOf(t, runtime, abort.signal)
  assert.deepEqual(
    events.map((e) => (e.type === 'error' ? e.code : e.type)),
    ['usage', 'usage', 'cancelled'],
  )
})

test('a run is aborted when its reader leaves', { timeout }, async (t) => {
  const left = Promise.withResolvers<void>()
  const runtime = scripted(async function* (_prompt, signal) {
    yield says('one')
    await aborted(signal)
    left.resolve()
  })
  const { link } = await hostOf(t, { general: runtime })
  for await (const _ of link.run(testEnvelope(), new AbortController().signal)) break
  await left.promise
})

test('an adapter is not pulled while more than 256 KiB are unread', { timeout }, async (t) => {
  let pulled = 0
  const runtime = scripted(function* () {
    for (; pulled < 1_000; pulled++) yield says('x'.repeat(10_000))
    yield result('done')
  })
  const { link } = await hostOf(t, { general: runtime })
  const lines = link.run(testEnvelope(), new AbortController().signal)[Symbol.asyncIterator]()
  await lines.next()
  for (let i = 0; i < 1_000; i++) await new Promise((resolve) => setImmediate(resolve))
  assert.ok(pulled < 60, `pulled ${pulled} events that nobody read`)
  await lines.return!()
})

/** Yields in batches what the script says, however wrong that is. */
const batched = (script: (signal: AbortSignal) => AsyncIterable<EventBatch> | Iterable<EventBatch>): Runtime =>
  scripted(() => [], {
    async *batches(_envelope, signal) {
      yield* script(signal)
    },
  })

test('texts of a batch are events as others, each with its own stamp', { timeout }, async (t) => {
  const texts = ['one ', '"two"\n', '\ud83d', '\ude00', 'ü'.repeat(300_000), '']
  const events = await eventsOf(
    t,
    batched(() => [
      [{ type: 'progress', stage: 'x' }, texts, says('last')],
      [result('done'), ['late']],
    ]),
  )
  assert.deepEqual(
    events.map((event) => (event.type === 'assistant' ? event.text : event.type)),
    ['progress', ...texts, 'last', 'result'],
  )
  assert.deepEqual(
    events.map(({ seq }) => seq),
    events.map((_, i) => 5 + i),
  )
})

test('a text of a batch that is none, or too large, ends the run behind those before it', { timeout }, async (t) => {
  for (const wrong of [7 as never, 'ü'.repeat(3_000_000)]) {
    const events = await eventsOf(
      t,
      batched(() => [[['one', wrong, 'two']]]),
    )
    assert.equal(textOf(events), 'one')
    const terminal = terminalOf(events)
    assert.ok(terminal.type === 'error')
    assert.deepEqual([terminal.code, terminal.seq], ['runtime_error', 6])
  }
})

test('an adapter that waits for its reader goes on when it has to stop', { timeout }, async (t) => {
  const abort = new AbortController()
  const told = Promise.withResolvers<void>()
  const runtime = batched(async function* (signal) {
    try {
      for (;;) yield [['x'.repeat(100_000)]]
    } finally {
      if (signal.aborted) told.resolve()
    }
  })
  const { link } = await hostOf(t, { general: runtime })
  const lines = link.run(testEnvelope(), abort.signal)[Symbol.asyncIterator]()
  await lines.next()
  for (let i = 0; i < 100; i++) await new Promise((resolve) => setImmediate(resolve))
  abort.abort()
  await told.promise
  await lines.return!()
})

test(
  'a second run of a session that is running is refused with 409, and other sessions are not',
  { timeout },
  async (t) => {
    const go = Promise.withResolvers<void>()
    const runtime = scripted(async function* (prompt) {
      yield says('one')
      if (prompt === 'wait') await go.promise
      yield result('one')
    })
    const { link } = await hostOf(t, { general: runtime })
    const { sessionId } = testEnvelope()
    const first = collectRun(link, testEnvelope({ sessionId, prompt: 'wait' }))
    await assert.rejects(collectRun(link, testEnvelope({ sessionId })), { code: 'session_busy', status: 409 })
    assert.equal(terminalOf(await collectRun(link, testEnvelope())).type, 'result')
    go.resolve()
    assert.equal(terminalOf(await first).type, 'result')
    assert.equal(terminalOf(await collectRun(link, testEnvelope({ sessionId }))).type, 'result')
  },
)

test('the next run of a session starts after the former one has put its things away', { timeout }, async (t) => {
  const order: string[] = []
  const runtime = scripted(async function* (prompt) {
    order.push(`start ${prompt}`)
    try {
      yield result(prompt)
    } finally {
      await new Promise((resolve) => setImmediate(resolve))
      order.push(`end ${prompt}`)
    }
  })
  const { link } = await hostOf(t, { general: runtime })
  const { sessionId } = testEnvelope()
  for (const prompt of ['a', 'b']) await collectRun(link, testEnvelope({ sessionId, prompt }))
  assert.deepEqual(order.slice(0, 3), ['start a', 'end a', 'start b'])
})

test(
  'circular references in an event become [circular], and stamps of an adapter are not passed on',
  { timeout },
  async (t) => {
    const loop: Record<string, unknown> = {}
    loop['self'] = loop
    const call = { type: 'tool_call' as const, id: '1', name: 'x', arguments: loop, seq: 99, runId: 'other', big: 10n }
    const events = await eventsOf(
      t,
      scripted(() => [call, result('done')]),
    )
    const first = events[0]!
    assert.ok(first.type === 'tool_call')
    assert.deepEqual(first.arguments, { self: '[circular]' })
    assert.equal(first.seq, 5)
    assert.equal('big' in first && first.big, '10')
  },
)

test('stopping the kernel ends a run under way in interrupted', { timeout }, async (t) => {
  const runtime = scripted(async function* (_prompt, signal) {
    yield says('one')
    await aborted(signal)
  })
  const { link, kernel } = await hostOf(t, { general: runtime })
  let stopping: Promise<void> | undefined
  const events = await collectRun(link, testEnvelope(), undefined, () => (stopping ??= kernel.stop()))
  const terminal = terminalOf(events)
  assert.ok(terminal.type === 'error')
  assert.deepEqual([terminal.code, terminal.retryable], ['interrupted', true])
  await stopping
})

test('a run that resumes a conversation which is not here is refused before it streams', async (t) => {
  const held = new Set<string>()
  const runtime = scripted(() => [result('done')], { has: (sessionId) => held.has(sessionId) })
  const { link } = await hostOf(t, { general: runtime })
  const envelope = testEnvelope({ resume: true })
  await assert.rejects(collectRun(link, envelope), { code: 'session_state_missing', status: 409 })
  held.add(envelope.sessionId)
  const events = await collectRun(link, envelope)
  assert.deepEqual(
    events.map((event) => event.type),
    ['progress', 'result'],
  )
})

test('a runtime that cannot go on behind a replay says that it does the turn again; one that can does not', async (t) => {
  for (const replays of [true, undefined]) {
    const runtime = scripted(() => [result('done')], replays ? { replays } : {})
    const { link } = await hostOf(t, { general: runtime })
    const first = await collectRun(link, testEnvelope())
    const again = await collectRun(link, testEnvelope({ attempt: 2, replay: [] }))
    const said = (events: RunEvent[]) => events.flatMap((e) => (e.type === 'progress' ? [[e.stage, e.supersedes]] : []))
    assert.deepEqual(said(first), [])
    assert.deepEqual(said(again), replays ? [] : [['repeated', 1]])
  }
})
