import assert from 'node:assert/strict'
import { test } from 'node:test'
import { heldBytesOf, TenantCache } from '../tenant-cache.ts'

const text = (length: number): { text: string } => ({ text: 'x'.repeat(length) })

test('what a value takes is more than its text, and grows with its values', () => {
  assert.ok(heldBytesOf(text(1_000)) < 1_300)
  const lists = Array.from({ length: 1_000 }, () => [])
  assert.ok(heldBytesOf(lists) > 10 * JSON.stringify(lists).length)
})

test('the tenant that has the most gives up what it used least recently; what others have stays', () => {
  const cache = new TenantCache<{ text: string }>(10_000)
  cache.put('globex', 'theirs', text(3_000))
  for (const key of ['a', 'b', 'c']) cache.put('acme', key, text(1_800))
  assert.ok(cache.get('acme', 'a'))
  cache.put('acme', 'd', text(1_800))
  assert.deepEqual(
    ['a', 'b', 'c', 'd'].map((key) => cache.get('acme', key) !== undefined),
    [true, false, true, true],
  )
  cache.put('initech', 'new', text(2_000))
  assert.equal(cache.get('acme', 'a'), undefined)
  assert.ok(cache.get('globex', 'theirs') && cache.get('initech', 'new'))
  assert.ok(cache.bytes <= 10_000)
})

test('what is replaced or deleted counts no more, and one that is larger than all may be is not kept', () => {
  const cache = new TenantCache<{ text: string }>(10_000)
  for (let i = 0; i < 20; i++) cache.put('acme', 'a', text(2_000))
  cache.put('globex', 'b', text(2_000))
  assert.deepEqual([cache.valuesOf('acme').length, cache.valuesOf('globex').length], [1, 1])
  cache.put('acme', 'huge', text(20_000))
  assert.deepEqual([cache.valuesOf('acme'), cache.valuesOf('globex').length], [[], 1])
  assert.equal(cache.delete('acme', 'huge'), false)
  cache.deleteWhere(({ text: { length } }) => length === 2_000)
  assert.deepEqual([cache.valuesOf('globex'), cache.bytes], [[], 0])
})
