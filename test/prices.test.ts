import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type TestContext, test } from 'node:test'
import { definePlugin } from '#kernel'
import { Prices } from '#contracts/prices'
import { bareSidecar, collectRun, runtimeOf, testEnvelope } from '#testing'
import prices from '../plugins/prices/index.ts'
import anthropic from '../providers/model-anthropic/index.ts'
import { RunUsage } from '../plugins/runs/usage.ts'
import builtin from '../providers/model-builtin/index.ts'
import openai from '../providers/model-openai/index.ts'
import general from '../runtimes/general/index.ts'

const data = (value: { type?: string; [more: string]: unknown }): string =>
  `${value.type === undefined ? '' : `event: ${value.type}\n`}data: ${JSON.stringify(value)}\n\n`

// As the two vendors count: 1,000 input tokens, 400 of them from a cache, and 10 of output. Anthropic leaves cached ones
// out of its input tokens, OpenAI counts them in.
const chunk = (more: object) =>
  data({ id: 'c', object: 'chat.completion.chunk', created: 1, model: 'served-name', ...more })
const answers: Readonly<Record<string, string>> = {
  '/v1/chat/completions': [
    chunk({ choices: [{ index: 0, delta: { role: 'assistant', content: 'hi' }, finish_reason: null }] }),
    chunk({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] }),
    chunk({
      choices: [],
      usage: {
        prompt_tokens: 1_000,
        completion_tokens: 10,
        total_tokens: 1_010,
        prompt_tokens_details: { cached_tokens: 400 },
      },
    }),
    'data: [DONE]\n\n',
  ].join(''),
  '/v1/messages': [
    data({
      type: 'message_start',
      message: {
        id: 'm',
        type: 'message',
        role: 'assistant',
        model: 'served-name',
        content: [],
        stop_reason: null,
        stop_sequence: null,
        usage: { input_tokens: 600, cache_read_input_tokens: 400, cache_creation_input_tokens: 0, output_tokens: 1 },
      },
    }),
    data({ type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } }),
    data({ type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'hi' } }),
    data({ type: 'content_block_stop', index: 0 }),
    data({
      type: 'message_delta',
      delta: { stop_reason: 'end_turn', stop_sequence: null },
      usage: { output_tokens: 10 },
    }),
    data({ type: 'message_stop' }),
  ].join(''),
}

async function vendors(t: TestContext): Promise<string> {
  const server = createServer((request, response) => {
    request.resume().on('end', () => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).end(answers[request.url ?? ''])
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => server.close())
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

test('what the real providers report is priced under the names that profiles use', async (t) => {
  const url = await vendors(t)
  const found: Prices[] = []
  const probe = definePlugin({
    name: 'price-probe',
    requires: { prices: Prices },
    setup: async ({ deps }) => (found.push(deps.prices), {}),
  })
  const price = { inputCentsPerMillion: 100, cachedInputCentsPerMillion: 10, outputCentsPerMillion: 1_000 }
  const free = { inputCentsPerMillion: 0, outputCentsPerMillion: 0 }
  const runtime = await runtimeOf(t, 'general', [
    general,
    builtin,
    { name: 'openai', plugin: openai, config: { apiKey: 'k', baseUrl: `${url}/v1` } },
    { name: 'anthropic', plugin: anthropic, config: { apiKey: 'k', baseUrl: `${url}/v1` } },
    {
      name: 'prices',
      plugin: prices,
      config: { models: { 'openai/m*': price, 'anthropic/m': price, 'builtin/*': free } },
    },
    probe,
  ])
  const costOf = async (model: string): Promise<number | undefined> => {
    const usage = new RunUsage(found[0])
    const events = await collectRun(bareSidecar(runtime), testEnvelope({ profile: { model } }))
    assert.equal(events.at(-1)!.type, 'result', JSON.stringify(events.at(-1)))
    for (const event of events) usage.read(event.type, Buffer.from(JSON.stringify(event)), event.seq)
    assert.ok(usage.calls, 'usage was reported')
    return usage.calls.costCents
  }
  // 600 × 100 + 400 × 10 + 10 × 1,000 millionths of a cent.
  assert.equal(await costOf('openai/m-2'), 0.074)
  assert.equal(await costOf('anthropic/m'), 0.074)
  assert.equal(await costOf('openai/other'), undefined)
  assert.equal(await costOf('builtin/demo'), 0)
})
