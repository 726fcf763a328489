import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { measureJson, parseJson, parseOwnJson } from '../bodies.ts'

const depthOf = (value: unknown): number =>
  typeof value === 'object' && value !== null
    ? 1 + Math.max(0, ...Object.entries(value).map(([, item]) => depthOf(item)))
    : 0

/** Its values, and the names of its fields. */
const partsOf = (value: unknown): number =>
  typeof value === 'object' && value !== null
    ? Object.values(value).reduce<number>(
        (sum, item) => sum + partsOf(item) + (Array.isArray(value) ? 0 : 1),
        // What is empty counts as if it had one value.
        Object.keys(value).length > 0 ? 1 : 2,
      )
    : 1

test('depth and parts of JSON are those of its value, whatever its strings hold', () => {
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
  fc.assert(
    fc.property(value, (one) =>
      assert.deepEqual(measureJson(Buffer.from(JSON.stringify(one))), { depth: depthOf(one), parts: partsOf(one) }),
    ),
  )
})

test('text that ends inside of a string has the depth of what stands before', () => {
  for (const end of ['', 'x', '\\', 'x'.repeat(100), `${'x'.repeat(100)}\\`, `${'x'.repeat(100)}\\"`]) {
    assert.equal(measureJson(Buffer.from(`[["${end}`)).depth, 2, end)
  }
})

test('quotes inside of a string end it nowhere, wherever they stand', () => {
  for (const length of [1, 61, 62, 63, 64, 65, 126, 127, 128, 200]) {
    const inside = `${'x'.repeat(length)}\\\\\\"[`.repeat(50)
    assert.deepEqual(measureJson(Buffer.from(`["${inside}",0]`)), { depth: 1, parts: 3 }, String(length))
  }
})

test('what has more parts than asked for is not measured to its end', () => {
  assert.deepEqual(measureJson(Buffer.from('[0,1,[[2]]]'), undefined, 3), { depth: 1, parts: 4 })
  assert.deepEqual(measureJson(Buffer.from('[0,1,[[2]]]'), undefined, 100), { depth: 3, parts: 6 })
})

test('a body has a bounded number of values and names, however short they are; one with as many is read', () => {
  const most = 200_000
  const listOf = (length: number): Buffer => Buffer.from(`[${Array.from({ length }, () => 0).join(',')}]`)
  assert.equal((parseJson(listOf(most - 1)) as unknown[]).length, most - 1)
  assert.equal((parseOwnJson(listOf(2 * most)) as unknown[]).length, 2 * most, 'the log of a long run')
  const dense = [
    listOf(most),
    Buffer.from(`[${'{},'.repeat(most / 2)}0]`),
    Buffer.from(`{${Array.from({ length: most / 2 }, (_, i) => `"${i}":0`).join(',')}}`),
  ]
  for (const body of dense) {
    assert.throws(() => parseJson(body), {
      code: 'body_too_large',
      status: 413,
      message: /more than 200000 values/,
      detail: { max: most },
    })
  }
})
