import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createEventEncoder, type RuntimeEvent } from '#contracts/run-event'
import { createSandboxUseReader } from '#contracts/usage'

const accepted = { type: 'progress', stage: 'runner_accepted' } as const
const sandbox = (idleSeconds: unknown) => ({ type: 'progress', stage: 'sandbox', idleSeconds }) as const
const said = { type: 'assistant', text: 'hi', delta: true } as const

/** What is read of a run whose log has these events, `left` of them being left out. */
function useOf(events: readonly RuntimeEvent[], left: readonly number[] = []) {
  const encoder = createEventEncoder('r1', 's1', 1)
  const reader = createSandboxUseReader()
  for (const [i, event] of events.entries()) {
    const line = Buffer.from(encoder.line(event))
    if (!left.includes(i)) reader.read(line, i + 1)
  }
  return reader.use
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
