import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { createMemoryStore, type MemoryOptions } from '../store.ts'
import { kvKernel, testKv, unavailable } from './suite.ts'

const open = (t: { after(fn: () => void): void }, options: Partial<MemoryOptions> = {}) => {
  const store = createMemoryStore(options)
  t.after(() => store.close())
  return store
}

testKv('memory', async (t, count) => {
  const { kv } = await kvKernel(t)
  assert.equal(kv.backend, 'memory')
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
            // A caller that comes back when it was told to is let in.
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
  await assert.rejects(kv.claim('d', 1_000), unavailable)
  assert.equal(await kv.claim('a', 1_000), false)
  now = 2_000
  assert.equal(await kv.claim('d', 1_000), true)
  for (const key of ['a', 'b', 'c']) await kv.hit(key, 1, 1)
  await assert.rejects(kv.hit('d', 1, 1), unavailable)
  now = 10_000
  assert.equal((await kv.hit('d', 1, 1)).allowed, true)
})

test('memory: what was made before the process began may have been claimed in an earlier one, and is refused', async (t) => {
  const store = open(t)
  await assert.rejects(store.claim('k', 60_000, Date.now() - 2_000), unavailable)
  assert.equal(await store.claim('k', 60_000, Date.now()), true)
})

test('memory: a full store forgets what was made first, and refuses whatever was made as early', async (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: 1_000_000 })
  const now = () => Date.now()
  const store = open(t, { now, limit: 4 })
  const claim = (key: string, madeAt: number) => store.claim(key, madeAt + 65_000 - now(), madeAt)
  assert.equal(await claim('a', 1_000_000), true)
  t.mock.timers.tick(2_000)
  for (const key of ['c', 'd']) assert.equal(await claim(key, 1_002_000), true)
  assert.equal(await claim('b', 1_001_000), true)

  assert.equal(await claim('e', 1_002_000), true)
  for (const key of ['a', 'z']) await assert.rejects(claim(key, 1_000_000), unavailable)
  assert.equal(await claim('b', 1_001_000), false)
  for (const key of ['c', 'd', 'e']) assert.equal(await claim(key, 1_002_000), false, key)
  assert.equal(await claim('f', 1_002_000), true)
  await assert.rejects(claim('b', 1_001_000), unavailable)

  // What was made in this second stays: whatever is made now has to be accepted.
  await assert.rejects(claim('g', 1_002_000), unavailable)
  for (const key of ['c', 'd', 'e', 'f']) assert.equal(await claim(key, 1_002_000), false, key)
  t.mock.timers.tick(1_000)
  assert.equal(await claim('g', 1_003_000), true)
  for (const key of ['c', 'd', 'e', 'f']) await assert.rejects(claim(key, 1_002_000), unavailable)
})

test('memory: a store that is full of what was made later than now refuses until then, and what is made now afterwards', async (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: 1_000_000 })
  const store = open(t, { now: () => Date.now(), limit: 2 })
  for (const key of ['a', 'b']) assert.equal(await store.claim(key, 125_000, 1_060_000), true)
  for (let at = 1_000_000; at <= 1_060_000; at += 20_000) {
    await assert.rejects(store.claim('c', 65_000, at), unavailable)
    for (const key of ['a', 'b']) assert.equal(await store.claim(key, 125_000, 1_060_000), false)
    t.mock.timers.tick(20_000)
  }
  assert.equal(await store.claim('c', 65_000, 1_080_000), true)
  await assert.rejects(store.claim('a', 125_000, 1_060_000), unavailable)
})
