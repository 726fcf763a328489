import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { type ModelProvider, Models } from '#contracts/model'
import { entriesOf, startModelServer, testModelCalls } from '#testing'
import provider from '../index.ts'

const providerWith = async (t: Pick<TestContext, 'after'>, config: object): Promise<ModelProvider | undefined> =>
  (await entriesOf(t, Models, [{ name: 'anthropic', plugin: provider, config }])).get('anthropic')

const prompt = [{ role: 'user' as const, content: [{ type: 'text' as const, text: 'hi' }] }]
const key = 'key-canary'

test('without a key and a base URL the provider is absent', async (t) => {
  assert.equal(await providerWith(t, {}), undefined)
  assert.equal(await providerWith(t, { apiKey: '', baseUrl: '' }), undefined)
  assert.ok(await providerWith(t, { apiKey: key }))
})

test('a base URL that is none refuses to boot', async (t) => {
  await assert.rejects(providerWith(t, { baseUrl: 'localhost:1' }), /baseUrl expects an http or https URL/)
})

test('an answer is streamed with its text, tool calls and usage', async (t) => {
  const server = await startModelServer(t)
  server.next({ text: 'one two', toolCalls: [{ id: 'a', name: 'look', arguments: { at: 'it' } }] })
  const models = await providerWith(t, { apiKey: key, baseUrl: server.url })
  const { stream } = await models!.model('m').doStream({ prompt, maxOutputTokens: 9 })
  const parts: LanguageModelV4StreamPart[] = await Array.fromAsync(stream)
  assert.equal(parts.map((part) => (part.type === 'text-delta' ? part.delta : '')).join(''), 'one two')
  const call = parts.find((part) => part.type === 'tool-call')!
  assert.deepEqual([call.toolCallId, call.toolName, JSON.parse(call.input)], ['a', 'look', { at: 'it' }])
  const finish = parts.find((part) => part.type === 'finish')!
  assert.equal(finish.finishReason.unified, 'tool-calls')
  assert.equal(finish.usage.outputTokens.total, 2)
  const request = server.requests[0]!
  assert.equal(request.path, '/v1/messages')
  assert.equal(request.headers['x-api-key'], 'key-canary')
  assert.equal(request.body.max_tokens, 9)
})

testModelCalls(async (t, config) => (await providerWith(t, config))!)

test('the base URL is taken with and without its final /v1', async (t) => {
  const server = await startModelServer(t)
  for (const baseUrl of [server.url, `${server.url}/`, server.url.replace('/v1', '')]) {
    const models = await providerWith(t, { baseUrl })
    await models!.model('m').doGenerate({ prompt })
  }
  assert.deepEqual(
    server.requests.map(({ path }) => path),
    ['/v1/messages', '/v1/messages', '/v1/messages'],
  )
})
