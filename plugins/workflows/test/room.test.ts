import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises'
import { defaultLimits, type Limits } from '#contracts/limits'
import { Pace } from '#kit'
import { Room } from '../room.ts'

const limited = (own: Partial<Limits>) => ({
  of: () => ({ ...defaultLimits, ...own }),
  pace(atOnce: number) {
    const pace = new Pace({ atOnce, longestMs: Infinity })
    return async (tenantId: string, signal?: AbortSignal) => {
      const waitMs = pace.turnOf(tenantId, 60_000 / (own.writesPerMinute ?? Infinity))!
      if (waitMs > 0) await sleep(waitMs, undefined, { ref: false, ...(signal ? { signal } : {}) })
    }
  },
})

test('whoever claims at the same moment finds room as well, and what waits is told when there is some', async () => {
  const told = Promise.withResolvers<string>()
  const room = new Room(limited({ workflowCalls: 8 }), (_tenantId, runId) => told.resolve(runId))
  const taken = ['a', 'b', 'c'].map(() => room.take('acme', 100))
  assert.deepEqual(taken, [2, 2, 1])
  while (room.of('acme') > 0) room.take('acme', 100)
  assert.deepEqual([room.take('acme', 1), room.usedBy('acme')], [0, 8])
  assert.ok(room.take('globex', 100) > 0)
  room.wait('acme', 'run')
  room.give('acme', 1)
  assert.equal(await told.promise, 'run')
})

test('attempts of a tenant take turns by its plan, and those of others do not wait for them', async () => {
  const room = new Room(limited({ writesPerMinute: 1 }), () => {})
  const stop = new AbortController()
  let passed = 0
  const turns = Array.from({ length: 20 }, () => room.turn('acme', stop.signal).then(() => passed++))
  await room.turn('globex', stop.signal)
  await turn()
  assert.ok(passed >= 6 && passed < 20, `${passed} at once`)
  stop.abort()
  assert.equal((await Promise.allSettled(turns)).at(-1)!.status, 'rejected')
})
