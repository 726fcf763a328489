import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Prices } from '#contracts/prices'
import type { RuntimeEvent } from '#contracts/run-event'
import { fake, testProfile } from '#testing'
import { chat, result, runId, type Script, stage } from './stage.ts'

const price = { inputCentsPerMillion: 100, outputCentsPerMillion: 400 }
const prices: Prices = {
  version: 'test',
  services: { toolCall: 0, sandboxSecond: 0, storedGibDay: 0 },
  priceOf: (model) => (model === 'openai/priced' ? price : undefined),
  costCents: ({ model, inputTokens }) => (model === 'openai/priced' ? inputTokens / 10_000 : undefined),
}
const worker = (model: string, limits = {}) => testProfile('coder', { workerMode: 'sandbox', model, limits })
const never = new AbortController().signal

test('the runner of a sandbox is told what the run may still cost at what price, and any other one is not', async (t) => {
  const limits = { maxCostCents: 5 }
  const cases = [
    [worker('openai/priced', limits), { cents: 5, price }],
    [worker('openai/unpriced', limits), undefined],
    [worker('openai/priced'), undefined],
    [testProfile('coder', { model: 'openai/priced', limits }), undefined],
  ] as const
  for (const [profile, budget] of cases) {
    const { dispatch, runner } = await stage(t, { profiles: [profile], more: [fake(Prices, prices)] })
    const { events } = await dispatch.start('acme', { profile: 'coder', prompt: 'x', id: runId() }, 0, never)
    await Array.fromAsync(events)
    assert.deepEqual(runner.executed[0]!.budget, budget)
  }
})

test('another attempt may spend what the first one left, and what was estimated is said so', async (t) => {
  const profile = { ...worker('openai/priced', { maxCostCents: 5 }), onCrash: 'retry' as const }
  const s = await stage(t, { profiles: [profile], more: [fake(Prices, prices)] })
  const used = (more: object): RuntimeEvent =>
    ({ type: 'usage', inputTokens: 20_000, outputTokens: 0, model: 'openai/priced', ...more }) as RuntimeEvent
  const attempts: Script[] = [
    async function* () {
      yield used({ estimated: true })
      yield { type: 'error', code: 'sidecar_lost', message: 'It stopped.', retryable: true }
    },
    async function* () {
      yield used({})
      yield result('done')
    },
  ]
  s.runner.script = (run, signal) => (attempts.shift() ?? chat)(run, signal)
  const id = runId()
  const { events } = await s.dispatch.start('acme', { profile: 'coder', prompt: 'x', id }, 0, never)
  await Array.fromAsync(events)
  assert.deepEqual(
    s.runner.executed.map(({ budget }) => budget?.cents),
    [5, 3],
  )
  assert.deepEqual((await s.store.findRun('acme', id))?.usage, {
    inputTokens: 40_000,
    outputTokens: 0,
    model: 'openai/priced',
    estimated: true,
    costCents: 4,
  })
})
