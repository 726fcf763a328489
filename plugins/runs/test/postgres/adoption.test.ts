import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chunkOf } from '#testing'
import type { Database } from '#contracts/database'
import type { Profile } from '#contracts/profiles'
import { createEventEncoder, parseLine, type RuntimeEvent } from '#contracts/run-event'
import type { Adopter, Claim, Orphan, RunStore } from '#contracts/run-store'
import { openStores } from './stores.ts'

const profile = (onCrash?: 'retry'): Profile =>
  ({ name: 'p', runtime: 'general', limits: {}, ...(onCrash ? { onCrash } : {}) }) as Profile

const attachments = [{ mediaType: 'image/png', data: 'aGVsbG8=', name: 'a.png' }]

async function begin(store: RunStore, tenantId: string, id: string, onCrash?: 'retry'): Promise<Claim> {
  const outcome = await store.start({
    tenantId,
    runId: `run-${id}`,
    sessionId: `sess-${id}`,
    task: { profile: 'p', prompt: `do ${id}`, metadata: { of: id }, attachments },
    create: { profile: profile(onCrash) },
  })
  return outcome.kind === 'started' ? outcome.claim : assert.fail(outcome.kind)
}

async function expireOwner(db: Database, claim: Claim): Promise<void> {
  const [rows] = await db.batch<[{ claim_owner: string }[]]>(claim.tenantId, [
    { text: 'SELECT claim_owner FROM runs WHERE tenant_id = $1 AND id = $2', values: [claim.tenantId, claim.runId] },
  ])
  const statement = { text: `UPDATE instances SET lease_until = now() - interval '1 second' WHERE id = $1` }
  await db.systemBatch([{ ...statement, values: [rows[0]!.claim_owner] }])
}

/** Takes whatever it is offered, `room` at a time, and notes what it is to go on with. */
function adopting(store: RunStore, room = 50, wants: Adopter['wants'] = () => true, resumed: string[] = []): Orphan[] {
  const adopted: Orphan[] = []
  const adopt = (orphan: Orphan): void => void adopted.push(orphan)
  const resume = (_tenant: string, runId: string): void => void resumed.push(runId)
  store.onOrphan({ onCrash: 'interrupt', room: () => room, wants, adopt, resume })
  return adopted
}

const chunk = (claim: Claim, firstSeq: number, ...events: RuntimeEvent[]) => {
  const encoder = createEventEncoder(claim.runId, claim.sessionId, firstSeq)
  return { firstSeq, count: events.length, lines: Buffer.from(events.map((e) => encoder.line(e)).join('')) }
}

test('a run that is tried again goes from its dead owner to the one that sweeps; the others are interrupted', async (t) => {
  const stores = await openStores(t)
  const [a, b] = [await stores.open(), await stores.open()]
  const adopted = adopting(b)
  const claim = await begin(a, 'acme', '1', 'retry')
  const other = await begin(a, 'acme', '2')
  await a.append(claim, chunkOf(claim, 1, 3))
  await expireOwner(stores.db, claim)
  await b.sweepOrphans()
  assert.equal((await b.findRun('acme', other.runId))?.status, 'interrupted')
  const [orphan] = adopted
  assert.equal(adopted.length, 1)
  assert.deepEqual(orphan!.claim, { ...claim, epoch: 2 })
  assert.deepEqual(
    [orphan!.attempt, orphan!.task.prompt, orphan!.task.metadata, orphan!.session.profile.onCrash],
    [1, 'do 1', { of: '1' }, 'retry'],
  )
  assert.deepEqual(orphan!.task.attachments, attachments)
  assert.ok(orphan!.elapsedMs >= 0 && orphan!.elapsedMs < 600_000)
  const run = await b.findRun('acme', claim.runId)
  assert.deepEqual([run?.status, run?.attempt], ['running', 1])
  assert.equal(await a.append(claim, chunkOf(claim, 4, 1)), false, 'the former owner writes nothing any more')
  assert.equal(await a.retry(claim, 2, chunkOf(claim, 4, 1)), false)
  assert.equal(await a.finish({ claim, status: 'ok', sessionStatus: 'idle', tail: chunkOf(claim, 4, 1) }), false)
  assert.equal(await b.retry(orphan!.claim, 2, chunkOf(claim, 4, 1)), true)
  assert.equal(
    await b.finish({ claim: orphan!.claim, status: 'ok', sessionStatus: 'idle', tail: chunkOf(claim, 5, 1) }),
    true,
  )
  assert.equal((await b.getSession('acme', claim.sessionId))?.status, 'idle')
  assert.equal(await b.sweepOrphans(), 0)
  const [rows] = await stores.db.batch<[{ id: string }[]]>('acme', [
    { text: 'SELECT id FROM runs WHERE input IS NOT NULL' },
  ])
  assert.deepEqual(
    rows,
    [{ id: other.runId }],
    'what came with a prompt is kept where the conversation is restored from it',
  )
  assert.deepEqual((await b.findRun('acme', claim.runId))?.subTask.attachments, [
    { mediaType: 'image/png', name: 'a.png', bytes: 5 },
  ])
})

test('a burst of orphans is taken in portions, by several processes, each run by one; none is forgotten', async (t) => {
  const stores = await openStores(t)
  const [a, b, c] = [await stores.open(), await stores.open(), await stores.open()]
  const [mine, yours] = [adopting(b, 20), adopting(c, 20)]
  const claims = await Promise.all(
    Array.from({ length: 70 }, (_, i) => begin(a, i % 2 ? 'acme' : 'globex', `n${i}`, 'retry')),
  )
  await expireOwner(stores.db, claims[0]!)
  await Promise.all([b.sweepOrphans(), c.sweepOrphans()])
  assert.deepEqual([mine.length, yours.length], [20, 20])
  // The owner is long dead, but its row must stay as long as it owns a run.
  await stores.db.systemBatch([{ text: `UPDATE instances SET lease_until = now() - interval '2 minutes' WHERE dead` }])
  await b.sweepOrphans()
  assert.equal(mine.length, 40)
  const dead = async () => (await stores.db.systemBatch<[object[]]>([{ text: 'SELECT FROM instances WHERE dead' }]))[0]
  assert.equal((await dead()).length, 1)
  await c.sweepOrphans()
  const ids = [...mine, ...yours].map(({ claim }) => `${claim.tenantId}/${claim.runId}`)
  assert.equal(new Set(ids).size, 70)
  assert.equal(ids.length, 70)
  await c.sweepOrphans()
  assert.equal((await dead()).length, 0)
})

test('an orphan that nobody wants, and a run that is stolen, end with what they used in their log metered', async (t) => {
  const stores = await openStores(t)
  const services = { toolCall: 0, sandboxSecond: 0, storedGibDay: 0 }
  const prices = { version: 'test', services, priceOf: () => undefined, costCents: () => 0.5 }
  const [a, b] = [await stores.open(), await stores.open({ prices })]
  const reason = { code: 'interrupted', message: 'Tried 3 times.' }
  adopting(b, 50, () => reason)
  const claims = [
    await begin(a, 'acme', '1', 'retry'),
    await begin(a, 'acme', '2'),
    await begin(a, 'acme', '3'),
    await begin(a, 'acme', '4', 'retry'),
  ]
  for (const claim of claims) {
    const used = { type: 'usage', inputTokens: 7, outputTokens: 3, cachedTokens: 2, model: 'm' } as const
    const asked = { type: 'tool_call', id: 'a', name: 'x', arguments: {} } as const
    const said = { type: 'assistant', text: '{"type":"usage"', delta: true } as const
    await a.append(claim, chunk(claim, 1, said, used, asked))
    await a.append(claim, chunkOf(claim, 4, 2))
    await a.append(claim, chunk(claim, 6, used))
  }
  await b.steal('acme', claims[2]!.runId, 'cancelled', { code: 'cancelled', message: 'Enough.' })
  await expireOwner(stores.db, claims[0]!)
  await b.sweepOrphans()
  const [meters] = await stores.db.batch<[Record<string, unknown>[]]>('acme', [
    {
      text: `SELECT run_id, status, model, input_tokens::int, output_tokens::int, cached_tokens::int, tool_calls,
               cost_microcents::int FROM run_meters ORDER BY run_id`,
    },
  ])
  const used = {
    model: 'm',
    input_tokens: 14,
    output_tokens: 6,
    cached_tokens: 4,
    tool_calls: 1,
    cost_microcents: 1_000_000,
  }
  assert.deepEqual(meters, [
    { run_id: 'run-1', status: 'interrupted', ...used },
    { run_id: 'run-2', status: 'interrupted', ...used },
    { run_id: 'run-3', status: 'cancelled', ...used },
    { run_id: 'run-4', status: 'interrupted', ...used },
  ])
  const run = await b.findRun('acme', 'run-1')
  assert.deepEqual([run?.attempt, run?.error, run?.usage?.inputTokens], [1, reason, 14])
  const log = await b.readLog('acme', 'run-1', 6)
  assert.equal(parseLine(log!.chunks.at(-1)!.lines)?.['message'], reason.message)
})

test('a process that makes no room takes no run from anybody, and a start in such a session finds it busy', async (t) => {
  const stores = await openStores(t)
  const [a, b] = [await stores.open(), await stores.open()]
  const adopted = adopting(b, 0)
  const claim = await begin(a, 'acme', '1', 'retry')
  await expireOwner(stores.db, claim)
  await b.sweepOrphans()
  assert.equal(adopted.length, 0)
  const task = { profile: 'p', prompt: 'y' }
  const next = await b.start({ tenantId: 'acme', runId: 'run-2', sessionId: claim.sessionId, task })
  assert.equal(next.kind, 'busy')
  assert.equal((await b.findRun('acme', claim.runId))?.status, 'running')
  const later = await stores.open()
  const taken = adopting(later)
  await later.sweepOrphans()
  assert.equal(taken.length, 1)
})

test('a run that was taken to go on, and never was, is left once more by whoever finds it, and gone on with', async (t) => {
  const stores = await openStores(t)
  const [a, b] = [await stores.open(), await stores.open()]
  const resumed: string[] = []
  const adopted = adopting(b, 50, () => true, resumed)
  const claim = await begin(a, 'acme', '1')
  await a.append(claim, chunkOf(claim, 1, 1))
  assert.equal(await a.park(claim, async () => {}), true)
  const version = async (): Promise<unknown> => {
    const row = { text: `SELECT xmin::text FROM runs WHERE tenant_id = 'acme' AND id = $1`, values: [claim.runId] }
    return (await stores.db.batch<[object[]]>('acme', [row]))[0][0]
  }
  const before = await version()
  const asked: [string, number][] = []
  const refused = await a.resume('acme', claim.runId, (...one) => asked.push(one) > 1)
  assert.deepEqual([refused, asked], [undefined, [[claim.runId, 8]]], 'nobody has room for its attachments yet')
  assert.deepEqual(await version(), before, 'nothing was written')
  const taken = await a.resume('acme', claim.runId, (...one) => asked.push(one) > 1)
  assert.deepEqual([taken?.claim.epoch, taken?.attempt], [3, 1])
  assert.equal(await b.resume('acme', claim.runId), undefined, 'it has an owner')
  await expireOwner(stores.db, claim)
  await b.sweepOrphans()
  assert.deepEqual([resumed, adopted.length], [[claim.runId], 0])
  assert.equal(await a.retry(taken!.claim, 2, chunkOf(claim, 2, 1)), false, 'the former owner begins nothing any more')
  const again = await b.resume('acme', claim.runId)
  assert.deepEqual([again?.claim.epoch, again?.attempt], [5, 1])
  assert.equal(await b.retry(again!.claim, 2, chunkOf(claim, 2, 1)), true)
  // From then on its next attempt may have begun, and it is a run like any other.
  await expireOwner(stores.db, claim)
  const c = await stores.open()
  await c.sweepOrphans()
  assert.equal((await c.findRun('acme', claim.runId))?.status, 'interrupted')
  assert.equal((await c.getSession('acme', claim.sessionId))?.status, 'idle')
})
