import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { LanguageModelV4, LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { bareSidecar, collectRun, startToolServer, type ModelReply, terminalOf, testEnvelope, textOf } from '#testing'
import { conversation, generalOnStandIn, generalWith, model } from './support.ts'

const session = { sessionId: 'sess-00000000-0000000f', ...model }

async function failing(t: Parameters<typeof generalOnStandIn>[0], ...replies: ModelReply[]) {
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'fine' } })
  server.next(...replies)
  const link = bareSidecar(runtime)
  const events = await collectRun(link, testEnvelope({ ...session, prompt: 'first' }))
  const terminal = terminalOf(events)
  return { runtime, server, link, events, terminal }
}

test('an HTTP error before the stream is tried three times and then ends in model_error with its status', async (t) => {
  const { server, terminal } = await failing(t, { status: 500 }, { status: 503 }, { status: 500 })
  assert.ok(terminal.type === 'error')
  assert.deepEqual(
    [terminal.code, terminal.message, terminal.retryable],
    ['model_error', 'The model server answered 500 (stand_in).', true],
  )
  assert.equal(server.requests.length, 3)
})

test('a failure that passes within the retries is not seen by the client', async (t) => {
  const { terminal } = await failing(t, { status: 429 })
  assert.equal(terminal.type, 'result')
})

test('an HTTP error that will not pass is not tried again', async (t) => {
  const { server, terminal } = await failing(t, { status: 401 })
  assert.ok(terminal.type === 'error')
  assert.deepEqual([terminal.message, terminal.retryable], ['The model server answered 401 (stand_in).', false])
  assert.equal(server.requests.length, 1)
})

test('a model server that is not there ends in model_error', async (t) => {
  const { runtime, server } = await generalOnStandIn(t)
  await server.stop()
  const terminal = terminalOf(await collectRun(bareSidecar(runtime), testEnvelope(model)))
  assert.ok(terminal.type === 'error')
  assert.deepEqual(
    [terminal.code, terminal.message, terminal.retryable],
    ['model_error', 'The model server cannot be reached.', true],
  )
})

for (const [what, reply, message] of [
  ['a connection reset', { text: 'one two three', resetAfter: 2 }, 'The connection to the model server broke.'],
  [
    'an error inside the stream',
    { text: 'one two', inBandError: 'secret text' },
    'The model server reported an error while it answered (server_error).',
  ],
] as const) {
  test(`${what} after the first delta is not retried, and the partial answer is committed once`, async (t) => {
    const { server, link, events, terminal } = await failing(t, reply)
    assert.ok(terminal.type === 'error')
    assert.deepEqual([terminal.code, terminal.message, terminal.retryable], ['model_error', message, true])
    assert.match(textOf(events), /^one two $|^one two$/)
    assert.equal(server.requests.length, 1)
    await collectRun(link, testEnvelope({ ...session, prompt: 'second' }))
    assert.deepEqual(conversation(server), ['user: first', `assistant: ${textOf(events)}`, 'user: second'])
  })
}

test('a failure in a later step keeps the tool calls and results of the steps before it', async (t) => {
  const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'fine' } })
  server.next({ toolCalls: [{ id: 'a', name: 'look', arguments: {} }] }, { text: 'half of it', resetAfter: 1 })
  const link = bareSidecar(runtime)
  const events = await collectRun(link, testEnvelope({ ...session, prompt: 'first', sessionMcpUrl: tools.url }))
  assert.equal(terminalOf(events).type, 'error')
  assert.equal(events.filter(({ type }) => type === 'usage').length, 1, 'the finished step is counted')
  await collectRun(link, testEnvelope({ ...session, prompt: 'second' }))
  assert.deepEqual(conversation(server), [
    'user: first',
    'assistant: a=look({})',
    'tool: seen',
    'assistant: half ',
    'user: second',
  ])
})

test('a run that failed before the model said anything leaves no trace in the conversation', async (t) => {
  const { server, link } = await failing(t, { status: 400 })
  await collectRun(link, testEnvelope({ ...session, prompt: 'second' }))
  assert.deepEqual(conversation(server), ['user: second'])
})

test('aborting a run closes the connection of its model and commits what was said', async (t) => {
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'fine' } })
  server.next({ text: 'one two three', hangAfter: 2 })
  const abort = new AbortController()
  const link = bareSidecar(runtime)
  const events = await collectRun(link, testEnvelope({ ...session, prompt: 'first' }), abort.signal, (event) => {
    if (event.type === 'assistant' && event.text.startsWith('two')) abort.abort()
  })
  assert.equal(textOf(events), 'one two ')
  await server.requests[0]!.ended
  assert.equal(server.requests[0]!.closedEarly, true)
  await collectRun(link, testEnvelope({ ...session, prompt: 'second' }))
  assert.deepEqual(conversation(server), ['user: first', 'assistant: one two ', 'user: second'])
})

test('aborting a run whose model has not answered yet closes its connection', async (t) => {
  const { runtime, server } = await generalOnStandIn(t, { reply: { hang: true } })
  const abort = new AbortController()
  const run = collectRun(bareSidecar(runtime), testEnvelope(model), abort.signal)
  while (server.requests.length === 0) await new Promise((resolve) => setImmediate(resolve))
  abort.abort()
  await run
  await server.requests[0]!.ended
  assert.equal(server.requests[0]!.closedEarly, true)
})

test('aborting a run during a tool call gives the call an error result in the conversation', async (t) => {
  const abort = new AbortController()
  const tools = await startToolServer(t, {
    stuck: () => {
      abort.abort()
      return new Promise(() => {})
    },
  })
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'fine' } })
  server.next({ toolCalls: [{ id: 'a', name: 'stuck', arguments: {} }] })
  const link = bareSidecar(runtime)
  await collectRun(link, testEnvelope({ ...session, prompt: 'first', sessionMcpUrl: tools.url }), abort.signal)
  await collectRun(link, testEnvelope({ ...session, prompt: 'second' }))
  const [, called, result] = conversation(server)
  assert.equal(called, 'assistant: a=stuck({})')
  assert.match(result!, /^tool: The tool/)
})

/** A provider written elsewhere: the parts are streamed as they are. */
const scripted = (parts: (call: number) => LanguageModelV4StreamPart[], prompts: unknown[] = []): LanguageModelV4 => ({
  specificationVersion: 'v4',
  provider: 'scripted',
  modelId: 'm',
  supportedUrls: {},
  doGenerate: () => Promise.reject(new Error('not used')),
  async doStream({ prompt }) {
    prompts.push(prompt)
    return { stream: ReadableStream.from(parts(prompts.length)) as ReadableStream<LanguageModelV4StreamPart> }
  },
})
const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
}
const finish = (unified: 'stop' | 'tool-calls'): LanguageModelV4StreamPart => ({
  type: 'finish',
  usage,
  finishReason: { unified, raw: undefined },
})

test('circular arguments and metadata become the text [circular], in events and in the next call', async (t) => {
  const loop: Record<string, unknown> = { name: 'loop' }
  loop['self'] = loop
  const prompts: { role: string; content: { input?: unknown; providerOptions?: unknown }[] }[][] = []
  const runtime = await generalWith(t, {
    scripted: {
      contract: 'model/1',
      model: () =>
        scripted(
          (call) =>
            call === 1
              ? [
                  {
                    type: 'tool-call',
                    toolCallId: 'a',
                    toolName: 'x',
                    input: loop as never,
                    providerMetadata: { v: { loop } as never },
                  },
                  finish('tool-calls'),
                ]
              : [{ type: 'text-delta', id: '1', delta: 'done' }, finish('stop')],
          prompts,
        ),
    },
  })
  const events = await collectRun(bareSidecar(runtime), testEnvelope({ profile: { model: 'scripted/m' } }))
  const plain = { name: 'loop', self: '[circular]' }
  assert.deepEqual(
    events.flatMap((e) => (e.type === 'tool_call' ? [e.arguments] : [])),
    [plain],
  )
  const called = prompts[1]!.find(({ role }) => role === 'assistant')!.content[0]!
  assert.deepEqual(called.input, plain)
  assert.deepEqual(called.providerOptions, { v: { loop: plain } })
})

test('a stream that ends without a finish is an error, not an answer', async (t) => {
  const runtime = await generalWith(t, {
    scripted: { contract: 'model/1', model: () => scripted(() => [{ type: 'text-delta', id: '1', delta: 'half' }]) },
  })
  const terminal = terminalOf(
    await collectRun(bareSidecar(runtime), testEnvelope({ profile: { model: 'scripted/m' } })),
  )
  assert.ok(terminal.type === 'error')
  assert.equal(terminal.message, 'The model server ended its answer early.')
})

test('whatever else a provider throws ends in model_error without its text', async (t) => {
  const runtime = await generalWith(t, {
    scripted: {
      contract: 'model/1',
      model: () =>
        scripted(() => {
          throw new Error('secret text')
        }),
    },
  })
  const terminal = terminalOf(
    await collectRun(bareSidecar(runtime), testEnvelope({ profile: { model: 'scripted/m' } })),
  )
  assert.ok(terminal.type === 'error')
  assert.deepEqual(
    [terminal.code, terminal.message, terminal.retryable],
    ['model_error', 'The call of the model failed.', false],
  )
})
