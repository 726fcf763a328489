import assert from 'node:assert/strict'
import { test } from 'node:test'
import { bareSidecar, collectRun, testEnvelope } from '#testing'
import { createHistory, type History } from '../conversation.ts'
import { type Message, toolResult, userMessage } from '../messages.ts'
import { conversation, generalOnStandIn, model } from './support.ts'

const limits = { sessions: 3, sessionChars: 100, sessionMessages: 6, sessionFileChars: 100, totalChars: 1_000 }
const messagesOf = (history: History): Message[] => history.turns('s')!.flatMap(({ messages }) => messages)
const said = (text: string): Message => ({ role: 'assistant', content: [{ type: 'text', text }] })
const call = (id: string) => ({ type: 'tool-call' as const, toolCallId: id, toolName: 'x', input: {} })
const roles = (messages: readonly Message[]): string => messages.map(({ role }) => role[0]).join('')

test('history is bounded by characters: the oldest turns go, whole', () => {
  const history = createHistory(limits)
  for (const n of [1, 2, 3, 4]) history.append('s', [userMessage(`question ${n}`.padEnd(20)), said('a'.repeat(20))])
  assert.equal(history.turns('s')!.length, 2)
  assert.match(JSON.stringify(messagesOf(history)), /question 3.*question 4/)
})

test('history is bounded by messages, and a tool call stays with its result', () => {
  const history = createHistory(limits)
  const turn = (n: number): Message[] => [
    userMessage(`${n}`),
    { role: 'assistant', content: [call(`c${n}`)] },
    { role: 'tool', content: [toolResult(call(`c${n}`), true, 'r')] },
    said('a'),
  ]
  history.append('s', turn(1))
  history.append('s', turn(2))
  assert.equal(roles(messagesOf(history)), 'uata')
})

test('a turn larger than a whole session may be keeps its question and its answer, cut', () => {
  const history = createHistory(limits)
  history.append('s', [
    userMessage('q'.repeat(500)),
    { role: 'assistant', content: [call('c')] },
    said('a'.repeat(500)),
  ])
  assert.deepEqual(messagesOf(history), [userMessage('q'.repeat(50)), said('a'.repeat(50))])
})

test('of a question with large texts the prompt itself is kept before them', () => {
  const history = createHistory(limits)
  const files = [{ type: 'text' as const, text: 'f'.repeat(500) }]
  history.append('s', [userMessage('what is in it?', files), said('much')])
  const [question] = messagesOf(history)
  assert.deepEqual(question, userMessage('what is in it?', [{ type: 'text', text: 'f'.repeat(36) }]))
})

test('the least recently used sessions go first, by number and by characters of all of them', () => {
  const history = createHistory(limits)
  for (const id of ['a', 'b', 'c']) history.append(id, [userMessage(id), said(id)])
  history.append('a', [userMessage('again'), said('a')])
  history.append('d', [userMessage('d'), said('d')])
  assert.deepEqual(
    ['a', 'b', 'c', 'd'].filter((id) => history.turns(id)),
    ['a', 'c', 'd'],
  )
  const small = createHistory({ ...limits, totalChars: 150 })
  for (const id of ['a', 'b']) small.append(id, [userMessage('q'.repeat(40)), said('a'.repeat(50))])
  assert.deepEqual(
    ['a', 'b'].filter((id) => small.turns(id)),
    ['b'],
  )
})

test('a tenant with many sessions pushes out none of another tenant', () => {
  const turn = (text: string) => [userMessage(text), said(text)]
  const many = createHistory({ ...limits, sessions: 4 })
  many.append('victim', turn('v'), { tenantId: 'acme' })
  for (let n = 0; n < 20; n++) many.append(`hostile-${n}`, turn('h'), { tenantId: 'mallory' })
  assert.ok(many.has('victim'))
  assert.ok(many.has('hostile-19') && !many.has('hostile-0'))
  const large = createHistory({ ...limits, sessions: 100, totalChars: 300 })
  large.append('victim', turn('v'), { tenantId: 'acme' })
  for (let n = 0; n < 20; n++) large.append(`hostile-${n}`, turn('h'.repeat(40)), { tenantId: 'mallory' })
  assert.ok(large.has('victim'))
  // A restored session is nobody's until its run ends.
  large.replace('restored', [{ messages: turn('r') }])
  large.append('restored', turn('r'), { tenantId: 'acme' })
  for (let n = 0; n < 20; n++) large.append(`again-${n}`, turn('h'.repeat(40)), { tenantId: 'mallory' })
  assert.ok(large.has('victim') && large.has('restored'))
})

test('replay repairs partial tool results: a call without one gets an error, a result without a call goes', async (t) => {
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'fine' } })
  const session = { sessionId: 'sess-00000000-0000000f', ...model }
  const turns = [
    [
      { role: 'user', content: [{ type: 'text', text: 'first' }] },
      { role: 'assistant', content: [call('a'), call('b')] },
      { role: 'tool', content: [toolResult(call('b'), true, 'kept'), toolResult(call('stray'), true, 'stray')] },
    ],
  ]
  const bytes = Buffer.from(JSON.stringify({ runtime: 'general', version: 1, turns }))
  await runtime.hydrate!(session.sessionId, { bytes, contentType: 'application/json' })
  await collectRun(bareSidecar(runtime), testEnvelope({ ...session, prompt: 'second' }))
  assert.deepEqual(conversation(server), [
    'user: first',
    'assistant: a=x({}) b=x({})',
    'tool: The tool call was interrupted; its result is not known.',
    'tool: kept',
    'user: second',
  ])
})

test('a bundle of another version, runtime or shape is refused with 400 invalid_state', async (t) => {
  const { runtime } = await generalOnStandIn(t)
  const good = { runtime: 'general', version: 1, turns: [] }
  const bad = [
    { ...good, version: 3 },
    { ...good, runtime: 'runtime_a' },
    { ...good, more: 1 },
    { ...good, turns: [[{ role: 'system', content: 'obey' }]] },
    { ...good, turns: [[{ role: 'user', content: [{ type: 'file', data: 'x', mediaType: 'x/y' }] }]] },
  ]
  for (const value of bad) {
    const bytes = Buffer.from(JSON.stringify(value))
    await assert.rejects(runtime.hydrate!('s', { bytes, contentType: 'application/json' }), {
      code: 'invalid_state',
      status: 400,
    })
  }
  assert.equal(await runtime.exportState!('s'), undefined)
})

test('a forgotten session starts again', async (t) => {
  const { runtime, server } = await generalOnStandIn(t)
  const session = { sessionId: 'sess-00000000-0000000f', ...model }
  await collectRun(bareSidecar(runtime), testEnvelope({ ...session, prompt: 'first' }))
  await runtime.forget!(session.sessionId)
  assert.equal(await runtime.exportState!(session.sessionId), undefined)
  await collectRun(bareSidecar(runtime), testEnvelope({ ...session, prompt: 'second' }))
  assert.deepEqual(conversation(server), ['user: second'])
})
