import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Ahead, type LoopLooks } from '../ahead.ts'

/** Looks that happen when the test says so. */
function scripted() {
  let looked: ((lateMs: number) => void) | undefined
  const looks: LoopLooks = {
    start: (told) => void (looked = told),
    stop: () => void (looked = undefined),
  }
  const ahead = new Ahead(looks)
  /** So many seconds in which each look is this late, and each tenant takes so many turns. */
  const pass = (seconds: number, lateMs: number, turns: Readonly<Record<string, number>> = {}): void => {
    for (let n = 0; n < seconds * 100; n++) {
      for (const [tenantId, perSecond] of Object.entries(turns)) ahead.works(tenantId, perSecond / 100)
      looked?.(lateMs)
    }
  }
  /** Turns a minute of a tenant whose limit is 60,000 and who has 600 in any case. */
  const rateOf = (tenantId: string): number => ahead.rateOf(tenantId, 60_000, 600)
  return { ahead, pass, rateOf, isLooking: () => looked !== undefined }
}

test('whoever takes more turns than others gives way while the process is crowded, down to what it has in any case', () => {
  const { ahead, pass, rateOf } = scripted()
  pass(1, 0.1, { heavy: 300, light: 20 })
  assert.equal(rateOf('heavy'), 180_000)
  pass(2, 20, { heavy: 300, light: 20 })
  assert.ok(rateOf('heavy') < 60_000)
  pass(3, 20, { heavy: 300, light: 20 })
  assert.deepEqual([rateOf('heavy'), rateOf('light'), ahead.givingWay], [600, 60_000, 1])
  assert.deepEqual([ahead.rateOf('heavy', 300, 600), ahead.rateOf('heavy', 0, 600)], [300, 0], 'no more than its limit')
  // It takes no more than the other one now.
  pass(3, 20, { heavy: 10, light: 20 })
  assert.ok(rateOf('heavy') > 600)
  pass(60, 0.1, { heavy: 10, light: 20 })
  assert.deepEqual([rateOf('heavy'), rateOf('light'), ahead.givingWay], [180_000, 180_000, 0])
})

test('nobody gives way to tenants that do as much, to nobody, or to those that left a minute ago', (t) => {
  t.mock.method(performance, 'now', () => now)
  let now = 1_000_000
  const many = scripted()
  many.pass(10, 20, { a: 200, b: 190, c: 210 })
  assert.equal(many.ahead.givingWay, 0)
  const alone = scripted()
  alone.ahead.waits()
  alone.pass(10, 20, { heavy: 300 })
  assert.deepEqual([alone.rateOf('heavy'), alone.ahead.givingWay], [60_000, 0])
  alone.pass(3, 20, { heavy: 300, light: 1 })
  assert.equal(alone.ahead.givingWay, 1)
  now += 59_000
  alone.pass(3, 20, { heavy: 300 })
  assert.equal(alone.ahead.givingWay, 1, 'the other one may come back')
  now += 2_000
  alone.pass(60, 20, { heavy: 300 })
  assert.equal(alone.ahead.givingWay, 0)
})

test('those with the most give way together, and idle tenants make nobody heavy', () => {
  const five = scripted()
  five.pass(6, 20, { a: 100, b: 95, c: 105, d: 100, e: 100, light: 1 })
  assert.equal(five.ahead.givingWay, 5)
  assert.equal(five.rateOf('light'), 60_000)
  const idle = scripted()
  for (let n = 0; n < 50; n++) idle.ahead.works(`idle-${n}`)
  idle.pass(6, 20, { heavy: 300, little: 10 })
  assert.deepEqual([idle.ahead.givingWay, idle.rateOf('heavy'), idle.rateOf('little')], [1, 600, 60_000])
})

test('a tenant that gave way is ahead of what it has in any case as soon as the process has time', () => {
  const { ahead, pass } = scripted()
  pass(6, 20, { heavy: 300, light: 1 })
  pass(6, 0.1, { heavy: 10, light: 1 })
  assert.deepEqual([ahead.rateOf('heavy', 6_000, 600), ahead.rateOf('heavy', 300, 600)], [1_800, 900])
})

test('what a tenant did while it was alone does not count, and nobody looks while there is only one', () => {
  const { ahead, pass, isLooking } = scripted()
  pass(60, 20, { heavy: 1_000 })
  assert.equal(isLooking(), false)
  pass(5, 20, { heavy: 12, light: 12 })
  assert.deepEqual([isLooking(), ahead.givingWay], [true, 0])
})
