import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Replay } from '#contracts/replay'
import { bareSidecar, collectRun, startToolServer, terminalOf, testEnvelope, textOf } from '#testing'
import { conversation, generalOnStandIn, model } from './support.ts'

const { profile } = model
const asked: Replay = [
  { type: 'assistant', text: 'Let me look.', delta: true },
  { type: 'tool_call', id: 'a', name: 'look', arguments: { at: 'a' } },
  { type: 'tool_call', id: 'b', name: 'look', arguments: { at: 'b' } },
]
const heard: Replay = [...asked, { type: 'tool_result', id: 'a', name: 'look', ok: true, content: 'saw a' }]

test('an attempt goes on behind the finished calls: the one without a result is executed, the model hears both', async (t) => {
  const tools = await startToolServer(t, { look: async (input) => ({ text: `saw ${String(input['at'])} anew` }) })
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'Both seen.' } })
  const envelope = testEnvelope({ profile, prompt: 'look', sessionMcpUrl: tools.url, attempt: 2, replay: heard })
  const events = await collectRun(bareSidecar(runtime), envelope)
  assert.deepEqual(tools.calls, [{ name: 'look', arguments: { at: 'b' }, callId: 'b' }])
  assert.deepEqual(
    events.filter(({ type }) => type === 'tool_call' || type === 'tool_result').map((e) => 'id' in e && e.id),
    ['b'],
  )
  assert.deepEqual(conversation(server), [
    'user: look',
    'assistant: Let me look. a=look({"at":"a"}) b=look({"at":"b"})',
    'tool: saw a',
    'tool: saw b anew',
  ])
  const terminal = terminalOf(events)
  assert.ok(terminal.type === 'result')
  assert.equal(terminal.text, 'Let me look.\n\nBoth seen.')
  assert.equal(textOf(events), '\n\nBoth seen.')
})

test('what a cut attempt left in the conversation is taken back: the next run hears the turn once', async (t) => {
  const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'fine' } })
  const link = bareSidecar(runtime)
  const run = testEnvelope({ profile, prompt: 'first', sessionMcpUrl: tools.url })
  await collectRun(link, testEnvelope({ profile, prompt: 'before', sessionId: run.sessionId }))
  server.next({ toolCalls: [{ id: 'a', name: 'look', arguments: {} }] }, { text: 'half of it', hangAfter: 1 })
  const abort = new AbortController()
  await collectRun(link, run, abort.signal, (event) => event.type === 'assistant' && abort.abort())
  const replay: Replay = [
    { type: 'tool_call', id: 'a', name: 'look', arguments: {} },
    { type: 'tool_result', id: 'a', name: 'look', ok: true, content: 'seen' },
  ]
  server.next({ text: 'all of it' })
  const again = await collectRun(link, { ...run, attempt: 2, replay })
  assert.equal(terminalOf(again).type === 'result' && textOf(again), 'all of it')
  await collectRun(link, testEnvelope({ profile, prompt: 'after', sessionId: run.sessionId }))
  assert.deepEqual(conversation(server), [
    'user: before',
    'assistant: fine',
    'user: first',
    'assistant: a=look({})',
    'tool: seen',
    'assistant: all of it',
    'user: after',
  ])
  assert.equal(tools.calls.length, 1)
})

test('a first attempt that left nothing but its own half turn leaves no conversation behind', async (t) => {
  const { runtime, server } = await generalOnStandIn(t, { reply: { status: 400 } })
  const link = bareSidecar(runtime)
  const run = testEnvelope({ profile })
  server.next({ text: 'half of it', resetAfter: 1 })
  await collectRun(link, run)
  assert.equal(runtime.has!(run.sessionId), true)
  await collectRun(link, { ...run, attempt: 2, replay: [] })
  assert.equal(runtime.has!(run.sessionId), false)
})

test('model calls of former attempts count towards maxSteps', async (t) => {
  const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
  const { runtime, server } = await generalOnStandIn(t, { reply: { toolCalls: [{ name: 'look', arguments: {} }] } })
  const limited = { ...profile, limits: { maxSteps: 2 } }
  const replay: Replay = [...heard, { type: 'tool_result', id: 'b', name: 'look', ok: false, content: 'no' }]
  const envelope = testEnvelope({ profile: limited, sessionMcpUrl: tools.url, attempt: 2, replay })
  const terminal = terminalOf(await collectRun(bareSidecar(runtime), envelope))
  assert.equal(terminal.type === 'error' && terminal.code, 'max_steps')
  assert.equal(server.requests.length, 1)
})

test('calls to which a model server gives the same id again get different ones', async (t) => {
  const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'done' } })
  const same = { toolCalls: [{ id: 'call_0', name: 'look', arguments: {} }] }
  server.next(same, same)
  const events = await collectRun(bareSidecar(runtime), testEnvelope({ profile, sessionMcpUrl: tools.url }))
  assert.deepEqual(
    tools.calls.map((call) => call.callId),
    ['call_0', 'call_0_2'],
  )
  assert.deepEqual(
    events.flatMap((event) => (event.type === 'tool_result' ? [event.id] : [])),
    ['call_0', 'call_0_2'],
  )
})
