import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { Gathered } from '../gathered.ts'

test('a body is the same in however many pieces it comes, and the pieces stay as they are', () => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ maxLength: 9 })), (pieces) => {
      const before = pieces.map((piece) => [...piece])
      const whole = new Gathered()
      for (const piece of pieces) whole.add(piece)
      assert.deepEqual([...whole.bytes], before.flat())
      assert.equal(whole.size, before.flat().length)
      assert.deepEqual(
        pieces.map((piece) => [...piece]),
        before,
      )
    }),
  )
})
