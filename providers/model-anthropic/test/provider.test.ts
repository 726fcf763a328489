import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { type ModelProvider, Models } from '#contracts/model'
import { entriesOf, startModelServer, testModelCalls } from '#testing'
import provider from '../index.ts'

const providerWith = async (t: Pick<TestContext, 'after'>, config: object): Promise<ModelProvider | undefined> =>
  (await entriesOf(t, Models, [{ name: 'anthropic', plugin: provider, config }])).get('anthropic')

const prompt = [{ role: 'user' as const, content: [{ type: 'text' as const, text: 'hi' }] }]

testModelCalls(providerWith, { path: '/v1/messages', header: 'x-api-key', headerOf: (key) => key })

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
