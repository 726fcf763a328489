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

test('tenants whose wake-ups all wait leave places for others, and go on when theirs end', async (t) => {
  const hostile = ['a', 'b', 'c', 'd', 'e']
  const due = hostile.flatMap((groupId) =>
    Array.from({ length: 20 }, (_, i) => ({ id: `${groupId}${i}`, data: { id: `${groupId}${i}` }, groupId })),
  )
  const begun: string[] = []
  const ends = new Map<string, () => void>()
  const fetch = async (
    _: string,
    options: { readonly batchSize: number; readonly ignoreGroups: readonly string[] },
  ) => {
    const some = due.filter((job) => !options.ignoreGroups.includes(job.groupId)).slice(0, options.batchSize)
    for (const job of some) due.splice(due.indexOf(job), 1)
    return some
  }
  const taker = new Taker({
    name: 'checks',
    heartbeatSeconds: 30,
    log: pino({ level: 'silent' }),
    boss: { fetch, complete: async () => {}, fail: async () => {} } as unknown as Boss,
    async work({ id }) {
      begun.push(id!)
      await new Promise<void>((resolve) => ends.set(id!, resolve))
    },
  })
  t.after(() => taker.stop(0))
  const settled = async (): Promise<void> => {
    for (let i = 0; i < 50; i++) await new Promise((resolve) => setImmediate(resolve))
  }
  await settled()
  assert.deepEqual([...new Set(begun.map((id) => id[0]))], hostile, 'each has its turn')
  assert.ok(begun.length < 40, 'and all together leave some places')
  due.push({ id: 'victim', data: { id: 'victim' }, groupId: 'victim' })
  taker.look()
  await settled()
  assert.equal(begun.at(-1), 'victim')
  for (const end of ends.values()) end()
  while (begun.length < 101) {
    await settled()
    for (const end of ends.values()) end()
  }
})
