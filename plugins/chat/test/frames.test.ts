import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { createEventEncoder, type LogChunk, type RuntimeEvent } from '#contracts/run-event'
import { encodeFrames, terminalEvent } from '../public-run.ts'
import { framesOf } from './gateway.ts'
import { finish, say } from './scripted-dispatch.ts'

const runId = 'run_1'
const framesIn = (frames: Buffer) => framesOf(frames.toString())

function chunk(events: readonly RuntimeEvent[], firstSeq = 1): LogChunk {
  const encoder = createEventEncoder(runId, 'sess-0a1b2c3d-00000000', firstSeq)
  const lines = events.map((event) => encoder.line(event)).join('')
  return { firstSeq, count: events.length, lines: Buffer.from(lines) }
}
const raw = (...lines: string[]): LogChunk => ({
  firstSeq: 1,
  count: lines.length,
  lines: Buffer.from(lines.map((line) => `${line}\n`).join('')),
})

test('every text arrives unchanged as one delta with its seq as id', () => {
  const odd = [
    '',
    '"',
    '\\',
    '\\"',
    '\r\n',
    '\r',
    '\u2028\u2029',
    '\0',
    '👍',
    ',"delta":true}',
    ',"text":"',
    '\n\ndata: x',
  ]
  fc.assert(
    fc.property(
      fc.array(fc.oneof(fc.string({ unit: 'binary' }), fc.constantFrom(...odd)), { minLength: 1 }),
      (texts) => {
        const wellFormed = texts.map((text) => text.toWellFormed())
        const frames = framesIn(encodeFrames(chunk(wellFormed.map(say)), false))
        assert.deepEqual(
          frames,
          wellFormed.map((text, i) => ({ id: String(i + 1), event: 'delta', data: { text } })),
        )
      },
    ),
  )
})

test('a client hears from which event on a run is done again, and of no other progress', () => {
  const events: RuntimeEvent[] = [
    { type: 'progress', stage: 'runner_accepted' },
    say('half'),
    { type: 'progress', stage: 'retrying', attempt: 2, message: 'a runner of ours', supersedes: 2 },
    say('whole'),
  ]
  assert.deepEqual(framesIn(encodeFrames(chunk(events), false)), [
    { id: '2', event: 'delta', data: { text: 'half' } },
    { id: '3', event: 'superseded', data: { from: 2 } },
    { id: '4', event: 'delta', data: { text: 'whole' } },
  ])
})

test('a delta in another field order, or with more fields, shows its text and nothing else', () => {
  const head = `"runId":"${runId}","sessionId":"s","seq":1,"at":"2026-01-01T00:00:00.000Z"`
  for (const line of [
    `{"text":"a","type":"assistant",${head},"delta":true}`,
    `{"type":"assistant",${head},"text":"a","inner":"secret","delta":true}`,
    `{"type":"assistant",${head},"inner":{"text":"b"},"text":"a","delta":true}`,
    `{"type":"assistant",${head},"delta":true,"text":"a"}`,
    `{ "type": "assistant", "text": "a", "delta": true }`,
  ]) {
    assert.deepEqual(framesIn(encodeFrames(raw(line), false)), [{ id: '1', event: 'delta', data: { text: 'a' } }], line)
  }
})

test('a line that looks like a delta which goes on in the next line keeps its seq, and so do those behind it', () => {
  const at = (text: string): string => `{"type":"assistant","runId":"r","sessionId":"s","seq":1,"at":"${text}`
  const canonical = at('2026-01-01T00:00:00.000Z","text":"a","delta":true}')
  // Its text would begin where the text of the next line does.
  const lines = [canonical, at('"}'), '{"type":"xxxxxxxxxxxx","text":"b","delta":true}', canonical]
  assert.equal(lines[1]!.length + 1 + lines[2]!.indexOf(',"text"'), canonical.indexOf(',"text"'))
  assert.deepEqual(framesIn(encodeFrames(raw(...lines), false)), [
    { id: '1', event: 'delta', data: { text: 'a' } },
    { id: '2', event: 'delta', data: {} },
    { id: '4', event: 'delta', data: { text: 'a' } },
  ])
})

test('a control character that a runtime did not escape ends no line of a stream', () => {
  const head = `{"type":"assistant","runId":"r","sessionId":"s","seq":1,"at":"2026-01-01T00:00:00.000Z"`
  assert.equal(encodeFrames(raw(`${head},"text":"a\rdata: forged","delta":true}`), true).length, 0)
})

test('tool events appear only when they are exposed, without arguments or content', () => {
  const events: RuntimeEvent[] = [
    { type: 'tool_call', id: 'c1', name: 'search', arguments: { secret: 1 } },
    { type: 'tool_result', id: 'c1', name: 'search', ok: true, content: 'secret' },
    { type: 'tool_result', id: 'c2', name: 'search', ok: false, content: 'secret' },
  ]
  assert.equal(encodeFrames(chunk(events), false).length, 0)
  assert.deepEqual(framesIn(encodeFrames(chunk(events), true)), [
    { id: '1', event: 'tool', data: { id: 'c1', name: 'search', status: 'running' } },
    { id: '2', event: 'tool', data: { id: 'c1', status: 'ok' } },
    { id: '3', event: 'tool', data: { id: 'c2', status: 'error' } },
  ])
})

test('progress, session, usage and terminal events, and lines that are no event, show nothing', () => {
  const events: RuntimeEvent[] = [
    { type: 'progress', stage: 'model' },
    { type: 'session_init', runtimeSessionId: 'vendor-secret' },
    { type: 'usage', inputTokens: 1, outputTokens: 1, model: 'm' },
    finish('answer'),
  ]
  assert.equal(encodeFrames(chunk(events), true).length, 0)
  assert.equal(encodeFrames(raw('not json', '{"type":"vendor_event"}', '{"type":7}'), true).length, 0)
})

test('the terminal event is found at the end of a chunk only', () => {
  assert.equal(terminalEvent(chunk([say('result')])), undefined)
  assert.equal(terminalEvent(chunk([say('a'), finish('b')]))?.['text'], 'b')
  assert.equal(terminalEvent(chunk([finish('b')]))?.['text'], 'b')
  assert.equal(
    terminalEvent({ ...chunk([finish('b')]), lines: Buffer.from('{"type":"error","code":"x"}') })?.['code'],
    'x',
  )
})
