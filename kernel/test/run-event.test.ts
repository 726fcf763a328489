import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { createEventEncoder, eventsOf, type RuntimeEvent } from '#contracts/run-event'

const text = fc.oneof(
  fc.string({ unit: 'binary', maxLength: 100 }),
  fc.constantFrom('', '"', '\\', '\n', '\u0000', '\u007f', '\u2028', 'é', '😀', '\ud83d', '\ude00', 'x'.repeat(200)),
)

test('texts are written as their events are, however many at once, and every text is read back as it was', () => {
  fc.assert(
    fc.property(fc.array(fc.array(text, { maxLength: 5 }), { maxLength: 4 }), (batches) => {
      const encoder = (): ReturnType<typeof createEventEncoder> => createEventEncoder('r"1', 's1', 9, () => 0)
      const [together, alone] = [encoder(), encoder()]
      const lines = batches.map((texts) => together.texts(texts)).join('')
      const events = eventsOf(batches)
      assert.equal(lines, events.map((event) => alone.line(event)).join(''))
      assert.equal(together.next, 9 + events.length)
      const read = Buffer.from(lines).toString('utf8').split('\n').slice(0, -1)
      const stamp = { runId: 'r"1', sessionId: 's1', at: '1970-01-01T00:00:00.000Z' }
      const expected = events.map((event, i) => ({ ...event, ...stamp, seq: 9 + i }))
      assert.deepEqual(
        read.map((line) => JSON.parse(line) as RuntimeEvent),
        expected,
      )
    }),
  )
})
