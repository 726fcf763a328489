import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { createEventEncoder, type RuntimeEvent } from '#contracts/run-event'
import type { LogChunk } from '#contracts/runs'
import { encodeFrames, terminalEvent } from '../frames.ts'
import { closing, createRunLog } from '../run-log.ts'
import { framesOf } from './gateway.ts'
import { finish, say } from './scripted-dispatch.ts'

const runId = 'run_1'

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
        const frames = framesOf(encodeFrames(chunk(wellFormed.map(say)), 0, false))
        assert.deepEqual(
          frames,
          wellFormed.map((text, i) => ({ id: String(i + 1), event: 'delta', data: { text } })),
        )
      },
    ),
  )
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
    assert.deepEqual(
      framesOf(encodeFrames(raw(line), 0, false)),
      [{ id: '1', event: 'delta', data: { text: 'a' } }],
      line,
    )
  }
})

test('tool events appear only when they are exposed, without arguments or content', () => {
  const events: RuntimeEvent[] = [
    { type: 'tool_call', id: 'c1', name: 'search', arguments: { secret: 1 } },
    { type: 'tool_result', id: 'c1', name: 'search', ok: true, content: 'secret' },
    { type: 'tool_result', id: 'c2', name: 'search', ok: false, content: 'secret' },
  ]
  assert.equal(encodeFrames(chunk(events), 0, false), '')
  assert.deepEqual(framesOf(encodeFrames(chunk(events), 0, true)), [
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
  assert.equal(encodeFrames(chunk(events), 0, true), '')
  assert.equal(encodeFrames(raw('not json', '{"type":"vendor_event"}', '{"type":7}'), 0, true), '')
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

const all = Array.from({ length: 300 }, (_, i) => say(`text number ${i}`))
const signal = new AbortController().signal

const collect = async (frames: AsyncIterable<string>): Promise<string> => {
  let text = ''
  for await (const piece of frames) text += piece
  return text
}

test('a reader behind what memory holds reads the rest from the archive, and every start sees the same end', async () => {
  const asked: number[] = []
  const log = createRunLog(
    false,
    async function* (after) {
      asked.push(after)
      for (let from = after; from < all.length; from += 7) yield chunk(all.slice(from, from + 7), from + 1)
    },
    2_000,
  )
  for (let from = 0; from < all.length; from += 10) log.append(chunk(all.slice(from, from + 10), from + 1))
  log.end('event: done\ndata: {}\n\n')
  const whole = encodeFrames(chunk(all), 0, false)
  for (let after = 0; after <= all.length; after += 13) {
    const rest = after === 0 ? whole : whole.slice(whole.indexOf(`id: ${after + 1}\n`))
    assert.equal(await collect(log.follow(after, signal)), `${rest}event: done\ndata: {}\n\n`, `after ${after}`)
  }
  assert.ok(asked.includes(0))
  assert.ok(!asked.includes(299))
})

test('a reader that waits gets what comes, and a comment instead of an end when the watcher is given up', async () => {
  const log = createRunLog(false, async function* () {})
  const reading = collect(log.follow(0, signal))
  await Promise.resolve()
  log.append(chunk([say('one')]))
  log.append(chunk([say('two')], 2))
  log.detach()
  assert.equal(await reading, encodeFrames(chunk([say('one'), say('two')]), 0, false) + closing)
})

test('an archive that cannot help ends the stream without an end of the run', async () => {
  const log = createRunLog(false, async function* () {}, 100)
  for (let i = 0; i < 10; i++) log.append(chunk([say('x'.repeat(50))], i + 1))
  assert.equal(await collect(log.follow(0, signal)), closing)
})

test('a log that all clients have seen keeps little; for one that is behind it is kept, up to a bound', async () => {
  const asked: number[] = []
  const log = createRunLog(false, async function* (after) {
    asked.push(after)
    yield* []
  })
  const append = (count: number): void => {
    for (let i = 0; i < count; i++) log.append(chunk([say('x')], log.lastSeq + 1))
  }
  append(1)
  const behind = log.follow(0, signal)
  await behind.next()
  append(200)
  let text = ''
  while (!text.includes('id: 201\n')) text += (await behind.next()).value
  assert.deepEqual(asked, [], 'nothing was read again')
  append(300)
  assert.equal(await collect(log.follow(0, signal)), closing)
  assert.deepEqual(asked, [0], 'who comes later asks the conductor')
  while (!text.includes('id: 501\n')) text += (await behind.next()).value
  assert.deepEqual(asked, [0])
})
