import assert from 'node:assert/strict'
import { test } from 'node:test'
import { maxLineBytes } from '#kernel'
import { Relay } from '../relay.ts'
import { answer, codeOf, consecutive, execute, run, runnerOf, types } from './fixtures.ts'

test('stamped chunks go on as the very bytes they came in', async (t) => {
  const sent: Buffer[] = []
  const f = await runnerOf(t, async function* (_envelope, events) {
    for (const text of ['a', 'b']) {
      sent.push(Buffer.from(events.line({ type: 'assistant', text, delta: true })))
      yield sent.at(-1)!
    }
    sent.push(Buffer.from(events.line({ type: 'result', text: 'ab', finishReason: 'stop' })))
    yield sent.at(-1)!
  })
  const got: Buffer[] = []
  for await (const chunk of f.runner.execute('acme', run(), new AbortController().signal)) got.push(chunk)
  assert.deepEqual(Buffer.concat(got.slice(1)), Buffer.concat(sent))
})

const bad: Record<string, string> = {
  'text that is no JSON': 'not json\n',
  'JSON that is no event': '{"type":"surprise"}\n',
  'an event without its stamp': '{"type":"usage","inputTokens":1,"outputTokens":1,"model":"m"}\n',
  'a torn delta': '{"type":"assistant","runId":"r1","sessionId":"s","seq":3,"at":"x","text":"a\n',
  'an empty line': '\n',
}
for (const [name, line] of Object.entries(bad)) {
  test(`${name} in a stamped stream ends the run as bad_event and aborts the sidecar`, async (t) => {
    const f = await runnerOf(t, async function* (_envelope, events, signal) {
      yield events.line({ type: 'assistant', text: 'a', delta: true }) + line
      if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve))
    })
    const lines = await execute(f)
    assert.deepEqual(types(lines), ['progress', 'assistant', 'error'])
    assert.equal(codeOf(lines), 'bad_event')
    consecutive(lines)
    assert.equal(f.signals[0]!.aborted, true)
  })
}

test('an oversized line ends the run as bad_event', async (t) => {
  const f = await runnerOf(t, async function* (_envelope, events) {
    yield events.line({ type: 'assistant', text: 'x'.repeat(maxLineBytes), delta: true })
  })
  const lines = await execute(f)
  assert.equal(codeOf(lines), 'bad_event')
  consecutive(lines)
})

test('a line of a worker has a bounded number of values and names; text of any length is one', () => {
  const passed = (event: object, distrusted: boolean): unknown => {
    const relay = new Relay('r1', 's1', 1, distrusted)
    const lines = relay.pass(Buffer.from(`${JSON.stringify(event)}\n`)).toString()
    return (JSON.parse(lines) as { code?: unknown }).code
  }
  const call = { type: 'tool_call', id: '1', name: 'look' }
  const many = Array.from({ length: 50_000 }, () => 0)
  assert.equal(passed({ ...call, arguments: many }, true), 'bad_event')
  assert.equal(passed({ ...call, arguments: many }, false), undefined, 'a sidecar of the operator')
  assert.equal(passed({ ...call, arguments: many.slice(100) }, true), undefined)
  assert.equal(passed({ ...call, arguments: '[,'.repeat(100_000) }, true), undefined)
})

test('what a sidecar sends after its terminal line is dropped', async (t) => {
  const f = await runnerOf(t, async function* (envelope, events, signal) {
    yield* answer(envelope, events, signal)
    yield events.line({ type: 'result', text: 'again', finishReason: 'stop' })
  })
  const merged = await runnerOf(t, async function* (_envelope, events) {
    yield (
      events.line({ type: 'result', text: '1', finishReason: 'stop' }) +
      events.line({ type: 'error', code: 'x', message: 'y' })
    )
  })
  for (const fixture of [f, merged]) {
    const lines = await execute(fixture)
    assert.equal(lines.at(-1)!['type'], 'result')
    consecutive(lines)
  }
})

test('lines of a sidecar that does not stamp are parsed, completed and stamped', async (t) => {
  const f = await runnerOf(t, async function* () {
    yield '{"type":"session_init","runtimeSessionId":"v-1","extra":[1]}\n\n{"text":"hé","type":"assistant"}\n'
    yield '{"type":"tool_call","id":"t","name":"calculate","seq":99,"runId":"forged"}\r\n{"type":"result","text":"hé"}\n'
  })
  const lines = await execute(f)
  assert.deepEqual(types(lines), ['progress', 'session_init', 'assistant', 'tool_call', 'result'])
  consecutive(lines)
  assert.ok(lines.every((line) => line['runId'] === 'r1' && line['sessionId'] === run().sessionId))
  assert.deepEqual(lines[1]!['extra'], [1])
  assert.deepEqual([lines[2]!['text'], lines[2]!['delta']], ['hé', true])
  assert.equal(lines[4]!['finishReason'], 'stop')
  assert.equal((await f.runner.getSession('acme', run().sessionId))!.runtimeSessionId, 'v-1')
})

test("such a sidecar's result without text is what the run has said", async (t) => {
  const said = await execute(
    await runnerOf(t, async function* () {
      yield '{"type":"assistant","text":"hello "}\n'
      yield '{"type":"assistant","text":"world"}\n{"type":"result"}\n'
    }),
  )
  assert.equal(said.at(-1)!['text'], 'hello world')
  const own = await execute(
    await runnerOf(t, async function* () {
      yield '{"type":"assistant","text":"draft"}\n{"type":"result","text":""}\n'
    }),
  )
  assert.equal(own.at(-1)!['text'], '')
})

test('an answer put together from deltas always fits into one line', async (t) => {
  const delta = JSON.stringify({ type: 'assistant', text: '\u0001'.repeat(200_000) })
  const f = await runnerOf(t, async function* () {
    for (let i = 0; i < 6; i++) yield `${delta}\n`
    yield '{"type":"result"}\n'
  })
  const result = (await execute(f)).at(-1)!
  assert.equal(result['type'], 'result')
  assert.ok(Buffer.byteLength(JSON.stringify(result)) <= 4 * 1024 * 1024)
})

test('a line of such a sidecar that is no event ends the run as bad_event', async (t) => {
  const deep = `{"type":"tool_call","id":"t","name":"n","arguments":${'['.repeat(200_000)}${']'.repeat(200_000)}}\n`
  for (const line of ['hello\n', '{"type":"assistant","text":7}\n', '[]\n', deep]) {
    const f = await runnerOf(t, async function* () {
      yield `{"type":"assistant","text":"a"}\n${line}`
    })
    const lines = await execute(f)
    assert.deepEqual(types(lines), ['progress', 'assistant', 'error'], line.slice(0, 40))
    assert.equal(codeOf(lines), 'bad_event')
    consecutive(lines)
  }
})

test("session_init keeps the vendor's handle for the session's next run", async (t) => {
  const f = await runnerOf(t, async function* (_envelope, events) {
    yield events.line({ type: 'session_init', runtimeSessionId: 'vendor-9' })
    yield events.line({ type: 'result', text: '', finishReason: 'stop' })
  })
  await execute(f)
  await execute(f, { runId: 'r2' })
  assert.equal(f.envelopes[0]!.runtimeSessionId, undefined)
  assert.equal(f.envelopes[1]!.runtimeSessionId, 'vendor-9')
})
