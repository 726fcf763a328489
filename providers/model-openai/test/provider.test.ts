import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { test, type TestContext } from 'node:test'
import { type ModelProvider, Models } from '#contracts/model'
import { entriesOf, startModelServer, testModelCalls } from '#testing'
import provider from '../index.ts'

const providerWith = async (t: Pick<TestContext, 'after'>, config: object): Promise<ModelProvider | undefined> =>
  (await entriesOf(t, Models, [{ name: 'openai', plugin: provider, config }])).get('openai')

const prompt = [{ role: 'user' as const, content: [{ type: 'text' as const, text: 'hi' }] }]

test('a schema for the answer is passed on, as strict only where the vendor takes it so', async (t) => {
  const server = await startModelServer(t)
  const models = await providerWith(t, { baseUrl: server.url })
  const point = { type: 'object', properties: { x: { type: 'number' } }, required: ['x'], additionalProperties: false }
  const cases: [object, boolean][] = [
    [point, true],
    [{ ...point, properties: { x: { anyOf: [{ type: 'null' }, { $ref: '#/$defs/p' }] } }, $defs: { p: point } }, true],
    [{ ...point, properties: { x: { type: 'array', items: point } } }, true],
    [{ ...point, required: [] }, false],
    [{ ...point, additionalProperties: undefined }, false],
    [{ ...point, properties: { x: { type: 'string', pattern: 'a' } } }, false],
    [{ ...point, properties: { x: { type: 'object' } } }, false],
    [{ type: 'array', items: point }, false],
  ]
  for (const [schema, strict] of cases) {
    const responseFormat = { type: 'json' as const, name: 'point', schema }
    await Array.fromAsync((await models!.model('m').doStream({ prompt, responseFormat })).stream)
    const sent = server.requests.at(-1)!.body['response_format'] as { type: string; json_schema: object }
    assert.deepEqual(sent.json_schema, { schema: JSON.parse(JSON.stringify(schema)), strict, name: 'point' })
  }
  await Array.fromAsync((await models!.model('m').doStream({ prompt })).stream)
  assert.equal(server.requests.at(-1)!.body['response_format'], undefined)
})

test('text of any kind arrives in order, before the finish, whatever the line ends and however the bytes are cut', async (t) => {
  const deltas = ['plain', ' "quoted"\n', '\u{1f600} \u00e4', ' two\r\nlines', ' end']
  const frames = deltas.map((content) => ({ choices: [{ index: 0, delta: { content }, finish_reason: null }] }))
  const last = { choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] }
  for (const end of ['\n\n', '\r\n\r\n']) {
    const bytes = Buffer.from([...frames, last].map((frame) => `data: ${JSON.stringify(frame)}${end}`).join(''))
    const server = createServer((_request, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      const write = (at: number): void => {
        if (at >= bytes.length) response.end(`data: [DONE]${end}`)
        else response.write(bytes.subarray(at, at + 7), () => write(at + 7))
      }
      write(0)
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    t.after(() => server.close())
    const { port } = server.address() as { port: number }
    const models = await providerWith(t, { baseUrl: `http://127.0.0.1:${port}/v1` })
    const { stream } = await models!.model('m').doStream({ prompt })
    const parts = await Array.fromAsync(stream)
    assert.deepEqual(
      parts.flatMap((part) => (part.type === 'text-delta' ? [part.delta] : [])),
      deltas,
    )
    assert.equal(parts.at(-1)?.type, 'finish')
  }
})

test('text that arrived before the connection broke is read before the error', async (t) => {
  const server = createServer((_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    const frame = { choices: [{ index: 0, delta: { content: 'word ' }, finish_reason: null }] }
    response.write(`data: ${JSON.stringify(frame)}\n\n`.repeat(50), () => setImmediate(() => response.destroy()))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const { port } = server.address() as { port: number }
  const models = await providerWith(t, { baseUrl: `http://127.0.0.1:${port}/v1` })
  const { stream } = await models!.model('m').doStream({ prompt })
  let words = 0
  await assert.rejects(async () => {
    for await (const part of stream) {
      if (part.type === 'text-delta') words++
      if (part.type === 'error') throw part.error
    }
  })
  assert.equal(words, 50)
})

testModelCalls(providerWith, {
  path: '/v1/chat/completions',
  header: 'authorization',
  headerOf: (key) => `Bearer ${key}`,
})
