import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { jsonDepth } from '../requests.ts'

const depthOf = (value: unknown): number =>
  typeof value === 'object' && value !== null
    ? 1 + Math.max(0, ...Object.entries(value).map(([, item]) => depthOf(item)))
    : 0

test('the depth of JSON is that of its value, whatever its strings hold', () => {
  // Lengths on both sides of those at which strings are looked through in another way.
  const text = fc
    .tuple(fc.array(fc.constantFrom('\\', '"', '[', '{', 'x'.repeat(31), 'é'), { maxLength: 12 }), fc.nat(70))
    .map(([parts, n]) => 'x'.repeat(n) + parts.join(''))
  const { value } = fc.letrec((tie) => ({
    value: fc.oneof(
      { maxDepth: 6 },
      text,
      fc.integer(),
      fc.array(tie('value'), { maxLength: 3 }),
      fc.dictionary(text, tie('value'), { maxKeys: 3 }),
    ),
  }))
  fc.assert(fc.property(value, (one) => assert.equal(jsonDepth(Buffer.from(JSON.stringify(one))), depthOf(one))))
})

test('text that ends inside of a string has the depth of what stands before', () => {
  for (const end of ['', 'x', '\\', 'x'.repeat(100), `${'x'.repeat(100)}\\`, `${'x'.repeat(100)}\\"`]) {
    assert.equal(jsonDepth(Buffer.from(`[["${end}`)), 2, end)
  }
})
