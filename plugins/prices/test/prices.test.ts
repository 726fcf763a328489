import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { definePlugin } from '#kernel'
import { Prices } from '#contracts/prices'
import type { Usage } from '#contracts/run-event'
import { testKernel } from '#testing'
import prices from '../index.ts'

/** Prices of a role file without the public table, unless `more` says otherwise. */
async function pricesWith(t: Pick<TestContext, 'after'>, models: object, more: object = {}): Promise<Prices> {
  const found: Prices[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { prices: Prices },
    setup: async ({ deps }) => (found.push(deps.prices), {}),
  })
  await testKernel(t, [{ name: 'prices', plugin: prices, config: { models, publicTable: false, ...more } }, probe], {
    listeners: [],
  })
  return found[0]!
}

const price = (input: number, output = input, cached?: number) => ({
  inputCentsPerMillion: input,
  outputCentsPerMillion: output,
  ...(cached === undefined ? {} : { cachedInputCentsPerMillion: cached }),
})
const used = (model: string, inputTokens = 1_000_000, outputTokens = 0, cachedTokens?: number): Usage => ({
  model,
  inputTokens,
  outputTokens,
  ...(cachedTokens === undefined ? {} : { cachedTokens }),
})

test('input, output and cached input each have their price, exact to a millionth of a cent', async (t) => {
  const { costCents } = await pricesWith(t, { 'a/m': price(125, 1_000, 12.5), 'a/n': price(125, 1_000) })
  assert.equal(costCents(used('a/m', 1_000_000, 0)), 125)
  assert.equal(costCents(used('a/m', 0, 1_000_000)), 1_000)
  assert.equal(costCents(used('a/m', 1, 1)), 0.001125)
  // Cached tokens are part of the input tokens, not beside them.
  assert.equal(costCents(used('a/m', 1_000_000, 0, 400_000)), 75 + 5)
  assert.equal(costCents(used('a/m', 100, 0, 1_000)), 0.00125, 'more cached than there were')
  assert.equal(costCents(used('a/n', 1_000_000, 0, 400_000)), 125, 'without a cached price: the input price')
})

test('the longest pattern wins, and of two as long the exact one', async (t) => {
  const { costCents } = await pricesWith(t, {
    '*': price(1),
    'openai/*': price(2),
    'openai/gpt-5*': price(3),
    'openai/gpt-5': price(4),
    'openai/gpt-5-mini*': price(5),
  })
  const cost = (model: string) => costCents(used(model))
  assert.equal(cost('openai/gpt-5'), 4)
  assert.equal(cost('openai/gpt-5-2025-08-07'), 3)
  assert.equal(cost('openai/gpt-5-mini-2025-08-07'), 5)
  assert.equal(cost('openai/o9'), 2)
  assert.equal(cost('other/m'), 1)
})

test('a model without a line has no price; a price of 0 is 0', async (t) => {
  const { costCents } = await pricesWith(t, { 'openai/gpt-5': price(4), 'builtin/*': price(0) })
  for (const model of ['openai/gpt-5-mini', 'openai/gpt', 'OpenAI/gpt-5', 'other/m', '', '/'])
    assert.equal(costCents(used(model)), undefined, model)
  assert.equal(costCents(used('builtin/demo')), 0)
  assert.equal((await pricesWith(t, {})).costCents(used('openai/gpt-5')), undefined)
})

test('a call whose tokens nobody counted has no known cost, unless the model is free', async (t) => {
  const { costCents } = await pricesWith(t, { 'a/m': price(4), 'builtin/*': price(0) })
  assert.equal(costCents(used('a/m', 0, 0)), undefined)
  assert.equal(costCents(used('builtin/demo', 0, 0)), 0)
})

test('a bare model name takes the price of the provider that has it, as long as providers agree', async (t) => {
  const { costCents } = await pricesWith(t, {
    'openai/gpt-5*': price(3),
    'openai/gpt-5-mini': price(1),
    'proxy/gpt-5*': price(3),
    'meta/llama*': price(7),
    'local/*': price(0),
    'builtin/*': price(0),
    'router/meta/llama-9': price(9),
  })
  const cost = (model: string) => costCents(used(model))
  assert.equal(cost('gpt-5-pro'), 3)
  assert.equal(cost('gpt-5-mini'), undefined, 'openai and proxy disagree')
  assert.equal(cost('llama-4'), 7)
  assert.equal(cost('meta/llama-9'), 7, 'a whole name comes first')
  assert.equal(cost('mystery'), undefined, 'never free because some provider is')
})

test('a table that cannot be meant refuses the boot and names the line', async (t) => {
  const bad: [object, RegExp][] = [
    [{ 'a/*-mini': price(1) }, /prices: .*'a\/\*-mini': a \* stands at the end/],
    [{ 'a/m': { inputCentsPerMillion: 1 } }, /models\.a\/m\.outputCentsPerMillion/],
    [{ 'a/m': price(-1) }, /models\.a\/m\.inputCentsPerMillion/],
    [{ 'a/m': { ...price(1), inputPerMillion: 1 } }, /inputPerMillion/],
  ]
  for (const [models, message] of bad) await assert.rejects(pricesWith(t, models), message)
})

test('below the role file are public prices, with their dates; a bare name has none of them', async (t) => {
  const { costCents, priceOf, version } = await pricesWith(t, { 'openai/gpt-4o': price(4) }, { publicTable: true })
  assert.equal(costCents(used('openai/gpt-4o')), 4)
  // Providers publish these prices in dollars per million tokens.
  assert.deepEqual(priceOf('anthropic/claude-3-5-haiku-20241022'), price(80, 400, 8))
  assert.equal(costCents(used('anthropic/claude-3-5-haiku-20241022', 1_000_000, 1_000_000, 500_000)), 40 + 4 + 400)
  assert.equal(costCents(used('anthropic/claude-3-5-haiku-20241022', 0, 0)), undefined)
  for (const model of ['claude-3-5-haiku-20241022', 'nobody/gpt-4o-mini', 'openai/stand-in', '/', '', 'openai/'])
    assert.equal(costCents(used(model)), undefined, model)
  // If the price of a model has changed, a call costs the price at the time of the call.
  const o3 = (at: string) => costCents(used('openai/o3'), new Date(at))
  assert.deepEqual([o3('2025-06-01'), o3('2025-07-01')], [1_000, 200])
  assert.match(version, /^[0-9a-f]{8}\+genai-prices-\d+\.\d+\.\d+$/)
})

test('what was used before a change is priced as it was; services have prices in microcents', async (t) => {
  const before = [
    { until: '2026-06-01T00:00:00Z', models: { 'a/m': price(2) } },
    { until: '2026-01-01T00:00:00Z', models: { 'a/m': price(1) } },
  ]
  const { costCents, services, version } = await pricesWith(t, { 'a/m': price(3) }, { before, toolCallCents: 0.5 })
  const at = (time: string) => costCents(used('a/m'), new Date(time))
  assert.deepEqual([at('2025-12-31'), at('2026-01-01'), at('2026-06-01'), costCents(used('a/m'))], [1, 2, 3, 3])
  assert.deepEqual(services, { toolCall: 500_000, sandboxSecond: 0, storedGibDay: 0 })
  assert.notEqual(version, (await pricesWith(t, { 'a/m': price(4) })).version)
})
