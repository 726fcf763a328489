import assert from 'node:assert/strict'
import { test } from 'node:test'
import { PlainCache } from '../resolver.ts'

const kept = (name: string, value = 'v') => ({ secret: { name, version: 1, value }, expiresAt: Infinity })

test('a value is kept for its time, and not when it was replaced while it was read', () => {
  let now = 0
  const cache = new PlainCache({ keepMs: 10, maxBytes: 10_000, now: () => now })
  cache.put('acme', kept('a'), cache.mark)
  assert.equal(cache.get('acme', 'a')?.secret.value, 'v')
  assert.equal(cache.get('globex', 'a'), undefined)
  now = 10
  assert.equal(cache.get('acme', 'a'), undefined)
  cache.sweep()
  assert.equal(cache.bytes, 0)

  const { mark } = cache
  cache.forget('acme/a')
  cache.put('acme', kept('a'), mark)
  assert.equal(cache.get('acme', 'a'), undefined)
  cache.put('acme', kept('a'), cache.mark)
  cache.forget('acme/a')
  assert.deepEqual([cache.get('acme', 'a'), cache.bytes], [undefined, 0])
})

test('the oldest goes when there is no room, and what is larger than the room is not kept', () => {
  const cache = new PlainCache({ keepMs: 10, maxBytes: 1_000, now: () => 0 })
  for (const name of ['a', 'b', 'c', 'd']) cache.put('acme', kept(name), cache.mark)
  assert.deepEqual(
    ['a', 'b', 'c', 'd'].map((name) => cache.get('acme', name) !== undefined),
    [false, true, true, true],
  )
  assert.ok(cache.bytes <= 1_000)
  cache.put('acme', kept('large', 'x'.repeat(400)), cache.mark)
  assert.equal(cache.get('acme', 'large'), undefined)
  cache.clear()
  assert.equal(cache.bytes, 0)
})
