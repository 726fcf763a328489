import assert from 'node:assert/strict'
import test from 'node:test'
import { Lately } from '#kit'

test('what happened lately fades: it does not end with a minute, and is forgotten in the end', () => {
  let now = 0
  const lately = new Lately(60_000, () => now)
  for (let n = 1; n <= 100; n++) assert.equal(lately.count('acme'), n)
  now = 60_000
  assert.equal(Math.round(lately.count('acme')), 38, 'a third of 100, and this one')
  assert.equal(lately.count('globex'), 1, 'another key')
  now = 20 * 60_000
  assert.equal(Math.round(lately.count('acme')), 1)
})
