import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pino } from 'pino'
import { defaultLimits } from '#contracts/limits'
import { HitWindows } from '#kit'
import { outcomeOf, schedule } from '../attempt.ts'
import { createRate, Deliverer } from '../deliverer.ts'
import type { Settled, TakenMessage } from '../store.ts'

const log = pino({ level: 'silent' })
const message = (id: string, attempt = 1): TakenMessage => ({
  id,
  runId: `run-${id}`,
  body: null,
  url: 'https://example.com/',
  attempt,
})
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

/** A deliverer of queued messages. Attempts of tenants whose names begin with `slow`, and looks of `busy` ones, hang until they are let go. */
function slowStage(
  queued: ReadonlyMap<string, TakenMessage[]>,
  rate: ReturnType<typeof createRate> = createRate(undefined, undefined),
) {
  const begun: string[] = []
  const held: (() => void)[] = []
  const deliverer = new Deliverer({
    log,
    rate,
    outbox: {
      async take(tenantId, limit) {
        if (tenantId.startsWith('busy')) await new Promise<void>((resolve) => held.push(resolve))
        return { taken: queued.get(tenantId)!.splice(0, limit), inMs: undefined }
      },
      settle: async () => {},
    },
    async attempt(tenantId, { id }): Promise<Settled> {
      begun.push(id)
      if (tenantId.startsWith('slow')) await new Promise<void>((resolve) => held.push(resolve))
      return { state: 'delivered', status: 200, error: undefined }
    },
  })
  /** Lets attempts go until so many have begun, and stops. */
  const finish = async (count: number): Promise<void> => {
    while (begun.length < count) {
      held.shift()?.()
      await turn()
    }
    for (const resolve of held) resolve()
    await deliverer.stop()
  }
  return { deliverer, begun, held, finish }
}
const twenty = (tenantId: string) => Array.from({ length: 20 }, (_, i) => message(`${tenantId}-${i}`))

test('one tenant with a slow receiver leaves room for the others', async () => {
  const queued = new Map([
    ['slow', twenty('slow')],
    ['quick', [message('quick-0')]],
  ])
  const { deliverer, begun, finish } = slowStage(queued)
  deliverer.wake('slow')
  while (begun.length < 4) await turn()
  deliverer.wake('quick')
  while (!begun.includes('quick-0')) await turn()
  assert.equal(begun.filter((id) => id.startsWith('slow')).length, 4)
  // Messages that had to wait are sent as soon as there is room.
  await finish(21)
})

test('several tenants with slow receivers leave room for those who have nothing on its way', async () => {
  const slow = ['slow-a', 'slow-b', 'slow-c', 'slow-d', 'slow-e']
  const queued = new Map(slow.map((id) => [id, twenty(id)]))
  queued.set('quick', [message('quick-0'), message('quick-1')])
  const { deliverer, begun, held, finish } = slowStage(queued)
  for (const id of slow) deliverer.wake(id)
  // The first three fill what anybody may have; the others have one place each of the reserved ones.
  while (begun.length < 14) await turn()
  deliverer.wake('quick')
  while (!begun.includes('quick-1')) await turn()
  assert.equal(held.length, 14)
  await finish(102)
})

test('a tenant whose outbox cannot be read for a while delays nobody', async () => {
  const queued = new Map([
    ['busy-a', twenty('busy-a')],
    ['busy-b', twenty('busy-b')],
    ['quick', [message('quick-0')]],
  ])
  const { deliverer, begun, held, finish } = slowStage(queued)
  for (const tenantId of queued.keys()) deliverer.wake(tenantId)
  while (begun.length === 0) await turn()
  assert.deepEqual([begun, held.length], [['quick-0'], 2])
  await finish(41)
})

test('attempts beyond those of a minute wait until some of it has passed, and those of another tenant do not wait for them', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout', 'Date'] })
  let now = 0
  const tenants = ['acme', 'globex']
  const queued = new Map(tenants.map((id) => [id, twenty(id).slice(0, 4)]))
  const most: Record<string, number> = { acme: 2, globex: 600 }
  const of = (id: string) => ({ ...defaultLimits, webhookDeliveriesPerMinute: most[id]! })
  const { deliverer, begun, finish } = slowStage(queued, createRate(new HitWindows(() => now), { of }))
  const ofAcme = () => begun.filter((id) => id.startsWith('acme'))
  /** Lets all happen that needs no time, then so many seconds pass. */
  const pass = async (seconds: number): Promise<void> => {
    for (let i = 0; i <= seconds; i++) {
      for (let turns = 0; turns < 20; turns++) await turn()
      if (i === seconds) return
      now += 1_000
      t.mock.timers.tick(1_000)
    }
  }
  for (const id of tenants) deliverer.wake(id)
  await pass(0)
  assert.deepEqual(ofAcme(), ['acme-0', 'acme-1'])
  assert.equal(begun.length, 6)
  // Waking it makes none of them begin, as a new message of it would.
  deliverer.wake('acme')
  await pass(58)
  assert.equal(ofAcme().length, 2)
  await pass(4)
  assert.deepEqual(ofAcme(), ['acme-0', 'acme-1', 'acme-2', 'acme-3'])
  await finish(8)
})

test('a limit of no deliveries holds all of them', async () => {
  const of = () => ({ ...defaultLimits, webhookDeliveriesPerMinute: 0 })
  const { deliverer, begun } = slowStage(new Map([['acme', [message('acme-0')]]]), createRate(new HitWindows(), { of }))
  deliverer.wake('acme')
  for (let turns = 0; turns < 20; turns++) await turn()
  assert.deepEqual(begun, [])
  await deliverer.stop()
})

test('the waits grow, are spread, and end; a receiver may ask for longer ones, within bounds', () => {
  const answer = { taken: false, gone: false, status: 500, error: 'x', retryAfterMs: undefined }
  const waits = schedule.map((_, i) => outcomeOf(answer, message('m', i + 1), 0) as Settled & { state: 'pending' })
  assert.deepEqual(
    waits.map((settled) => settled.inMs),
    [...schedule],
  )
  assert.equal(outcomeOf(answer, message('m', schedule.length + 1), 0).state, 'dead')
  const spread = outcomeOf(answer, message('m', 1), 0.5) as Settled & { state: 'pending' }
  assert.ok(spread.inMs > schedule[0] && spread.inMs < schedule[0] * 1.1)
  const asked = { ...answer, retryAfterMs: 60_000 }
  assert.equal((outcomeOf(asked, message('m', 1), 0) as { inMs: number }).inMs, 60_000)
  assert.equal(
    (outcomeOf({ ...asked, retryAfterMs: 1e9 }, message('m', 1), 0) as { inMs: number }).inMs,
    12 * 3_600_000,
  )
  assert.equal(outcomeOf({ ...answer, gone: true }, message('m', 1), 0).state, 'dead')
})
