import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database } from '#contracts/database'
import type { Profile } from '#contracts/profiles'
import { type LogChunk, parseLine, type RuntimeEvent } from '#contracts/run-event'
import type { Claim, RunStore } from '#contracts/run-store'
import { openStores } from './stores.ts'

const profile = { name: 'p', runtime: 'general', model: 'a/m', limits: {} } as unknown as Profile
const task = { profile: 'p', prompt: 'x' }
const ended = { status: 'ok', sessionStatus: 'idle', result: 'done', tail: undefined } as const

async function begin(store: RunStore, runId: string, create = true): Promise<Claim> {
  const started = await store.start({
    tenantId: 'acme',
    runId,
    sessionId: 'sess-1',
    task,
    ...(create ? { create: { profile } } : {}),
  })
  assert.ok(started.kind === 'started')
  return started.claim
}
const meters = async (db: Database): Promise<Record<string, unknown>[]> => {
  const [rows] = await db.batch<[Record<string, unknown>[]]>('acme', [
    { text: 'SELECT meter, subject, sum(amount)::int AS amount FROM usage_meters GROUP BY meter, subject' },
  ])
  return rows
}
const secondsOf = async (db: Database): Promise<number> => Number((await meters(db))[0]?.['amount'])

/** One line a second, from `seq` on. */
const chunk = ({ runId, sessionId }: Claim, seq: number, ...events: RuntimeEvent[]): LogChunk => {
  const line = ({ type, ...payload }: RuntimeEvent, i: number): string =>
    JSON.stringify({
      type,
      runId,
      sessionId,
      seq: seq + i,
      at: new Date(Date.UTC(2026, 0, 1, 0, 0, seq + i)).toISOString(),
      ...payload,
    })
  const lines = events.map(line).join('\n')
  assert.ok(parseLine(Buffer.from(lines.split('\n')[0]!)))
  return { firstSeq: seq, count: events.length, lines: Buffer.from(`${lines}\n`) }
}
const progress = (stage: string, fields: object = {}): RuntimeEvent => ({ type: 'progress', stage, ...fields })

test('runs in a sandbox add up to their own time and the idle time before them; others count nothing', async (t) => {
  const stores = await openStores(t)
  const store = await stores.open()
  await store.finish({ claim: await begin(store, 'run-1'), ...ended })
  assert.deepEqual(await meters(stores.db), [])
  const end = { claim: await begin(store, 'run-2', false), ...ended, sandbox: { idleSeconds: 30, runSeconds: 0 } }
  assert.equal(await store.finish(end), true)
  // The end is repeated, as after a lost answer: the run has ended only once.
  assert.equal(await store.finish(end), false)
  await store.finish({ claim: await begin(store, 'run-3', false), ...ended, sandbox: { idleSeconds: 12 } })
  const [meter] = await meters(stores.db)
  assert.deepEqual([meter?.['meter'], meter?.['subject']], ['sandbox_seconds', 'sess-1'])
  const amount = Number(meter?.['amount'])
  assert.ok(amount >= 42 && amount < 102, `${amount} s`)
})

test('a run that took its time is metered with it', async (t) => {
  const stores = await openStores(t)
  const store = await stores.open()
  const claim = await begin(store, 'run-1')
  await stores.db.batch('acme', [{ text: `UPDATE runs SET started_at = started_at - interval '100 seconds'` }])
  await store.finish({ claim, ...ended, sandbox: { idleSeconds: 5 } })
  const amount = await secondsOf(stores.db)
  assert.ok(amount >= 105 && amount < 165, `${amount} s`)
})

test('a run whose conductor died is metered until it was last heard of, however late it is swept', async (t) => {
  const stores = await openStores(t)
  const [a, b] = [await stores.open(), await stores.open()]
  const claim = await begin(a, 'run-1')
  await a.append(claim, chunk(claim, 1, progress('accepted'), progress('runner_accepted')))
  await a.append(
    claim,
    chunk(claim, 3, progress('sandbox', { idleSeconds: 7 }), { type: 'assistant', text: 'a', delta: true }),
  )
  await a.append(claim, chunk(claim, 5, { type: 'assistant', text: '"stage":"sandbox"', delta: true }))
  await a.append(claim, chunk(claim, 6, { type: 'assistant', text: 'b', delta: true }))
  await stores.db.batch('acme', [{ text: `UPDATE runs SET started_at = started_at - interval '2 hours'` }])
  await b.steal('acme', 'run-1', 'interrupted', { code: 'interrupted', message: 'Its server went away.' })
  assert.equal(await secondsOf(stores.db), 7 + 5)
})

test('what a worker wrote about its sandbox is not metered when its run is ended from the log', async (t) => {
  const stores = await openStores(t)
  const store = await stores.open()
  const claim = await begin(store, 'run-1')
  const forged = progress('sandbox', { idleSeconds: 5_000 })
  await store.append(claim, chunk(claim, 1, progress('accepted'), progress('runner_accepted')))
  await store.append(claim, chunk(claim, 3, { type: 'assistant', text: 'a', delta: true }))
  await store.append(claim, chunk(claim, 4, forged, progress('runner_accepted'), forged))
  await store.steal('acme', 'run-1', 'cancelled', { code: 'cancelled', message: 'Enough.' })
  assert.deepEqual(await meters(stores.db), [])
})
