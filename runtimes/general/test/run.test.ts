import assert from 'node:assert/strict'
import { test } from 'node:test'
import { bareSidecar, collectRun, startToolServer, terminalOf, testEnvelope, textOf } from '#testing'
import { conversation, generalOnStandIn, model } from './support.ts'

const profile = { ...model.profile, instructions: 'Be brief.' }

test('a run streams the text, then usage once, then the result', async (t) => {
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'one two three' } })
  const envelope = testEnvelope({ profile: { ...profile, limits: { maxOutputTokens: 99 } } })
  const events = await collectRun(bareSidecar(runtime), envelope)
  assert.deepEqual(
    events.map((event) => event.type),
    ['assistant', 'assistant', 'assistant', 'usage', 'result'],
  )
  const { type, runId, sessionId, seq, at, ...usage } = events.at(-2)!
  assert.equal(type, 'usage')
  assert.deepEqual(usage, { inputTokens: usageOf(server), outputTokens: 3, model: 'stand-in/m' })
  assert.deepEqual(conversation(server), ['system: Be brief.', 'user: hello'])
  assert.equal(server.requests[0]!.body.max_tokens, 99)
  void [runId, sessionId, seq, at]
})

const usageOf = (server: { requests: readonly { body: { messages: unknown } }[] }): number =>
  JSON.stringify(server.requests[0]!.body.messages).length >> 2

test('without a toolkit the address of the session is not asked for tools', async (t) => {
  const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
  const { runtime, server } = await generalOnStandIn(t)
  const envelope = testEnvelope({ profile: { ...profile, tools: [] }, sessionMcpUrl: tools.url })
  assert.equal(terminalOf(await collectRun(bareSidecar(runtime), envelope)).type, 'result')
  assert.deepEqual([tools.tokens.length, server.requests[0]!.body['tools']], [0, undefined])
})

test('the vendor knows no conversation here: no handle is reported, and none goes with the state', async (t) => {
  const { runtime } = await generalOnStandIn(t)
  const envelope = testEnvelope({ profile })
  const events = await collectRun(bareSidecar(runtime), envelope)
  assert.equal(
    events.some(({ type }) => type === 'session_init'),
    false,
  )
  assert.equal((await runtime.exportState!(envelope.sessionId))!.runtimeSessionId, undefined)
})

test('tools of the session are listed once, called with the token, and their results go back in call order', async (t) => {
  const slow = Promise.withResolvers<void>()
  const tools = await startToolServer(t, {
    slow: async () => {
      await slow.promise
      return { text: 'slow result' }
    },
    // Ends the slow one: both must be under way at once.
    fast: async (input) => {
      slow.resolve()
      return { text: `fast ${String(input['n'])}` }
    },
  })
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'Done.' } })
  server.next({
    text: 'Let me look.',
    toolCalls: [
      { id: 'a', name: 'slow', arguments: {} },
      { id: 'b', name: 'fast', arguments: { n: 7 } },
    ],
  })
  const envelope = testEnvelope({ profile, sessionMcpUrl: tools.url, sessionMcpToken: 'tok' })
  const events = await collectRun(bareSidecar(runtime), envelope)
  const shown = events.flatMap((e) =>
    e.type === 'tool_call'
      ? [`call ${e.id} ${JSON.stringify(e.arguments)}`]
      : e.type === 'tool_result'
        ? [`result ${e.id} ${e.ok} ${e.content}`]
        : [],
  )
  assert.deepEqual(shown, ['call a {}', 'call b {"n":7}', 'result a true slow result', 'result b true fast 7'])
  const terminal = terminalOf(events)
  assert.ok(terminal.type === 'result')
  assert.equal(terminal.text, 'Let me look.\n\nDone.')
  assert.equal(textOf(events), terminal.text)
  assert.equal(tools.lists(), 1)
  assert.ok(tools.tokens.every((token) => token === 'Bearer tok'))
  assert.deepEqual(conversation(server), [
    'system: Be brief.',
    'user: hello',
    'assistant: Let me look. a=slow({}) b=fast({"n":7})',
    'tool: slow result',
    'tool: fast 7',
  ])
  assert.equal(events.filter((event) => event.type === 'usage').length, 2, 'each model call is counted when it is over')
})

test('of very many calls in one answer the first are carried out, and the model is told of the others', async (t) => {
  let called = 0
  const tools = await startToolServer(t, {
    count: async () => {
      called++
      return { text: 'counted' }
    },
  })
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'ok' } })
  server.next({ toolCalls: Array.from({ length: 70 }, (_, i) => ({ id: `c${i}`, name: 'count', arguments: {} })) })
  const events = await collectRun(bareSidecar(runtime), testEnvelope({ profile, sessionMcpUrl: tools.url }))
  const results = events.flatMap((event) => (event.type === 'tool_result' ? [event] : []))
  assert.deepEqual([called, results.length, results.filter(({ ok }) => ok).length], [64, 70, 64])
  assert.match(results[69]!.content, /may call 64 tools/)
  assert.equal(terminalOf(events).type, 'result')
})

test('a tool that fails, does not exist or gets broken arguments is told to the model, and the run goes on', async (t) => {
  const tools = await startToolServer(t, {
    fail: async () => ({ text: 'It broke.', isError: true }),
    throws: async () => {
      throw new Error('secret text')
    },
  })
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'ok' } })
  server.next({
    toolCalls: [
      { id: 'a', name: 'fail', arguments: {} },
      { id: 'b', name: 'nowhere', arguments: {} },
      { id: 'c', name: 'fail', arguments: '[1]' },
      { id: 'd', name: 'throws', arguments: {} },
    ],
  })
  const events = await collectRun(bareSidecar(runtime), testEnvelope({ profile, sessionMcpUrl: tools.url }))
  const results = events.flatMap((e) => (e.type === 'tool_result' ? [[e.id, e.ok, e.content]] : []))
  assert.deepEqual(results, [
    ['a', false, 'It broke.'],
    ['b', false, "There is no tool 'nowhere'."],
    ['c', false, 'The arguments of the call are not a JSON object.'],
    ['d', false, "The tool 'throws' could not be called."],
  ])
  assert.equal(terminalOf(events).type, 'result')
})

test('a tool server that cannot be reached ends the run before the model is called', async (t) => {
  const { runtime, server } = await generalOnStandIn(t)
  const envelope = testEnvelope({ profile, sessionMcpUrl: 'http://127.0.0.1:1/mcp' })
  const terminal = terminalOf(await collectRun(bareSidecar(runtime), envelope))
  assert.ok(terminal.type === 'error')
  assert.equal(terminal.code, 'tool_server_unavailable')
  assert.equal(server.requests.length, 0)
})

test('reaching maxSteps with tool calls pending ends in max_steps', async (t) => {
  const tools = await startToolServer(t, { again: async () => ({ text: 'again' }) })
  const { runtime, server } = await generalOnStandIn(t, { reply: { toolCalls: [{ name: 'again', arguments: {} }] } })
  const limited = { ...profile, limits: { maxSteps: 3 } }
  const events = await collectRun(bareSidecar(runtime), testEnvelope({ profile: limited, sessionMcpUrl: tools.url }))
  const terminal = terminalOf(events)
  assert.ok(terminal.type === 'error')
  assert.equal(terminal.code, 'max_steps')
  assert.equal(server.requests.length, 3)
  assert.equal(tools.calls.length, 2)
  assert.equal(events.at(-2)!.type, 'usage')
})

test('an unknown provider ends in unknown_model and a sentence that lists the configured ones', async (t) => {
  const { runtime } = await generalOnStandIn(t)
  for (const name of ['nobody/m', 'no-slash']) {
    const terminal = terminalOf(await collectRun(bareSidecar(runtime), testEnvelope({ profile: { model: name } })))
    assert.ok(terminal.type === 'error')
    assert.equal(terminal.code, 'unknown_model')
    assert.match(terminal.message, /configured: signing, stand-in\./)
  }
})
