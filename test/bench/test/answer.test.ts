import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createAnswer } from '../answer.ts'
import { charactersPerStamp } from '../measure.ts'

const stamp = (ago: number): string => `${(performance.timeOrigin + performance.now() - ago).toFixed(1)} `
const delta = (text: string): string => `id: 1\nevent: delta\ndata: {"text":"${text}"}\n\n`
const done = 'event: done\ndata: {"conversation_id":"conv_1"}\n\n'

const roughly = (measured: readonly number[], expected: readonly number[]): void => {
  assert.equal(measured.length, expected.length)
  // The time that the test itself takes adds to it, and nothing subtracts but rounding.
  for (const [i, late] of measured.entries())
    assert.ok(late >= expected[i]! - 0.1, `${late} is less than ${expected[i]}`)
}

test('lateness is taken of every delta: alone, joined in one frame, and cut in the middle of its stamp', () => {
  const late: number[] = []
  const answer = createAnswer('gateway', () => late)
  answer.read(Buffer.from(delta(stamp(500))))
  answer.read(Buffer.from(delta(stamp(400) + stamp(300)) + delta(stamp(200))))
  const frame = delta(stamp(5_000))
  answer.read(Buffer.from(frame.slice(0, 40)))
  assert.equal(late.length, 4, 'half a frame is no delta yet')
  answer.read(Buffer.from(frame.slice(40) + done))
  roughly(late, [500, 400, 300, 200, 5_000])
  assert.equal(answer.fault({ characters: 5 * charactersPerStamp }), undefined)
  assert.equal(answer.conversation, 'conv_1')
})

test('where lateness goes is asked anew with each frame, and nowhere is an answer', () => {
  const first: number[] = []
  let to: number[] | undefined = first
  const answer = createAnswer('gateway', () => to)
  answer.read(Buffer.from(delta(stamp(100))))
  to = undefined
  answer.read(Buffer.from(delta(stamp(100)) + done))
  assert.equal(first.length, 1)
  assert.equal(answer.fault({ characters: 2 * charactersPerStamp }), undefined)
})

test('a lost delta, a doubled one and a cut stream are faults', () => {
  for (const [text, expected] of [
    [delta(stamp(0)) + done, /16 characters of text arrived, not 32/],
    [delta(stamp(0)).repeat(3) + done, /48 characters of text arrived, not 32/],
    [delta(stamp(0)).repeat(2), /the stream ended without/],
  ] as const) {
    const answer = createAnswer('gateway', undefined)
    answer.read(Buffer.from(text))
    assert.match(answer.fault({ characters: 2 * charactersPerStamp }) ?? 'right', expected)
  }
})

test('a run is accepted when the conductor names it', () => {
  const accepted = createAnswer('accepted', undefined)
  accepted.read(Buffer.from('{"runId":"r'))
  accepted.read(Buffer.from('un_1","status":"running"}'))
  assert.equal(accepted.fault({}), undefined)
  const refused = createAnswer('accepted', undefined)
  refused.read(Buffer.from('{"error":"unavailable"}'))
  assert.match(refused.fault({}) ?? '', /unavailable/)
})
