import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { runSlots, Shares } from '../turns.ts'

const busy = (): Error => new Error('busy')

/** Notes who begins, in order. */
function noted(shares: Shares) {
  const begun: string[] = []
  const leaves = new Map<string, () => void>()
  const enter = (tenantId: string, name: string, signal?: AbortSignal): Promise<void> =>
    shares.enter(tenantId, signal).then((leave) => {
      begun.push(name)
      leaves.set(name, leave)
    })
  const leave = async (name: string): Promise<void> => {
    leaves.get(name)!()
    await turn()
  }
  return { begun, enter, leave }
}

test('tenants take turns, and one that waits for its own work is not in the way of others', async () => {
  const { begun, enter, leave } = noted(new Shares({ together: 3, each: 2, mostWaiting: 9, busy }))
  for (const name of ['a1', 'a2', 'a3', 'a4', 'a5']) void enter('a', name)
  for (const name of ['b1', 'b2', 'b3']) void enter('b', name)
  void enter('c', 'c1')
  await turn()
  assert.deepEqual(begun, ['a1', 'a2', 'b1'])
  for (const name of ['a1', 'b1', 'a2', 'a3', 'b2', 'c1', 'a4', 'b3', 'a5']) await leave(name)
  assert.deepEqual(begun, ['a1', 'a2', 'b1', 'a3', 'b2', 'c1', 'a4', 'b3', 'a5'])
})

test('a tenant has at most half of the slots for runs, and the only one when there is one', async () => {
  const { begun, enter, leave } = noted(runSlots(4, busy))
  for (let i = 1; i <= 502; i++) void enter('a', `a${i}`)
  await turn()
  assert.deepEqual(begun, ['a1', 'a2'])
  await assert.rejects(enter('a', 'more'), /busy/)
  await enter('b', 'b1')
  await leave('a1')
  assert.deepEqual(begun, ['a1', 'a2', 'b1', 'a3'])
  const one = noted(runSlots(1, busy))
  await one.enter('a', 'a1')
  void one.enter('b', 'b1')
  await one.leave('a1')
  assert.deepEqual(one.begun, ['a1', 'b1'])
})

test('a run that another one waits for takes any free slot, and does not wait behind that one', async () => {
  const slots = runSlots(2, busy)
  const parent = await slots.enter('a')
  const child = slots.enterNow('a')
  assert.throws(() => slots.enterNow('a'), /busy/)
  const { begun, enter } = noted(slots)
  void enter('a', 'a1')
  void enter('b', 'b1')
  child()
  await turn()
  assert.deepEqual(begun, ['b1'], 'others wait for the same slot, and the tenant has its half')
  parent()
  await turn()
  assert.deepEqual(begun, ['b1', 'a1'])
})

test('who gives up waiting leaves its place to others', async () => {
  const { begun, enter, leave } = noted(new Shares({ together: 1, each: 1, mostWaiting: 1, busy }))
  await enter('a', 'a1')
  const stop = new AbortController()
  const waiting = enter('a', 'a2', stop.signal)
  await assert.rejects(enter('a', 'a3'), /busy/)
  stop.abort(new Error('enough'))
  await assert.rejects(waiting, /enough/)
  await assert.rejects(enter('a', 'a3', stop.signal), /enough/)
  void enter('a', 'a4')
  await leave('a1')
  assert.deepEqual(begun, ['a1', 'a4'])
})

test('work that fails gives its place back', async () => {
  const shares = new Shares({ together: 1, each: 1, mostWaiting: 0, busy })
  await assert.rejects(
    shares.take('a', async () => {
      throw new Error('failed')
    }),
    /failed/,
  )
  assert.equal(await shares.take('a', async () => 'done'), 'done')
})
