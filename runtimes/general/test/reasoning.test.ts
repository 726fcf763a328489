import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { SharedV4ProviderMetadata } from '@ai-sdk/provider'
import { bareSidecar, collectRun, startToolServer, terminalOf, testEnvelope, textOf } from '#testing'
import type { ReasoningPart } from '../messages.ts'
import { createReasoning } from '../reasoning.ts'
import { generalOnStandIn, model, signed, stages } from './support.ts'

const sessionId = 'sess-00000000-0000000f'
const thoughts = (events: Parameters<typeof stages>[0]): string =>
  stages(events, 'reasoning')
    .map(({ message }) => message)
    .join('')

for (const { profile } of [model, signed]) {
  test(`what ${profile.model} thinks is shown as progress in a few events, and is no part of the answer`, async (t) => {
    const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'It is 42.' } })
    const reasoning = 'Let me think about this for a while. '.repeat(40)
    server.next({ reasoning, text: 'It is 42.' })
    const events = await collectRun(bareSidecar(runtime), testEnvelope({ profile }))
    assert.equal(thoughts(events), reasoning)
    assert.ok(stages(events, 'reasoning').length <= 5)
    const terminal = terminalOf(events)
    assert.equal(terminal.type === 'result' && terminal.text, 'It is 42.')
    assert.equal(textOf(events), 'It is 42.')
    const last = events.findLastIndex((event) => event.type === 'progress')
    assert.ok(last < events.findIndex((event) => event.type === 'assistant'), 'thoughts come before the answer')
  })
}

test('reasoning is shown up to a bound, and not at all when the role says so', async (t) => {
  const reasoning = 'thought '.repeat(20_000)
  const { runtime, server } = await generalOnStandIn(t)
  server.next({ reasoning, text: 'so' })
  assert.equal(thoughts(await collectRun(bareSidecar(runtime), testEnvelope(model))).length, 40_000)
  const silent = await generalOnStandIn(t, {}, { reasoningEvents: false })
  silent.server.next({ reasoning, text: 'so' })
  assert.equal(stages(await collectRun(bareSidecar(silent.runtime), testEnvelope(model)), 'reasoning').length, 0)
})

test('signed reasoning goes back to its vendor with the calls that it led to, also in later runs and on another host', async (t) => {
  const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'fine' } })
  const call = { toolCalls: [{ id: 'a', name: 'look', arguments: {} }] }
  server.next(
    { reasoning: 'I should look.', text: 'Let me look.', ...call },
    { reasoning: 'Seen.', text: 'It is there.' },
  )
  const session = { ...signed, sessionId }
  await collectRun(bareSidecar(runtime), testEnvelope({ ...session, sessionMcpUrl: tools.url }))
  const asked = server.requests.at(-1)!.body.messages[1]!.content as { type: string; signature?: string }[]
  assert.deepEqual(
    asked.map(({ type }) => type),
    ['thinking', 'text', 'tool_use'],
  )
  assert.equal(asked[0]!.signature, 'signed:14')
  const bundle = (await runtime.exportState!(sessionId))!
  assert.equal(JSON.parse(Buffer.from(bundle.bytes).toString()).version, 2)
  const other = await generalOnStandIn(t, { reply: { text: 'fine' } })
  await other.runtime.hydrate!(sessionId, bundle)
  await collectRun(bareSidecar(other.runtime), testEnvelope({ ...session, prompt: 'and?' }))
  const sent = JSON.stringify(other.server.requests[0]!.body.messages)
  assert.match(sent, /"signature":"signed:14".*"signature":"signed:5"/)
})

test('unsigned reasoning is given back within its turn only', async (t) => {
  const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'fine' } })
  server.next({ reasoning: 'I should look.', toolCalls: [{ id: 'a', name: 'look', arguments: {} }] })
  const session = { ...model, sessionId }
  await collectRun(bareSidecar(runtime), testEnvelope({ ...session, sessionMcpUrl: tools.url }))
  assert.equal(server.requests.at(-1)!.body.messages[1]!['reasoning_content'], 'I should look.')
  await collectRun(bareSidecar(runtime), testEnvelope({ ...session, prompt: 'and?' }))
  assert.doesNotMatch(JSON.stringify(server.requests.at(-1)!.body), /I should look/)
  assert.equal(JSON.parse(Buffer.from((await runtime.exportState!(sessionId))!.bytes).toString()).version, 1)
})

test('a model that only thought, and failed then, has said nothing', async (t) => {
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'fine' } })
  server.next({ reasoning: 'Hm.', text: '', inBandError: 'overloaded' })
  const session = { ...signed, sessionId }
  assert.equal(terminalOf(await collectRun(bareSidecar(runtime), testEnvelope(session))).type, 'error')
  assert.equal(await runtime.exportState!(sessionId), undefined)
})

test('how much a model thinks is what the role says for it', async (t) => {
  const { runtime, server } = await generalOnStandIn(t, {}, { models: { 'stand-in/*': { reasoning: 'high' } } })
  await collectRun(bareSidecar(runtime), testEnvelope(model))
  assert.equal(server.requests[0]!.body['reasoning_effort'], 'high')
})

test('of one run so much reasoning is kept, and what is not whole has no signature', () => {
  const parts: ReasoningPart[] = []
  const reasoning = createReasoning({ addReasoning: (part) => void parts.push(part) }, false)
  const think = (delta: string, providerMetadata: SharedV4ProviderMetadata = { v: { signature: 's' } }): void => {
    reasoning.take({ type: 'reasoning-start', id: '0' })
    reasoning.take({ type: 'reasoning-delta', id: '0', delta })
    reasoning.take({ type: 'reasoning-end', id: '0', providerMetadata })
  }
  const long = 'x'.repeat(900_000)
  for (let step = 0; step < 6; step++) think(long)
  assert.deepEqual(
    parts.map(({ text, providerOptions }) => [text.length === long.length, providerOptions !== undefined]),
    [...Array.from({ length: 4 }, () => [true, true]), [false, false]],
  )
  assert.ok(parts.reduce((sum, { text }) => sum + text.length, 0) <= 4_000_000)

  // However little there is in each part, and if it is all signature.
  for (const signature of ['', 'y'.repeat(100_000)]) {
    parts.length = 0
    const other = createReasoning({ addReasoning: (part) => void parts.push(part) }, false)
    for (let i = 0; i < 50_000; i++)
      other.take({ type: 'reasoning-start', id: `${i}`, providerMetadata: { v: { signature } } })
    assert.ok(parts.length < 20_000 && JSON.stringify(parts).length < 8_000_000)
  }
})
