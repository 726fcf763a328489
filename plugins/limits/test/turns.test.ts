import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { isAppError } from '#kernel'
import { Ahead, type LoopLooks, Pace } from '#kit'
import { TenantTurns } from '../turns.ts'

/** Looks that happen when the test says so. */
function scripted() {
  let looked: ((lateMs: number) => void) | undefined
  const looks: LoopLooks = {
    start: (told) => void (looked = told),
    stop: () => void (looked = undefined),
  }
  /** So many seconds in which each look is this late. */
  const pass = (seconds: number, lateMs: number): void => {
    for (let n = 0; n < seconds * 100; n++) looked?.(lateMs)
  }
  return { looks, pass, isLooking: () => looked !== undefined }
}

test('while a process is short of time tenants go no faster than the average of their limits, and afterwards three times as fast again', () => {
  const { looks, pass } = scripted()
  const ahead = new Ahead(looks)
  ahead.waits()
  pass(5, 0.1)
  assert.equal(ahead.factor, 3)
  pass(0.1, 20)
  assert.ok(ahead.factor < 3, 'at the next judgement')
  pass(3, 20)
  assert.equal(ahead.factor, 1, 'and never less')
  pass(1, 0.1)
  assert.ok(ahead.factor < 2, 'little by little')
  pass(9, 0.1)
  assert.equal(ahead.factor, 3)
})

test('nobody looks while nobody waits, nor ten seconds after the last one that did', () => {
  const { looks, pass, isLooking } = scripted()
  const ahead = new Ahead(looks)
  assert.equal(isLooking(), false)
  ahead.waits()
  pass(8, 0)
  ahead.waits()
  pass(8, 0)
  assert.equal(isLooking(), true)
  pass(8, 0)
  assert.equal(isLooking(), false)
  ahead.waits()
  pass(3, 20)
  assert.equal(ahead.factor, 1)
  pass(8, 20)
  assert.equal(isLooking(), true, 'while it is short of time')
  ahead.stop()
  assert.equal(isLooking(), false)
})

/** Ten turns a second on average. */
const limitOf = (): number => 600

test('turns without a request begin some at once, and the others one by one, whatever other tenants do', async () => {
  const wait = new TenantTurns(() => 1, scripted().looks).pace(2)
  const stop = new AbortController()
  let passed = 0
  const turns = Array.from({ length: 10 }, () => wait('acme', stop.signal).then(() => passed++))
  await wait('globex')
  await new Promise(setImmediate)
  assert.ok(passed >= 2 && passed < 10, `${passed} at once`)
  stop.abort()
  assert.equal((await Promise.allSettled(turns)).at(-1)!.status, 'rejected')
  // What costs three turns is followed by none that is at once.
  const late = new AbortController()
  await wait('umbrella', undefined, 3)
  const next = wait('umbrella', late.signal)
  late.abort()
  await assert.rejects(next)
})

test('work without an end goes no faster than the average, and other work three times as fast unless the process is short of time', async () => {
  const { looks, pass } = scripted()
  const turns = new TenantTurns(() => 6_000, looks)
  const [pace, steady] = [turns.pace(1), turns.steady(1)]
  /** What of a tenant is first to come: the last of thirty turns ahead, or of twenty steady ones. */
  const first = (tenant: string): Promise<string> => {
    const waits = Array.from({ length: 20 }, () => steady(tenant))
    return Promise.race([
      sleep(waits.at(-1)!, 'steady'),
      Promise.all(Array.from({ length: 30 }, () => pace(tenant))).then(() => 'ahead'),
    ])
  }
  assert.equal(await first('acme'), 'ahead')
  pass(5, 20)
  assert.equal(await first('globex'), 'steady')
  const least = new TenantTurns(() => 0, looks).steady(1)
  for (let n = 0; n < 3; n++) assert.ok(least('acme') < 60_000, 'it is of work that a limit has allowed')
})

test('as many requests wait for their turns as before, and who is refused hears when to come back', async () => {
  const { looks, pass } = scripted()
  const turns = new TenantTurns(limitOf, looks)
  /** How many requests find a turn or wait for it, and what the next one hears. */
  const fill = async (tenant: string): Promise<[number, string | undefined]> => {
    for (let n = 0; ; n++) {
      if (!turns.isFull(tenant, 'readsPerMinute')) void turns.take(tenant, 'readsPerMinute', 1, false)
      else {
        const error: unknown = await turns.take(tenant, 'readsPerMinute', 1, false).catch((error: unknown) => error)
        assert.ok(isAppError(error) && error.code === 'limit_reached')
        return [n, error.headers['retry-after']]
      }
    }
  }
  const [usual, soon] = await fill('acme')
  pass(5, 20)
  const [short, later] = await fill('globex')
  assert.ok(Math.abs(usual - short) <= 1, `${usual} and ${short}`)
  assert.deepEqual([soon, later], ['2', '6'])
})

test('a tenant that gives way is told how much of its limit it has at present', async () => {
  const { looks, pass } = scripted()
  const turns = new TenantTurns(() => 60_000, looks)
  const crowd = (): void => {
    for (let n = 0; n < 60; n++) {
      turns.owe('heavy', 'readsPerMinute', 10)
      turns.works('light')
      pass(0.1, 20)
    }
  }
  crowd()
  const error: unknown = await turns.take('heavy', 'readsPerMinute', 1, false).catch((error: unknown) => error)
  assert.ok(isAppError(error) && error.code === 'limit_reached')
  assert.deepEqual(error.detail, { limit: 'readsPerMinute', max: 60_000 })
  assert.match(error.message, /is 60000\. It is 600 at present, because this server is short of time/)
  await turns.take('light', 'readsPerMinute', 1, false)
  assert.equal(turns.givingWay, 1)
})

test('turns that were taken at a slow pace are paid at the pace of now, and others cost no more than they did', (t) => {
  let now = 1_000
  t.mock.method(performance, 'now', () => now)
  const pace = new Pace({ atOnce: 1, longestMs: Infinity })
  // At a turn each second, ten turns are ten seconds; at ten in a second they are one.
  pace.owe('acme', 1_000, 10)
  assert.equal(pace.turnOf('acme', 100), 900)
  now += 500
  // 600 ms are left of eleven turns, and they stay 600: one turn comes at once, and the next one waits for them.
  assert.equal(pace.turnOf('acme', 1_000), 0)
  assert.equal(pace.turnOf('acme', 1_000), 600)
  now += 60_000
  assert.equal(pace.turnOf('acme', 1_000), 0)
})

test('patient work takes its place behind those who wait, where others are refused', async () => {
  const turns = new TenantTurns(limitOf, scripted().looks)
  while (!turns.isFull('acme', 'readsPerMinute')) void turns.take('acme', 'readsPerMinute', 1, false)
  let became = 'waits'
  turns.take('acme', 'readsPerMinute', 1, true).then(
    () => (became = 'passed'),
    () => (became = 'refused'),
  )
  await assert.rejects(turns.take('acme', 'readsPerMinute', 1, false))
  await new Promise(setImmediate)
  assert.equal(became, 'waits')
  const none = new TenantTurns(() => 0, scripted().looks)
  await assert.rejects(none.take('acme', 'readsPerMinute', 1, true), 'there are no turns at all')
})
