import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database } from '#contracts/database'
import { overLimit } from '#contracts/limits'
import { type Attempt, Execution, type ExecutionDeps } from '../execution.ts'
import { LargeTurns } from '../large-turns.ts'
import { Offers } from '../offers.ts'
import type { Outputs } from '../outputs.ts'
import { Scopes } from '../scopes.ts'
import { type Body, stage } from './stage.ts'

test('what has no room is offered at once, and then ever less often; what had room meanwhile is offered at once again', () => {
  let now = 0
  const offers = new Offers(() => now)
  const seconds: number[] = []
  for (; now < 3_600_000; now += 100) if (offers.take('run')) seconds.push(now / 1_000)
  assert.deepEqual(seconds.slice(0, 9), [0, 0.5, 1.5, 3.5, 7.5, 15.5, 30.5, 45.5, 60.5])
  assert.equal(seconds.length, 244)
  assert.equal(offers.take('another'), true)
  offers.over('run')
  assert.equal(offers.take('run'), true)
  // Who only waits has just looked, and says when it is offered next: as often as who works on it, and no more often however often it asks.
  offers.over('run')
  assert.deepEqual([offers.later('run'), offers.later('run'), offers.take('run')], [500, 500, false])
  now += 500
  assert.deepEqual([offers.later('run'), offers.later('run')], [1_000, 1_000])
})

test('a tenant at its limit of calls goes on with its runs without a wake-up for each part', async (t) => {
  const s = await stage(t)
  const hog = await s.other('hog')
  assert.equal((await s.call('PATCH', '/api/tenants/hog', { limits: { workflowCalls: 4 } })).status, 200)
  const items = Array.from({ length: 30 }, (_, i) => i)
  const nodes = [{ id: 'm', type: 'map', items, node: { type: 'condition', if: 'item % 7 == 0' } }]
  const begin = () => hog('POST', '/api/workflows/runs', { definition: { name: 'hog', nodes } })
  const runs: string[] = (await Promise.all(Array.from({ length: 6 }, begin))).map(({ body }) => body.id)
  for (const id of runs) {
    for (let status = 1; status === 1;) {
      await new Promise((resolve) => setTimeout(resolve, 10))
      ;({ status } = (await hog('GET', `/api/workflows/runs/${id}`)).body)
    }
    const { body } = await hog('GET', `/api/workflows/runs/${id}`)
    assert.deepEqual([body.status, body.nodes.length], [3, 31])
  }
  // Wake-ups that are over stay for a minute, so all of them are counted.
  const [[{ count }]] = await s.database.systemBatch<[[{ count: number }]]>([
    { text: `SELECT count(*)::int AS count FROM pgboss.job WHERE name = 'workflows'` },
  ])
  assert.ok(count < 90, `${count} wake-ups for ${runs.length * items.length} parts`)
})

test('however many nodes of a tenant wait at a limit, few of them try in a second, and nodes of others do not wait for them', async () => {
  const execution = new Execution({
    scopes: { of: () => Promise.reject(overLimit('runningRuns', 1)) },
    large: new LargeTurns(),
    limits: { of: () => ({ runningRuns: limit }), stored: { admit() {}, add() {} } },
  } as unknown as ExecutionDeps)
  let limit = 0
  const tried = async (tenantId: string): Promise<number> => {
    const attempt = { tenantId, id: 'a', attempt: 1, spec: { id: 'a', type: 'agent' }, startedMs: 0, nowMs: 0 }
    const outcome: Body = await execution.make(attempt as unknown as Attempt, new AbortController().signal)
    assert.equal(outcome.kind, 'later')
    return outcome.inMs
  }
  const waits: number[] = []
  for (let n = 0; n < 100; n++) waits.push(await tried('acme'))
  assert.equal(waits[0], 1_000)
  assert.ok(waits.at(-1)! > 20_000, `100 nodes would all try within ${waits.at(-1)} ms`)
  assert.equal(await tried('globex'), 1_000)
  // The places of a tenant that may have many runs at once are all taken again within five seconds.
  limit = 500
  for (let n = 1; n < 500; n++) await tried('globex')
  const last = await tried('globex')
  assert.ok(last > 5_000 && last < 7_000, `500 nodes try within ${last} ms`)
})

test('a node whose expressions name nothing of the run reads nothing of it', async () => {
  let reads = 0
  const database = {
    batch: async () => (reads++, [[{ name: 'flow', input: '{}', bytes: 2 }], []]),
  } as unknown as Database
  const scopes = new Scopes(database, { read: async (_key: unknown, one: string) => one } as unknown as Outputs)
  const key = { tenantId: 'acme', runId: 'wfrun_1' }
  const scope = async (condition: string) =>
    scopes.of(key, { texts: [], conditions: [condition], json: { item: '3' } }, new LargeTurns().ticket('acme'))
  assert.deepEqual([(await scope('item % 7 == 0')).json, reads], [{ item: '3' }, 0])
  for (const condition of ['item == input.n', 'run.name == "flow"', 'nodes.a.output == item']) await scope(condition)
  assert.equal(reads, 3)
  assert.equal((await scope('run.name == "flow"')).values?.['run'] && reads, 4)
})
