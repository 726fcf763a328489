import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { bareSidecar, collectRun, startToolServer, terminalOf, testEnvelope, testProfile } from '#testing'
import { createContext } from '../context.ts'
import { createHistory } from '../conversation.ts'
import { type Message, toolResult, userMessage } from '../messages.ts'
import { generalOnStandIn, model, pixel, signed, stages } from './support.ts'

const call = (id: string) => ({ type: 'tool-call' as const, toolCallId: id, toolName: 'x', input: {} })
const said = (text: string): Message => ({ role: 'assistant', content: [{ type: 'text', text }] })
const turn = (n: number, chars: number): Message[] => [userMessage(`question ${n}`), said('a'.repeat(chars))]
const step = (id: string, chars: number): Message[] => [
  { role: 'assistant', content: [call(id)] },
  { role: 'tool', content: [toolResult(call(id), true, 'r'.repeat(chars))] },
]
const turnsOf = (...turns: Message[][]) => {
  const history = createHistory()
  for (const messages of turns) history.append('s', messages)
  return history.turns('s')!
}
const windowOf = (tokens: number, before: ReturnType<typeof turnsOf>, instructions = '') =>
  createContext(testProfile('p', { instructions, limits: { maxOutputTokens: 10 } }), tokens, before)
const paired = (messages: readonly Message[]): boolean =>
  messages.every(
    (message, i) =>
      message.role !== 'tool' ||
      message.content.every(({ toolCallId }) =>
        JSON.stringify(messages[i - 1]).includes(`"toolCallId":"${toolCallId}"`),
      ),
  )

test('what fits is passed on as it is, without a word', () => {
  const before = turnsOf(turn(1, 100), turn(2, 100))
  const now = [userMessage('now')]
  const { messages, event } = windowOf(1_000, before).fit(now, undefined)
  assert.equal(event, undefined)
  assert.deepEqual(messages, [...before.flatMap((one) => one.messages), ...now])
})

test('the oldest turns go first, whole, and that is told once', () => {
  const context = windowOf(400, turnsOf(turn(1, 800), [...turn(2, 10), ...step('a', 1_200)], turn(3, 400)))
  const now = [userMessage('now')]
  const first = context.fit(now, undefined)
  assert.deepEqual([first.event?.type, stageOf(first.event)], ['progress', 'context_trimmed 2 0'])
  assert.match(JSON.stringify(first.messages), /question 3.*now/)
  assert.doesNotMatch(JSON.stringify(first.messages), /question [12]|"tool"/)
  assert.equal(context.fit([...now, ...step('b', 20)], undefined).event, undefined, 'nothing more was left out')
})

const stageOf = (event: unknown): string => {
  const { stage, droppedTurns, cutResults } = event as Record<string, unknown>
  return `${String(stage)} ${String(droppedTurns)} ${String(cutResults)}`
}

test('then the oldest results of this turn are cut, every call keeps its result, the question and the instructions stay', () => {
  const now = [userMessage('the question'), ...step('a', 4_000), ...step('b', 4_000), ...step('c', 2_000)]
  const { messages, event } = windowOf(1_000, turnsOf(turn(1, 100))).fit(now, undefined)
  assert.equal(stageOf(event), 'context_trimmed 1 2')
  assert.ok(paired(messages))
  assert.deepEqual(messages[0], now[0])
  assert.match(JSON.stringify(messages[2]), /3600 characters were cut/)
  assert.deepEqual(messages.slice(5), now.slice(5), 'the newest result is whole')
  assert.equal(JSON.stringify(now).length > 10_000, true, 'what the run keeps is not touched')
})

test('instructions, tools and the room for the answer count; an image counts as what vendors count', () => {
  const before = turnsOf(turn(1, 1_200))
  assert.equal(windowOf(400, before).fit([userMessage('now')], undefined).event, undefined)
  const long = windowOf(400, before, 'i'.repeat(400)).fit([userMessage('now')], undefined)
  assert.ok(long.event)
  const tools = [{ type: 'function' as const, name: 'x', description: 'd'.repeat(400), inputSchema: {} }]
  assert.ok(windowOf(400, before).fit([userMessage('now')], tools).event)
  const image = { type: 'file' as const, mediaType: 'image/png', data: { type: 'data' as const, data: pixel } }
  assert.ok(windowOf(1_500, before).fit([userMessage('now', [image])], undefined).event)
  assert.equal(windowOf(2_500, before).fit([userMessage('now', [image])], undefined).event, undefined)
})

test('images that tools gave are bounded in bytes, however few tokens they are; the newest and those of the user stay', () => {
  const image = (data: string) => ({
    type: 'file' as const,
    mediaType: 'image/png',
    data: { type: 'data' as const, data },
  })
  const large = 'A'.repeat(4_000_000)
  const shown = (n: number) => [...step(`call-${n}`, 10), userMessage(`shown ${n}`, [image(large)])]
  const now = [userMessage('look', [image(pixel)]), ...shown(1), ...shown(2), ...shown(3)]
  const { turn, event } = windowOf(1_000_000, []).fit(now, undefined)
  assert.equal(event, undefined, 'no result was cut')
  const files = turn!.map(({ content }) => content.filter(({ type }) => type === 'file').length)
  assert.deepEqual(files, [1, 0, 0, 0, 0, 0, 1, 0, 0, 1])
  assert.equal(windowOf(1_000_000, []).fit(turn!, undefined).turn, undefined)
})

test('reasoning of another model than the one that is asked is left out', () => {
  const history = createHistory()
  const thought: Message = {
    role: 'assistant',
    content: [
      { type: 'reasoning', text: 'hm', providerOptions: { v: { signature: 's' } } },
      { type: 'text', text: 'so' },
    ],
  }
  for (const name of ['one/m', 'other/m']) history.append('s', [userMessage(name), thought], { model: name })
  const context = createContext(testProfile('p', { model: 'one/m' }), 10_000, history.turns('s')!)
  const kinds = context
    .fit([userMessage('now')], undefined)
    .messages.map(({ content }) => content.map(({ type }) => type))
  assert.deepEqual(kinds, [['text'], ['reasoning', 'text'], ['text'], ['text'], ['text']])
})

/** Runs that fill a conversation, then one more. */
async function filled(t: TestContext, config: object, contextTokens: number, profile: object = model.profile) {
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'word '.repeat(100) }, contextTokens }, config)
  const link = bareSidecar(runtime)
  const { sessionId } = testEnvelope()
  const ask = (prompt: string) => collectRun(link, testEnvelope({ profile, sessionId, prompt }))
  let events = await ask('first')
  for (let i = 0; i < 8; i++) events = await ask(`question ${i}`)
  return { events, server }
}

test('a run stays within the context that its model is configured with', async (t) => {
  const { events, server } = await filled(
    t,
    { models: { 'stand-in/*': { contextTokens: 5_000 }, 'stand-in/m': { contextTokens: 1_000 } } },
    100_000,
  )
  const [trimmed] = stages(events, 'context_trimmed')
  assert.ok(trimmed && trimmed.droppedTurns! > 0)
  const { messages } = server.requests.at(-1)!.body
  assert.ok(messages.length < 15 && JSON.stringify(messages).length < 4_500)
  assert.equal(messages.at(-1)!.content, 'question 7')
})

for (const profile of [model.profile, signed.profile]) {
  test(`a prompt that ${profile.model} refuses as too long is tried once more with less`, async (t) => {
    const { events, server } = await filled(t, {}, 700, profile)
    assert.equal(terminalOf(events).type, 'result')
    assert.equal(stages(events, 'context_trimmed').length, 1)
    const refused = server.requests.at(-2)!.body.messages
    const taken = server.requests.at(-1)!.body.messages
    assert.ok(taken.length < refused.length)
    assert.match(JSON.stringify(taken.at(-1)), /question 7/)
  })
}

test('a prompt that cannot be made shorter ends the run, and is not sent twice', async (t) => {
  const { runtime, server } = await generalOnStandIn(t, { contextTokens: 10 })
  const events = await collectRun(bareSidecar(runtime), testEnvelope({ ...model, prompt: 'x'.repeat(100) }))
  const terminal = terminalOf(events)
  assert.ok(terminal.type === 'error')
  assert.match(terminal.message, /400 \(context_length_exceeded\)/)
  assert.equal(server.requests.length, 1)
})

test('a run that reads too much cuts its own older results, and keeps only what is left of them', async (t) => {
  const tools = await startToolServer(t, { read: async () => ({ text: 'data '.repeat(400) }) })
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'done' } }, { contextTokens: 2_000 })
  const read = { toolCalls: [{ name: 'read', arguments: {} }] }
  server.next(read, read, read, read, read)
  const profile = { ...model.profile, limits: { maxOutputTokens: 100 } }
  const link = bareSidecar(runtime)
  const envelope = testEnvelope({ profile, sessionMcpUrl: tools.url })
  const events = await collectRun(link, envelope)
  assert.equal(terminalOf(events).type, 'result')
  assert.ok(stages(events, 'context_trimmed').some(({ cutResults }) => cutResults! > 0))
  const results = server.requests.at(-1)!.body.messages.filter(({ role }) => role === 'tool')
  assert.equal(results.length, 5)
  assert.match(String(results[0]!.content), /characters were cut/)
  assert.doesNotMatch(String(results[4]!.content), /characters were cut/)
  await collectRun(link, testEnvelope({ profile, sessionId: envelope.sessionId, prompt: 'and now' }))
  const later = server.requests.at(-1)!.body.messages.filter(({ role }) => role === 'tool')
  assert.deepEqual(later, results, 'with whole results the turn would have had no room')
})
