import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AskedThread } from '../asked-thread.ts'
import type { Held } from './held-thread.ts'

test('while a question of a tenant takes long, those of others are answered, and no second one of its own', async () => {
  const thread = new AskedThread<Held, string>({
    module: new URL('held-thread.ts', import.meta.url),
    name: 'held',
    resourceLimits: {},
    mostWaiting: 16,
    tooMany: () => new Error('too many'),
    died: (why) => new Error(why),
  })
  const order: string[] = []
  const ask = async (tenantId: string, question: Held): Promise<void> =>
    void order.push(await thread.ask(tenantId, question))
  const gate = new Int32Array(new SharedArrayBuffer(4))
  const slow = [ask('hostile', { name: 'slow', gate }), ask('hostile', { name: 'next' })]
  // With one thread, or a second one for the hostile tenant alone, these would wait for the gate.
  await Promise.all([ask('one', { name: 'one' }), ask('two', { name: 'two' })])
  await ask('one', { name: 'one again' })
  assert.deepEqual(order, ['one', 'two', 'one again'])
  Atomics.store(gate, 0, 1)
  Atomics.notify(gate, 0)
  await Promise.all(slow)
  assert.deepEqual(order.slice(3), ['slow', 'next'])
})
