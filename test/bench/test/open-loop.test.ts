import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Clock, openLoop } from '../open-loop.ts'

/** A clock that only moves when somebody sleeps, or when the test says so. */
function fakeClock(): Clock & { pass(ms: number): void } {
  let now = 1_000
  return {
    now: () => now,
    sleep: async (ms) => {
      now += ms
    },
    pass: (ms) => {
      now += ms
    },
  }
}

test('requests go out by the clock although no earlier one is over', async () => {
  const clock = fakeClock()
  const sentAt: number[] = []
  const stalled = Promise.withResolvers<void>()
  let over = false
  const whole = async (): Promise<void> => {
    await openLoop(
      50,
      200,
      async () => {
        sentAt.push(clock.now())
        await stalled.promise
      },
      clock,
    )
    over = true
  }
  const loop = whole()
  while (sentAt.length < 10) await new Promise((resolve) => setImmediate(resolve))
  assert.deepEqual(
    sentAt,
    Array.from({ length: 10 }, (_, n) => 1_000 + n * 20),
  )
  assert.equal(over, false)
  stalled.resolve()
  await loop
  assert.equal(over, true)
})

test('a client that stalls sends what it missed at once, each with the time at which it was due', async () => {
  const clock = fakeClock()
  const waited: number[] = []
  await openLoop(
    100,
    100,
    async (due, n) => {
      waited.push(clock.now() - due)
      if (n === 2) clock.pass(45)
    },
    clock,
  )
  // Number 3 was due 10 ms after number 2, so it is 35 ms late; from number 7 on the loop has caught up.
  assert.deepEqual(waited, [0, 0, 0, 35, 25, 15, 5, 0, 0, 0])
})

test('a timer that fires early sends nothing early', async () => {
  const clock = fakeClock()
  const early: Clock = { now: clock.now, sleep: (ms) => clock.sleep(ms > 1 ? ms - 0.5 : ms) }
  const waited: number[] = []
  await openLoop(10, 500, async (due) => void waited.push(clock.now() - due), early)
  assert.deepEqual(waited, [0, 0, 0, 0, 0])
})

test('a round is as long as asked: rate times duration', async () => {
  const clock = fakeClock()
  let sent = 0
  await openLoop(125, 4_000, async () => void sent++, clock)
  assert.equal(sent, 500)
  assert.equal(clock.now(), 1_000 + 499 * 8)
})
