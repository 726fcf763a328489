import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createRandom } from '../random.ts'
import { schedule } from '../schedule.ts'

const minutes = (count: number): number => count * 60_000

test('one seed gives one schedule, another seed another one', () => {
  assert.deepEqual(schedule(createRandom(7), minutes(10)), schedule(createRandom(7), minutes(10)))
  assert.notDeepEqual(schedule(createRandom(7), minutes(10)), schedule(createRandom(8), minutes(10)))
})

test('ten minutes hold every kind of fault, and all of them end in time', () => {
  const faults = schedule(createRandom(1), minutes(10))
  const kinds = new Set(faults.map(({ kind }) => kind))
  assert.deepEqual([...kinds].sort(), ['cut', 'freeze', 'hang', 'kill', 'restart', 'slow', 'term'])
  assert.ok(
    faults.some(({ kind, forMs }) => kind === 'freeze' && forMs > 12_000),
    'a freeze that outlasts a lease',
  )
  assert.ok(faults.every(({ atMs, forMs }) => atMs + forMs <= minutes(10)))
})

test('no part has two faults at a time', () => {
  for (let seed = 0; seed < 50; seed++) {
    const until = new Map<string, number>()
    for (const fault of schedule(createRandom(seed), minutes(5))) {
      const part = 'store' in fault ? fault.store : fault.on
      assert.ok((until.get(part) ?? 0) <= fault.atMs, `seed ${seed}: ${part}`)
      until.set(part, fault.atMs + fault.forMs)
    }
  }
})
