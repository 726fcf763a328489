import assert from 'node:assert/strict'
import { test } from 'node:test'
import { bareSidecar, collectRun, startToolServer, terminalOf, testEnvelope } from '#testing'
import type { ResponseFormat } from '#contracts/prompt'
import { conversation, generalOnStandIn, model, stages } from './support.ts'

const sessionId = 'sess-00000000-0000000f'
const schema = {
  type: 'object',
  properties: { city: { type: 'string' }, degrees: { type: 'integer' } },
  required: ['city', 'degrees'],
  additionalProperties: false,
}
const responseFormat: ResponseFormat = { type: 'json_schema', name: 'weather', schema }
const good = '{"city":"Oslo","degrees":3}'
const value = { city: 'Oslo', degrees: 3 }

test('the form of an answer is passed to the model, and the result carries the value', async (t) => {
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: good } })
  const terminal = terminalOf(await collectRun(bareSidecar(runtime), testEnvelope({ ...model, responseFormat })))
  assert.ok(terminal.type === 'result')
  assert.deepEqual([terminal.text, terminal.output], [good, value])
  const { json_schema: asked } = server.requests[0]!.body['response_format'] as { json_schema: Record<string, unknown> }
  assert.deepEqual([asked['name'], asked['schema']], ['weather', schema])
})

test('a run without a form has no output, and asks for none', async (t) => {
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: good } })
  const terminal = terminalOf(await collectRun(bareSidecar(runtime), testEnvelope(model)))
  assert.equal('output' in terminal, false)
  assert.equal(server.requests[0]!.body['response_format'], undefined)
})

test('JSON in a code block, and behind the text of earlier steps, is an answer', async (t) => {
  const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: `\`\`\`json\n${good}\n\`\`\`` } })
  server.next({ text: 'Let me look.', toolCalls: [{ name: 'look', arguments: {} }] })
  const envelope = testEnvelope({ ...model, responseFormat, sessionMcpUrl: tools.url })
  const terminal = terminalOf(await collectRun(bareSidecar(runtime), envelope))
  assert.ok(terminal.type === 'result')
  assert.deepEqual(terminal.output, value)
  assert.match(terminal.text, /^Let me look\./)
})

for (const [why, bad, words] of [
  ['that is no JSON', 'It is cold.', /It is not JSON/],
  ['that does not fit', '{"city":"Oslo"}', /must have required property 'degrees'/],
] as const) {
  test(`an answer ${why} is asked for once more, and the better one takes its place`, async (t) => {
    const { runtime, server } = await generalOnStandIn(t, { reply: { text: good } })
    server.next({ text: bad })
    const link = bareSidecar(runtime)
    const events = await collectRun(link, testEnvelope({ ...model, sessionId, responseFormat, prompt: 'weather?' }))
    const terminal = terminalOf(events)
    assert.ok(terminal.type === 'result')
    assert.deepEqual([terminal.text, terminal.output], [good, value])
    const [invalid] = stages(events, 'output_invalid')
    assert.equal(invalid!.supersedes, 1)
    const kept = events.flatMap((event) => (event.type === 'assistant' && event.seq > invalid!.seq ? [event.text] : []))
    assert.equal(kept.join(''), good)
    const asked = conversation(server)
    assert.deepEqual(asked.slice(0, 2), ['user: weather?', `assistant: ${bad}`])
    assert.match(asked[2]!, words)
    assert.equal(events.filter((event) => event.type === 'usage').length, 2)
    await collectRun(link, testEnvelope({ ...model, sessionId, prompt: 'thanks' }))
    assert.deepEqual(conversation(server), ['user: weather?', `assistant: ${good}`, 'user: thanks'])
  })
}

test('a second answer that does not fit ends the run in invalid_output', async (t) => {
  const { runtime, server } = await generalOnStandIn(t, { reply: { text: 'no' } })
  server.next({ text: 'first' }, { text: 'second' })
  const link = bareSidecar(runtime)
  const asked = testEnvelope({ ...model, sessionId, responseFormat, prompt: 'weather?' })
  const terminal = terminalOf(await collectRun(link, asked))
  assert.ok(terminal.type === 'error')
  assert.equal(terminal.code, 'invalid_output')
  assert.equal(server.requests.length, 2)
  await collectRun(link, testEnvelope({ ...model, sessionId, prompt: 'why?' }))
  assert.deepEqual(conversation(server), ['user: weather?', 'assistant: second', 'user: why?'])
})

test('a schema that does not compile ends the run before the model is called', async (t) => {
  const { runtime, server } = await generalOnStandIn(t)
  const format = { ...responseFormat, schema: { type: 'nonsense' } }
  const terminal = terminalOf(
    await collectRun(bareSidecar(runtime), testEnvelope({ ...model, responseFormat: format })),
  )
  assert.equal(terminal.type === 'error' && terminal.code, 'invalid_response_format')
  assert.equal(server.requests.length, 0)
})
