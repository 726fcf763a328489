import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { pino } from 'pino'
import { isAppError } from '#kernel'
import { createMemoryKv, type MemoryOptions } from '../memory.ts'
import { testKv } from './suite.ts'

const log = pino({ level: 'silent' })
const open = (t: { after(fn: () => Promise<void>): void }, options: Partial<MemoryOptions> = {}) => {
  const { kv, close } = createMemoryKv({ log, ...options })
  t.after(close)
  return kv
}

testKv('memory', async (t, count) => {
  const kv = open(t)
  return Array.from({ length: count }, () => kv)
})

test('memory: no window of any length and start holds more hits than the limit', async (t) => {
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 8 }),
      fc.integer({ min: 1, max: 60 }),
      fc.array(fc.integer({ min: 0, max: 20_000 }), { minLength: 20, maxLength: 200 }),
      async (limit, seconds, pauses) => {
        let now = 0
        const kv = open(t, { now: () => now })
        const allowed: number[] = []
        for (const pause of pauses) {
          now += pause
          const { allowed: ok, retryAfterMs } = await kv.hit('k', limit, seconds)
          if (ok) allowed.push(now)
          else {
            // Told when to come back, a caller is not sent away again.
            now += retryAfterMs
            assert.equal((await kv.hit('k', limit, seconds)).allowed, true)
            allowed.push(now)
          }
        }
        for (const start of allowed) {
          const inside = allowed.filter((at) => at >= start && at < start + seconds * 1_000)
          assert.ok(inside.length <= limit)
        }
      },
    ),
    { numRuns: 200 },
  )
})

test('memory: a full store refuses new keys with 503, and has room again when old ones have ended', async (t) => {
  let now = 0
  const kv = open(t, { now: () => now, limit: 3 })
  for (const key of ['a', 'b', 'c']) assert.equal(await kv.claim(key, 1_000), true)
  const full = (error: unknown): boolean => isAppError(error) && error.status === 503 && error.code === 'unavailable'
  await assert.rejects(kv.claim('d', 1_000), full)
  assert.equal(await kv.claim('a', 1_000), false)
  now = 2_000
  assert.equal(await kv.claim('d', 1_000), true)
  for (const key of ['a', 'b', 'c']) await kv.hit(key, 1, 1)
  await assert.rejects(kv.hit('d', 1, 1), full)
  now = 10_000
  assert.equal((await kv.hit('d', 1, 1)).allowed, true)
})
