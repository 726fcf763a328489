import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { RuntimeEvent } from '#contracts/run-event'
import { collect, execute, profile, run, runnerOf, types, until } from './fixtures.ts'

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
  for await (const chunk of f.core.execute(
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
