import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Billing } from '#contracts/billing'
import { Prices } from '#contracts/prices'
import { createEventEncoder, type RuntimeEvent } from '#contracts/run-event'
import { fake, testProfile } from '#testing'
import { chat, endless, result, runId, type Script, stage, text, untilAborted } from './stage.ts'

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

/** Nothing is ever refused, and everything is charged. */
const billing = { checkModel() {}, holdMicrocents: 1, reserveMicrocents: 0, extend: async () => Infinity }
const more = [fake(Prices, prices), fake(Billing, billing as unknown as Billing)]

test('whoever stops a run in the middle of an answer pays for what was asked and answered, as far as it can be told', async (t) => {
  const priced = testProfile('coder', { model: 'openai/priced' })
  const s = await stage(t, { profiles: [priced], more })
  const stopped = async (script: Script, prompt = 'x'.repeat(400)) => {
    s.runner.script = script
    const id = runId()
    const { events } = await s.dispatch.start('acme', { profile: 'coder', prompt, id }, 0, never)
    for await (const chunk of events) {
      if (chunk.lines.includes('working')) await s.dispatch.cancel('acme', id)
    }
    const run = await s.store.findRun('acme', id)
    assert.equal(run?.status, 'cancelled')
    return run.usage
  }
  const base = Math.ceil((400 + priced.instructions.length) / 4)
  const estimated = { model: 'openai/priced', estimated: true } as const
  const used = (inputTokens: number, outputTokens: number) => ({
    ...estimated,
    inputTokens,
    outputTokens,
    costCents: inputTokens / 10_000,
  })
  // Each delta is a token at least, and one of many words has more.
  assert.deepEqual(await stopped(endless), used(base, 1))
  const long = async function* (...[, signal]: Parameters<Script>) {
    yield text('word '.repeat(8_000))
    yield text('working')
    await untilAborted(signal)
  }
  const { outputTokens } = (await stopped(long))!
  assert.ok(outputTokens > 9_900 && outputTokens < 10_200, `${outputTokens}`)
  // The call that was paid for already is what the next one takes in, with what a tool gave; while a tool is at work no model is.
  const call = { type: 'tool_call', id: 'c', name: 'calculate', arguments: {} } as const
  const answer = { type: 'tool_result', id: 'c', name: 'calculate', ok: true, content: '1' } as const
  const paid = { type: 'usage', inputTokens: 300, outputTokens: 20, model: 'openai/priced' } as const
  const step = (...events: RuntimeEvent[]): Script =>
    async function* (...[, signal]) {
      yield* events
      yield { type: 'progress', stage: 'working' }
      await untilAborted(signal)
    }
  const afterTool = (await stopped(step(paid, call, answer)))!
  assert.ok(afterTool.inputTokens >= 620 && afterTool.inputTokens < 640, `${afterTool.inputTokens}`)
  assert.deepEqual(afterTool, used(afterTool.inputTokens, 20))
  const { estimated: _, ...told } = estimated
  assert.deepEqual(await stopped(step(paid, call)), { ...told, inputTokens: 300, outputTokens: 20, costCents: 0.03 })
  assert.deepEqual(await stopped(step(paid)), { ...told, inputTokens: 300, outputTokens: 20, costCents: 0.03 })
})

test('of a run in a sandbox its runner says what was used until it was stopped', async (t) => {
  const s = await stage(t, { profiles: [worker('openai/priced')], more })
  s.runner.script = async function* (_run, signal) {
    yield { type: 'progress', stage: 'runner_accepted' }
    yield { type: 'progress', stage: 'sandbox', idleSeconds: 0 } as RuntimeEvent
    yield { type: 'progress', stage: 'working' }
    await untilAborted(signal)
  }
  const asked: number[] = []
  s.runner.attach = async function* (_tenant, { runId: id, sessionId, afterSeq }) {
    asked.push(afterSeq)
    const encoder = createEventEncoder(id, sessionId, afterSeq + 1)
    const measured = { type: 'usage', inputTokens: 50_000, outputTokens: 9, model: 'openai/priced' } as const
    yield Buffer.from(encoder.line(measured))
    yield Buffer.from(encoder.line({ type: 'error', code: 'cancelled', message: 'The run was cancelled.' }))
  }
  const id = runId()
  const { events } = await s.dispatch.start('acme', { profile: 'coder', prompt: 'x', id }, 0, never)
  const lines: string[] = []
  for await (const chunk of events) {
    lines.push(...String(chunk.lines).trim().split('\n'))
    if (lines.at(-1)!.includes('working')) await s.dispatch.cancel('acme', id)
  }
  const usage = { inputTokens: 50_000, outputTokens: 9, model: 'openai/priced', costCents: 5 }
  assert.deepEqual((await s.store.findRun('acme', id))?.usage, usage)
  const seen = lines.map((line) => JSON.parse(line) as { seq: number; type: string })
  assert.deepEqual(
    seen.map(({ seq }) => seq),
    seen.map((_, i) => i + 1),
  )
  assert.deepEqual([seen.slice(-2).map(({ type }) => type), asked.length], [['usage', 'error'], 1])
})
