import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Arriving } from '../server/arriving.ts'

const full = { code: 'storage_unavailable' }

test('an upload that was admitted has its room to the end, however many begin after it', () => {
  const arriving = new Arriving(100, 240)
  const first = arriving.begin('acme', 90)
  first.came(10)
  const others = ['globex', 'initech'].map((tenantId, i) => arriving.begin(tenantId, [70, 40][i]!))
  assert.throws(() => arriving.begin('hooli', 21), full)
  assert.throws(() => arriving.begin('acme', 11), { code: 'limit_reached' })
  first.came(80)
  assert.throws(() => first.came(1), full, 'what it did not announce has no room')
  first.over()
  for (const one of others) one.over()
  arriving.begin('acme', 100).over()
})

test('an upload without an announcement counts as it comes', () => {
  const arriving = new Arriving(100, 200)
  const [one, other] = [arriving.begin('acme', 0), arriving.begin('globex', 0)]
  one.came(60)
  other.came(70)
  assert.throws(() => one.came(11), full)
  one.over()
  other.over()
  arriving.begin('acme', 100).over()
})
