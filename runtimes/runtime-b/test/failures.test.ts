import assert from 'node:assert/strict'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { type ModelReply, startToolServer, terminalOf, textOf } from '#testing'
import type { RunEvent } from '#contracts/run-event'
import { patience } from '../thread.ts'
import { call, conversation, skip, stage } from './support.ts'

/** The only terminal event, as its code, sentence and whether it may be tried again. */
const failure = (events: readonly RunEvent[]): unknown[] => {
  const terminal = terminalOf(events)
  return terminal.type === 'error' ? [terminal.code, terminal.message, terminal.retryable === true] : [terminal.type]
}

/** An address at which somebody else than an MCP server answers. */
async function listener(t: Pick<TestContext, 'after'>, answer: RequestListener): Promise<string> {
  const server = createServer(answer)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(async () => {
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`
}

for (const [status, sentence, retryable, attempts] of [
  [500, 'The model server answered with an internal error.', true, 3],
  [503, 'The model server answered 503.', true, 3],
  [429, 'The model server answered 429.', true, 1],
  [401, 'The model server answered 401.', false, 1],
  [403, 'The model server answered 403.', false, 1],
  [404, 'The model server answered 404.', false, 1],
  [400, 'The model server refused the request (stand_in).', false, 1],
] as const) {
  test(`a model server that answers ${status} ends the run in model_error`, { skip }, async (t) => {
    const { run, models } = await stage(t, { status })
    assert.deepEqual(failure(await run('hi')), ['model_error', sentence, retryable])
    assert.equal(models.requests.length, attempts)
  })
}

test('a failure that passes within the retries is not seen by the client', { skip }, async (t) => {
  const { run, models } = await stage(t)
  models.next({ status: 503 }, { status: 500 })
  assert.equal(terminalOf(await run('hi')).type, 'result')
})

test('a model server that is not there ends the run, and is not tried for ever', { skip }, async (t) => {
  const { run } = await stage(t, {}, { config: { baseUrl: 'http://127.0.0.1:9/v1' } })
  assert.deepEqual(failure(await run('hi')), ['model_error', 'The model server cannot be reached.', true])
})

const broken: readonly (readonly [string, ModelReply, string])[] = [
  ['a connection reset', { text: 'one two three', resetAfter: 2 }, 'The connection to the model server broke.'],
  [
    'an error inside the stream',
    { text: 'one two', inBandError: 'secret' },
    'The model server reported an error while it answered.',
  ],
]
for (const [what, reply, sentence] of broken) {
  test(`${what} behind the first delta is not tried again: nothing is said twice`, { skip }, async (t) => {
    const { run, models } = await stage(t)
    models.next(reply)
    const events = await run('hi')
    assert.deepEqual(failure(events), ['model_error', sentence, true])
    assert.match(textOf(events), /^one two ?$/)
    assert.equal(models.requests.length, 1)
  })
}

test('a failure in a later step keeps the tool calls and results of the steps before it', { skip }, async (t) => {
  const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
  const { run, models } = await stage(t)
  models.next({ toolCalls: [call('look', {}, 'a')] }, { text: 'half of it', resetAfter: 1 })
  const events = await run('first', { sessionId: 's', sessionMcpUrl: tools.url })
  assert.equal(terminalOf(events).type, 'error')
  assert.equal(events.filter(({ type }) => type === 'usage').length, 1, 'the finished step is counted')
  assert.equal(terminalOf(await run('second', { sessionId: 's' })).type, 'result')
  const told = conversation(models.requests.at(-1)!)
  assert.equal(told[0], 'user: first')
  assert.ok(
    told.some((line) => line.startsWith('function_call_output') && line.includes('seen')),
    told.join('\n'),
  )
  assert.equal(told.at(-1), 'user: second')
})

test('a turn of which the model said nothing is not part of the conversation', { skip }, async (t) => {
  const { run, models } = await stage(t)
  models.next({ status: 401 })
  await run('first', { sessionId: 's' })
  await run('second', { sessionId: 's' })
  assert.deepEqual(conversation(models.requests.at(-1)!), ['user: second'])
  models.next({ status: 401 })
  await run('third', { sessionId: 's' })
  await run('fourth', { sessionId: 's' })
  assert.deepEqual(conversation(models.requests.at(-1)!), ['user: second', 'assistant: fine', 'user: fourth'])
})

test("a refused token of the session's tools ends the run before a model is asked", { skip }, async (t) => {
  const url = await listener(t, (_request, response) => {
    response.writeHead(401, { 'content-type': 'application/json' }).end('{"error":"invalid or missing worker token"}')
  })
  const { run, models } = await stage(t)
  const [code, sentence] = failure(await run('hi', { sessionMcpUrl: url, sessionMcpToken: 'old' }))
  assert.deepEqual(
    [code, sentence],
    ['tool_server_unavailable', "The session's tool server cannot be reached, or refuses its token."],
  )
  assert.equal(models.requests.length, 0)
})

test('a tool server that is not there, or never answers, ends the run in its time', { skip }, async (t) => {
  const { run } = await stage(t)
  const silent = await listener(t, () => {})
  const [gone, mute] = await Promise.all(
    ['http://127.0.0.1:9/mcp', silent].map((sessionMcpUrl) => run('hi', { sessionMcpUrl })),
  )
  assert.equal(failure(gone!)[0], 'tool_server_unavailable')
  assert.equal(failure(mute!)[0], 'tool_server_unavailable')
})

test(
  'a tool that cannot be called is something the model is told; addresses and inner errors are not shown',
  { skip },
  async (t) => {
    const tools = await startToolServer(t, {
      boom: async () => {
        throw new Error('secret')
      },
    })
    const { run, models } = await stage(t)
    models.next({ toolCalls: [call('boom'), call('missing')] }, { text: 'done' })
    const events = await run('hi', { sessionMcpUrl: tools.url })
    assert.equal(terminalOf(events).type, 'result')
    const results = events.flatMap((event) => (event.type === 'tool_result' ? [[event.ok, event.content]] : []))
    assert.deepEqual(results, [[false, "The tool 'boom' could not be called."]])
  },
)

test('a model that says nothing for too long ends the run', { skip }, async (t) => {
  const { run } = await stage(t, { hang: true }, { patience: { ...patience, silenceMs: 500 } })
  const [code, sentence, retryable] = failure(await run('hi'))
  assert.deepEqual([code, retryable], ['model_error', true])
  assert.match(String(sentence), /^The model server said nothing for \d+ s\.$/)
})
