import assert from 'node:assert/strict'
import { test } from 'node:test'
import { countingTurns } from '#testing'
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

test('others have their turns while much becomes text, and no character is cut', async () => {
  const text = 'x😀é'.repeat(300_000)
  const whole = new Gathered()
  whole.add(Buffer.from(text))
  whole.add(Buffer.from([0xe2, 0x82]))
  const { value: made, turns } = await countingTurns(() => whole.text())
  assert.ok(made === `${text}\ufffd`)
  assert.ok(turns > 2, String(turns))
})
