import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { UsageEvent } from '#contracts/run-event'
import { callsAtOnce } from '../egress/calls.ts'
import { anthropicUsage, openaiUsage, type UsageOf, UsageReader } from '../egress/usage.ts'
import { callsOf } from './hub.ts'

const sse = (...events: readonly (object | string)[]): string =>
  events.map((event) => `data: ${typeof event === 'string' ? event : JSON.stringify(event)}\n\n`).join('')

/** The usage that is read from an answer which arrives in parts of `size` bytes. */
function readerOf(usageOf: UsageOf, answer: string, streams: boolean, size = answer.length): UsageReader {
  const reader = new UsageReader(usageOf, streams)
  const bytes = Buffer.from(answer)
  for (let at = 0; at < bytes.length; at += size) reader.read(bytes.subarray(at, at + size))
  reader.end()
  return reader
}

const delta = { choices: [{ delta: { content: 'a word' } }], usage: null }
const chatUsage = { prompt_tokens: 120, completion_tokens: 7, prompt_tokens_details: { cached_tokens: 100 } }
const responsesUsage = { input_tokens: 120, output_tokens: 7, input_tokens_details: { cached_tokens: 100 } }
const messagesUsage = { input_tokens: 5, cache_read_input_tokens: 100, cache_creation_input_tokens: 15 }
const told = { input: 120, output: 7, cached: 100, whole: true }

test('the usage is read from whatever wire an answer is on, wherever its bytes are cut', () => {
  const answers: readonly [string, UsageOf, boolean, string][] = [
    ['chat', openaiUsage, false, JSON.stringify({ choices: [], usage: chatUsage }, undefined, 2)],
    ['streamed chat', openaiUsage, true, sse(delta, delta, { choices: [], usage: chatUsage }, '[DONE]')],
    ['responses', openaiUsage, false, JSON.stringify({ output: [], usage: responsesUsage, metadata: {} })],
    [
      'streamed responses',
      openaiUsage,
      true,
      `event: response.created\n${sse({ type: 'response.created', response: { usage: null } })}${sse({ type: 'response.completed', response: { usage: responsesUsage } })}`,
    ],
    ['messages', anthropicUsage, false, JSON.stringify({ content: [], usage: { ...messagesUsage, output_tokens: 7 } })],
    [
      'streamed messages',
      anthropicUsage,
      true,
      sse(
        { type: 'message_start', message: { usage: { ...messagesUsage, output_tokens: 1 } } },
        { type: 'content_block_delta', delta: { text: 'a word' } },
        { type: 'message_delta', delta: { stop_reason: 'end_turn' }, usage: { output_tokens: 7 } },
        { type: 'message_stop' },
      ).replaceAll('\n', '\r\n'),
    ],
  ]
  for (const [what, usageOf, streams, answer] of answers) {
    for (const size of [answer.length, 1, 7, 64])
      assert.deepEqual(readerOf(usageOf, answer, streams, size).told, told, `${what} in parts of ${size}`)
  }
  const embedding = JSON.stringify({ data: [[0.1, 0.2]], usage: { prompt_tokens: 9, total_tokens: 9 } })
  assert.deepEqual(readerOf(openaiUsage, embedding, false).told, { input: 9, output: 0, cached: 0, whole: true })
})

test('tokens that only a sample of a call tells are counted, and those of the call are not counted twice', () => {
  const compaction = { type: 'compaction', input_tokens: 900, output_tokens: 30 }
  const message = { type: 'message', ...messagesUsage, output_tokens: 7 }
  const read = (iterations: unknown) =>
    [true, false].map((streams) => {
      const usage = { ...messagesUsage, output_tokens: 7, iterations }
      return readerOf(
        anthropicUsage,
        streams ? sse({ type: 'message_delta', usage }) : JSON.stringify({ usage }),
        streams,
      ).told
    })
  const both = { input: 1_020, output: 37, cached: 100, whole: true }
  assert.deepEqual(read([compaction, message]), [both, both])
  for (const iterations of [[message], [], null, 'x', [null, 7, { input_tokens: -5 }]])
    assert.deepEqual(read(iterations), [told, told], JSON.stringify(iterations))
})

test('no text of a model or of its caller is taken for the usage', () => {
  const little = { prompt_tokens: 1, completion_tokens: 1, input_tokens: 1, output_tokens: 1 }
  const echo = { tools: [{ parameters: { usage: little } }], metadata: { usage: little }, user: '"usage":{}' }
  const says = { choices: [{ delta: { content: `"usage": ${JSON.stringify(little)}` } }] }
  assert.equal(
    readerOf(openaiUsage, sse(says, { choices: [{ delta: { usage: little } }] }, '[DONE]'), true).told,
    undefined,
  )
  const completed = { type: 'response.completed', response: { ...echo, usage: responsesUsage } }
  assert.deepEqual(readerOf(openaiUsage, sse(says, completed), true).told, told)
  assert.deepEqual(readerOf(openaiUsage, JSON.stringify({ ...echo, usage: chatUsage }), false).told, told)
})

test('a server that did not count, or says what is no count, has told nothing', () => {
  for (const usage of [
    { prompt_tokens: 0, completion_tokens: 0 },
    { prompt_tokens: '7' },
    { prompt_tokens: -3 },
    [7],
    'x',
  ]) {
    assert.equal(readerOf(openaiUsage, JSON.stringify({ usage }), false).told, undefined, JSON.stringify(usage))
    assert.equal(readerOf(openaiUsage, sse({ usage }), true).told, undefined, JSON.stringify(usage))
  }
  assert.equal(readerOf(openaiUsage, '{"usage":', false).told, undefined, 'an answer that was cut')
})

test('what is kept of an answer is bounded, and a longer one is estimated by its bytes', () => {
  const long = 'x'.repeat(3 * 1024 * 1024)
  const whole = readerOf(openaiUsage, JSON.stringify({ text: long, usage: chatUsage }), false, 64 * 1024)
  const event = readerOf(openaiUsage, sse({ text: long, usage: chatUsage }), true, 64 * 1024)
  for (const { told: read, tokens } of [whole, event]) {
    assert.equal(read, undefined)
    assert.ok(tokens > 700_000 && tokens < 900_000, `${tokens} tokens`)
  }
  const after = readerOf(openaiUsage, sse({ text: long }, { usage: chatUsage }), true, 64 * 1024)
  assert.deepEqual(after.told, told, 'a long event before it is no hindrance')
})

const price = { inputCentsPerMillion: 100, outputCentsPerMillion: 1_000 }

/** The calls of a run whose clock moves only when the test moves it. */
function measured(cents?: number) {
  const clock = { ms: 0 }
  const used: UsageEvent[] = []
  const budget = cents === undefined ? {} : { budget: { cents, price } }
  const calls = callsOf({ onUsage: (usage) => void used.push(usage), now: () => clock.ms, ...budget })
  const ask = async (answer: string, { bytes = 400, streams = false, status = 200 } = {}): Promise<void> => {
    const call = calls.begin(openaiUsage)
    call.asked(bytes)
    call.answered(status, streams ? 'text/event-stream; charset=utf-8' : 'application/json')
    const body = (async function* () {
      yield Buffer.from(answer)
    })()
    await Array.fromAsync(call.read(body))
  }
  return { calls, clock, used, ask }
}

test('a call whose usage the server does not tell is estimated by its bytes and its time, and says so', async () => {
  const { ask, used, clock, calls } = measured()
  const event = { type: 'usage', model: 'openai/m', estimated: true }
  await ask(sse(delta, delta, delta, '[DONE]'), { streams: true })
  assert.deepEqual(used.pop(), { ...event, inputTokens: 100, outputTokens: 4 })
  await ask('x'.repeat(80), { bytes: 50_000_000 })
  assert.deepEqual(used.pop(), { ...event, inputTokens: 1_000_000, outputTokens: 20 })
  // The caller leaves before the answer, but the model has worked until then.
  const left = calls.begin(openaiUsage)
  left.asked(400)
  clock.ms += 30_000
  left.over()
  assert.deepEqual(used.pop(), { ...event, inputTokens: 100, outputTokens: 3_000 })
  left.over()
  assert.deepEqual(used, [], 'a call is over once')
})

test('what never reached a model, or was refused there, costs nothing', async () => {
  const { calls, ask, used } = measured()
  await ask('{"error":"no"}', { status: 429 })
  calls.begin(openaiUsage).over()
  assert.deepEqual(used, [])
})

test('a stream that begins with its input is estimated for its output alone', () => {
  const { calls, used } = measured()
  const call = calls.begin(anthropicUsage)
  call.asked(4_000_000)
  call.answered(200, 'text/event-stream')
  const start = { type: 'message_start', message: { usage: { ...messagesUsage, output_tokens: 1 } } }
  const answer = sse(start, ...Array.from({ length: 5 }, () => ({ type: 'content_block_delta' })))
  void call
    .read(
      (async function* () {
        yield Buffer.from(answer)
      })(),
    )
    .next()
    .then(() => call.over())
  return new Promise<void>((resolve) => setImmediate(resolve)).then(() =>
    assert.deepEqual(used, [
      { type: 'usage', model: 'openai/m', inputTokens: 120, outputTokens: 6, cachedTokens: 100, estimated: true },
    ]),
  )
})

const answered = (input: number, output: number): string =>
  JSON.stringify({ usage: { prompt_tokens: input, completion_tokens: output } })

test('once the budget is spent no call begins; the last one may pass it', async () => {
  const { calls, ask, used } = measured(1)
  await ask(answered(1_000, 500)) // 0.6 cents
  await ask(answered(1_000, 500))
  assert.throws(() => calls.begin(openaiUsage), { code: 'run_budget_spent', status: 403 })
  assert.deepEqual(used.length, 2)
})

test('calls at once are bounded, and what they have used so far counts before they are over', () => {
  const { calls } = measured(1)
  const begun = Array.from({ length: callsAtOnce }, () => calls.begin(openaiUsage))
  assert.throws(() => calls.begin(openaiUsage), {
    code: 'too_many_model_calls',
    status: 429,
    headers: { 'retry-after': '1' },
  })
  begun.pop()!.over()
  begun[0]!.asked(40_000) // About 10,000 tokens: a cent.
  assert.throws(() => calls.begin(openaiUsage), { code: 'too_many_model_calls' }, 'they may cost less in the end')
})

test('an answer that is no stream is read once, when its call is over, and not by each call that is refused meanwhile', async () => {
  const { calls, used } = measured(1)
  let read = 0
  const begun = Array.from({ length: 2 }, () =>
    calls.begin((answer) => {
      read++
      return openaiUsage(answer)
    }),
  )
  const ends = begun.map((call) => {
    const more = Promise.withResolvers<void>()
    call.asked(40)
    call.answered(200, 'application/json')
    const answer = (async function* () {
      yield Buffer.from(answered(1_000, 500))
      await more.promise
    })()
    return { passed: Array.fromAsync(call.read(answer)), more }
  })
  await new Promise(setImmediate)
  for (let other = 0; other < 3; other++) calls.begin(openaiUsage).over()
  assert.equal(read, 0)
  ends[0]!.more.resolve()
  await ends[0]!.passed
  assert.equal(read, 1)
  const usage = { type: 'usage', model: 'openai/m', inputTokens: 1_000, outputTokens: 500 }
  assert.deepEqual(used, [usage])
  assert.deepEqual(calls.end(), [usage], 'so is one that the end of its run cuts off')
  ends[1]!.more.resolve()
  await ends[1]!.passed
  assert.equal(read, 2)
})

test('a run that is over lets no call through, and what those under way have used is known', () => {
  const { calls, used } = measured()
  const call = calls.begin(openaiUsage)
  call.asked(40)
  const untold = { type: 'usage', model: 'openai/m', inputTokens: 10, outputTokens: 0, estimated: true }
  assert.deepEqual(calls.end(), [untold])
  assert.equal(calls.signal.aborted, true)
  call.over()
  assert.deepEqual([used, calls.end()], [[], []], 'it is told once')
  assert.throws(() => calls.modelAt('openai'), { code: 'no_run_under_way' })
})
