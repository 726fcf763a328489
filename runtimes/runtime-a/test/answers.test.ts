import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  bareSidecar,
  collectRun,
  type EnvelopeFields,
  fake,
  type ModelReply,
  runtimeOf,
  startModelServer,
  startToolServer,
  terminalOf,
  testEnvelope,
  textOf,
} from '#testing'
import type { RunEvent, RuntimeEvent } from '#contracts/run-event'
import type { Runtime } from '#contracts/runtime'
import { ModelEgress } from '#contracts/model'
import runtimeA from '../index.ts'
import { model, onStandIn, withVendor } from './support.ts'

const timeout = 60_000
const run = (runtime: Runtime, prompt: string, fields: EnvelopeFields = {}): Promise<RunEvent[]> =>
  collectRun(bareSidecar(runtime), testEnvelope({ ...model, ...fields, prompt }))
const stamps = new Set(['runId', 'sessionId', 'seq', 'at'])
const shortly = (events: readonly RunEvent[]) =>
  events.map((event) => Object.fromEntries(Object.entries(event).filter(([key]) => !stamps.has(key))) as RuntimeEvent)

const schema = { type: 'object', properties: { answer: { type: 'number' } }, required: ['answer'] }
const responseFormat = { type: 'json_schema' as const, schema }
const handOver = (input: unknown): ModelReply => ({
  text: 'Let me see.',
  toolCalls: [{ id: 'toolu_out', name: 'StructuredOutput', arguments: input }],
})

withVendor(() => {
  test('a run with a tool, event by event', { timeout }, async (t) => {
    const tools = await startToolServer(t, { echo: async (input) => ({ text: `echo ${JSON.stringify(input)}` }) })
    const replies: ModelReply[] = [
      {
        text: 'Let me look.',
        reasoning: 'I could look',
        cachedTokens: 7,
        toolCalls: [{ id: 'toolu_1', name: 'mcp__runner__echo', arguments: { a: 1 } }],
      },
      { text: 'It is fine.' },
    ]
    const { runtime } = await onStandIn(t, { reply: () => replies.shift()! })
    const events = shortly(await run(runtime, 'go', { sessionMcpUrl: tools.url }))
    const [init, ...rest] = events
    assert.equal(init!.type, 'session_init')
    const usage = rest.flatMap((event) => (event.type === 'usage' ? [event] : []))
    assert.deepEqual(
      rest.filter(({ type }) => type !== 'usage'),
      [
        { type: 'assistant', text: 'Let ', delta: true },
        { type: 'assistant', text: 'me ', delta: true },
        { type: 'assistant', text: 'look.', delta: true },
        { type: 'tool_call', id: 'toolu_1', name: 'echo', arguments: { a: 1 } },
        { type: 'tool_result', id: 'toolu_1', name: 'echo', ok: true, content: 'echo {"a":1}' },
        { type: 'assistant', text: '\n\nIt ', delta: true },
        { type: 'assistant', text: 'is ', delta: true },
        { type: 'assistant', text: 'fine.', delta: true },
        { type: 'result', text: 'Let me look.\n\nIt is fine.', finishReason: 'stop' },
      ],
    )
    assert.equal(usage.length, 2)
    assert.deepEqual(
      usage.map(({ model: name, cachedTokens, outputTokens }) => ({ name, cachedTokens, outputTokens })),
      [
        { name: 'anthropic/stand-in', cachedTokens: 7, outputTokens: 3 },
        { name: 'anthropic/stand-in', cachedTokens: undefined, outputTokens: 3 },
      ],
    )
    assert.ok(usage.every(({ inputTokens }) => inputTokens > 7))
    assert.ok(usage[0]!.inputTokens > 7)
  })

  test('an answer in a form is one JSON value, and what was said on the way is none of it', { timeout }, async (t) => {
    const { runtime } = await onStandIn(t, { reply: handOver({ answer: 42 }) })
    const events = await run(runtime, 'give', { responseFormat })
    assert.deepEqual(
      shortly(events).filter(({ type }) => type !== 'usage' && type !== 'session_init'),
      [
        { type: 'assistant', text: '{"answer":42}', delta: true },
        { type: 'result', text: '{"answer":42}', finishReason: 'stop', output: { answer: 42 } },
      ],
    )
  })

  test('an answer that never has the form ends the run', { timeout }, async (t) => {
    for (const reply of [handOver({ answer: 'many' }), { text: '42' }]) {
      const { runtime } = await onStandIn(t, { reply })
      const events = await run(runtime, 'give', {
        responseFormat,
        profile: { ...model.profile, limits: { maxSteps: 20 } },
      })
      const terminal = terminalOf(events)
      assert.equal(terminal.type === 'error' && terminal.code, 'invalid_output')
      assert.equal(textOf(events), '')
    }
  })

  test(
    'images, PDF and text go along with a prompt; anything else is refused before a process is started',
    { timeout },
    async (t) => {
      const { runtime, server } = await onStandIn(t, { reply: { text: 'a dot' } })
      const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='
      const base64 = (text: string): string => Buffer.from(text).toString('base64')
      const attachments = [
        { mediaType: 'image/png', data: png },
        { mediaType: 'application/pdf', data: base64('%PDF-1.4'), name: 'a.pdf' },
        { mediaType: 'text/csv', data: base64('a,b'), name: 'a.csv' },
      ]
      const sessionId = 'sess-00000000-0000000b'
      await run(runtime, 'look', { attachments, sessionId })
      // And they are still there in the next turn, when the files of the first are gone.
      await run(runtime, 'again', { sessionId })
      for (const { body } of server.requests) {
        const [first] = body.messages as readonly {
          content: { type: string; text?: string; source?: { data: string } }[]
        }[]
        assert.equal(first!.content.find(({ type }) => type === 'image')?.source?.data, png)
        assert.equal(first!.content.find(({ type }) => type === 'document')?.source?.data, base64('%PDF-1.4'))
        assert.ok(first!.content.some(({ text }) => text?.trim() === 'File a.csv (text/csv):\na,b'))
      }
      const refused = await run(runtime, 'look', { attachments: [{ mediaType: 'video/mp4', data: png }] })
      const terminal = terminalOf(refused)
      assert.equal(terminal.type === 'error' && terminal.code, 'unsupported_attachment')
      assert.equal(server.requests.length, 2)
    },
  )

  test(
    'in a sandbox worker models are asked through the runner, with the worker’s token of now',
    { timeout },
    async (t) => {
      const server = await startModelServer(t, { reply: { text: 'hello' } })
      let token = 'token-1'
      const egress = { baseUrl: () => server.url, token: () => token, fetch: async () => assert.fail('not by us') }
      const config = { apiKey: 'sk-canary-of-ours', baseUrl: 'http://127.0.0.1:1' }
      const runtime = await runtimeOf(t, 'runtime_a', [
        { name: 'runtime-a', plugin: runtimeA, config },
        fake(ModelEgress, egress),
      ])
      assert.equal(textOf(await run(runtime, 'hi')), 'hello')
      token = 'token-2'
      assert.equal(textOf(await run(runtime, 'hi')), 'hello')
      assert.deepEqual(
        server.requests.map(({ headers }) => headers['x-api-key']),
        ['token-1', 'token-2'],
      )
    },
  )

  test('a conversation that gets too long is summarized, and what that uses is counted', { timeout }, async (t) => {
    const { runtime, server } = await onStandIn(t, {
      contextTokens: 9_000,
      reply: (body) => ({ text: JSON.stringify(body.messages).includes('summary') ? 'They said x.' : 'fine' }),
    })
    const sessionId = 'sess-00000000-0000000c'
    const turn = (): Promise<RunEvent[]> => run(runtime, `say ${'x '.repeat(6_000)}`, { sessionId })
    for (let i = 0; i < 2; i++) assert.equal(terminalOf(await turn()).type, 'result')
    const before = server.requests.length
    const events = await turn()
    assert.equal(terminalOf(events).type, 'result')
    assert.equal(events.filter(({ type }) => type === 'progress').length, 1)
    const answered = server.requests.slice(before).map(({ body }) => JSON.stringify(body.messages).length >> 2)
    const paid = answered.filter((tokens) => tokens <= 9_000).reduce((sum, tokens) => sum + tokens, 0)
    const usage = events.flatMap((event) => (event.type === 'usage' ? [event] : []))
    assert.ok(answered.length > 2, 'the vendor made calls of its own')
    assert.equal(
      usage.reduce((sum, { inputTokens }) => sum + inputTokens, 0),
      paid,
    )
    assert.ok(usage.every(({ model: name }) => name === 'anthropic/stand-in'))
    // One that needed no summary has told all by its calls.
    const { length } = (await run(runtime, 'short', { sessionId })).filter(({ type }) => type === 'usage')
    assert.equal(length, 1)
  })

  test('an answer that reached its length goes on in the middle of its sentence', { timeout }, async (t) => {
    const replies: ModelReply[] = [{ text: 'one two', stopReason: 'max_tokens' }]
    const { runtime } = await onStandIn(t, { reply: () => replies.shift() ?? { text: ' three' } })
    const events = await run(runtime, 'go')
    const terminal = terminalOf(events)
    assert.equal(terminal.type === 'result' && terminal.text, 'one two three')
    assert.equal(textOf(events), 'one two three')
  })
})
