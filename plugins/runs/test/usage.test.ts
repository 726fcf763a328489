import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Prices } from '#contracts/prices'
import type { Attachment } from '#contracts/prompt'
import { createEventEncoder, peekType, type RuntimeEvent } from '#contracts/run-event'
import { RunUsage } from '../usage.ts'

const prices: Pick<Prices, 'costCents'> = {
  costCents: ({ model, inputTokens }) => (model === 'a/cheap' ? inputTokens * 0.1 : model === 'a/free' ? 0 : undefined),
}
const read = (usage: RunUsage, line: string, seq: number) => {
  const bytes = Buffer.from(line)
  usage.read(peekType(bytes), bytes, seq)
}
const tallied = (events: object[], table: 'a table' | 'no table' = 'a table') => {
  const usage = new RunUsage(table === 'a table' ? prices : undefined)
  for (const event of events) read(usage, JSON.stringify({ type: 'usage', ...event }), 1)
  return usage.calls
}
const call = (model: string, more: object = {}) => ({ inputTokens: 3, outputTokens: 2, model, ...more })

test('what was never reported is not usage', () => {
  assert.equal(tallied([]), undefined)
})

test('calls are priced one by one and summed under the last model', () => {
  assert.deepEqual(tallied([call('a/cheap', { cachedTokens: 1 }), call('a/free'), call('a/cheap')]), {
    inputTokens: 9,
    outputTokens: 6,
    cachedTokens: 1,
    model: 'a/cheap',
    costCents: 0.6,
  })
})

test('a thousand small costs add up without drift', () => {
  const usage = tallied(Array.from({ length: 1_000 }, () => call('a/cheap', { inputTokens: 1 })))
  assert.equal(usage?.costCents, 100)
})

test('one call without a price makes the cost of the run unknown, wherever it stands', () => {
  for (const events of [
    [call('b/new'), call('a/cheap')],
    [call('a/cheap'), call('b/new')],
    [call('a/cheap'), call('b/new'), call('a/cheap')],
  ])
    assert.equal('costCents' in tallied(events)!, false)
  assert.equal('costCents' in tallied([call('a/cheap')], 'no table')!, false, 'a role without a table')
})

test('a runtime that reports a cost is believed, and mixes with priced calls', () => {
  // What is known is charged, and counts where the run has a limit.
  assert.equal(tallied([call('a/cheap'), call('b/new')])?.knownCostCents, 0.3)
  assert.equal(tallied([call('b/new', { costCents: 1.5 })])?.costCents, 1.5)
  assert.equal(tallied([call('a/cheap', { costCents: 7 }), call('a/cheap')])?.costCents, 7.3)
  assert.equal(tallied([call('b/new', { costCents: 0 })], 'no table')?.costCents, 0)
})

test('counts that cannot be stored are mended: whole, not negative, bounded', () => {
  const wild = [1.5, -3, 1e300, null, '7', {}].map((value) =>
    call('a/free', { inputTokens: value, cachedTokens: value }),
  )
  const usage = tallied(wild)!
  assert.equal(usage.inputTokens, 2 + 1e12)
  assert.equal(usage.cachedTokens, 2 + 1e12)
  for (const costCents of [-1, '1', null]) {
    assert.equal('costCents' in tallied([call('b/new', { costCents })])!, false, 'not a cost')
    assert.equal(tallied([call('a/cheap', { costCents })])?.costCents, 0.3)
  }
  assert.ok(tallied([call('b/new', { costCents: 1e300 })])!.costCents! <= 1e9)
  assert.equal(tallied([{ inputTokens: 1 }])?.model, '')
})

test('however many calls a run reports, what they come to can be stored', () => {
  const wild = { inputTokens: 1e12, outputTokens: 1e12, cachedTokens: 1e12, model: 'a/free', costCents: 1e9 }
  const usage = tallied(Array.from({ length: 10_000 }, () => wild))!
  const stored = [usage.inputTokens, usage.outputTokens, usage.cachedTokens!, usage.costCents! * 1e6]
  // PostgreSQL's bigint holds 9.2e18, and a meter adds up many runs.
  for (const count of stored) assert.ok(Number.isSafeInteger(count) && count <= 1e15, String(count))
})

const accepted = { type: 'progress', stage: 'runner_accepted' } as const
const sandbox = (idleSeconds: unknown) => ({ type: 'progress', stage: 'sandbox', idleSeconds }) as const
const said = { type: 'assistant', text: 'hi', delta: true } as const

/** What is read of a run whose log has these events, `left` of them being left out. */
function useOf(events: readonly RuntimeEvent[], left: readonly number[] = []) {
  const encoder = createEventEncoder('r1', 's1', 1)
  const usage = new RunUsage(undefined)
  for (const [i, event] of events.entries()) {
    const line = encoder.line(event)
    if (!left.includes(i)) read(usage, line, i + 1)
  }
  return usage.sandbox
}

test('a run in a sandbox is known by the line behind the one with which the runner took it', () => {
  assert.deepEqual(useOf([accepted, sandbox(30), said]), { idleSeconds: 30 })
  assert.equal(useOf([accepted, said]), undefined)
  assert.equal(useOf([]), undefined)
})

test('what a worker says of its sandbox is not believed, nor another attempt counted again', () => {
  assert.equal(useOf([accepted, said, sandbox(1e6)]), undefined)
  assert.equal(useOf([accepted, said, accepted, sandbox(1e6)]), undefined)
  assert.equal(useOf([accepted, said, sandbox(1e6)], [1]), undefined)
  assert.deepEqual(useOf([accepted, sandbox(5), said, accepted, sandbox(7)]), { idleSeconds: 5 })
})

test('a figure that cannot be is none, and one that is too large is cut', () => {
  for (const wrong of [-1, Number.NaN, 'many', undefined])
    assert.deepEqual(useOf([accepted, sandbox(wrong)]), { idleSeconds: 0 })
  assert.deepEqual(useOf([accepted, sandbox(1.6)]), { idleSeconds: 2 })
  assert.deepEqual(useOf([accepted, sandbox(1e12)]), { idleSeconds: 604_800 })
})

test('a call that was cut off is estimated, also where a sandbox is only for tools; one in a sandbox was measured', () => {
  const used = (workerMode: 'static' | 'sandbox') => {
    const encoder = createEventEncoder('r1', 's1', 1)
    const usage = new RunUsage(undefined)
    for (const [i, event] of [accepted, sandbox(30), said].entries()) read(usage, encoder.line(event), i + 1)
    const profile = { model: 'a/cheap', instructions: 'x'.repeat(40), workerMode }
    usage.cutOff({ profile }, { prompt: 'y'.repeat(40) }, true)
    return usage.calls?.inputTokens
  }
  assert.deepEqual([used('static'), used('sandbox')], [20, undefined])
})

test('what a model has thought counts as a part of the answer that was cut off', () => {
  const encoder = createEventEncoder('r1', 's1', 1)
  const usage = new RunUsage(undefined)
  const thought = { type: 'progress', stage: 'reasoning', message: 'x'.repeat(4_000) } as const
  for (const [i, event] of [accepted, thought, thought].entries()) read(usage, encoder.line(event), i + 1)
  usage.cutOff({ profile: { model: 'a/cheap', instructions: '', workerMode: 'static' } }, { prompt: 'hi' }, true)
  assert.ok(Math.abs(usage.calls!.outputTokens - 2_000) < 50, `${usage.calls!.outputTokens} tokens`)
})

test('a call that was cut off has read the conversation before it, what the prompt brings and what tools gave', () => {
  const profile = { model: 'a/cheap', instructions: 'x'.repeat(40), workerMode: 'static' } as const
  const result = { type: 'tool_result', id: 'c', name: 'read', ok: true, content: 'r'.repeat(4_000) } as const
  const asUsage = { type: 'usage', inputTokens: 500, outputTokens: 100, model: 'a/cheap' } as const
  const readBy = (events: readonly RuntimeEvent[], contextTokens?: number, attachments?: Attachment[]) => {
    const encoder = createEventEncoder('r1', 's1', 1)
    const usage = new RunUsage(undefined)
    for (const [i, event] of [accepted, ...events].entries()) read(usage, encoder.line(event), i + 1)
    const before = usage.calls?.inputTokens ?? 0
    const session = { profile, ...(contextTokens === undefined ? {} : { contextTokens }) }
    usage.cutOff(session, { prompt: 'y'.repeat(40), ...(attachments ? { attachments } : {}) }, true)
    return usage.calls!.inputTokens - before
  }
  assert.equal(readBy([said], 30_000), 30_010, 'the instructions are among what earlier calls have read')
  const text = { mediaType: 'text/plain', data: Buffer.alloc(3_000, 'a').toString('base64') }
  const link = { key: 'k', sha256: 'f'.repeat(64), bytes: 2_000_000, contentType: 'image/png' }
  assert.equal(readBy([said], 0, [text, { mediaType: 'image/png', link }]), 10 + 750 + 1_600)
  const afterTool = readBy([said, asUsage, result])
  assert.ok(afterTool >= 1_590 && afterTool < 1_660, `${afterTool} tokens`)
  const afterMany = readBy([said, asUsage, ...Array.from({ length: 200 }, () => result)])
  assert.equal(afterMany, 600 + 100_000, 'runtimes cut what a model has no room for')
})
