import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pino } from 'pino'
import { Taker } from '../taker.ts'

type Boss = ConstructorParameters<typeof Taker>[0]['boss']

test('a process that stops reports the wake-ups that ended, and leaves the others to other processes', async () => {
  const due = ['a', 'b', 'hangs', 'fails', 'c'].map((id) => ({ id, data: { id }, groupId: 'acme', retryCount: 0 }))
  const told: Record<'complete' | 'fail', string[]> = { complete: [], fail: [] }
  const tell = (how: keyof typeof told) => async (_: string, jobs: readonly { readonly id: string }[]) => {
    told[how].push(...jobs.map(({ id }) => id))
  }
  const begun: string[] = []
  const taker = new Taker({
    name: 'checks',
    heartbeatSeconds: 30,
    log: pino({ level: 'silent' }),
    boss: { fetch: async () => due.splice(0), complete: tell('complete'), fail: tell('fail') } as unknown as Boss,
    async work({ id }) {
      begun.push(id!)
      if (id === 'hangs') await new Promise(() => {})
      if (id === 'fails') throw new Error('once')
    },
  })
  while (begun.length < 5) await new Promise((resolve) => setImmediate(resolve))
  await taker.stop(10)
  assert.deepEqual(told, { complete: ['a', 'b', 'c'], fail: ['fails', 'hangs'] })
})
