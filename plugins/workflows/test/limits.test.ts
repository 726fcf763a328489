import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database } from '#contracts/database'
import type { Wake, WakeUps } from '#contracts/jobs'
import { defaultLimits } from '#contracts/limits'
import type { WorkflowNode } from '../node.schema.ts'
import { Patience } from '../patience.ts'
import { sweep } from '../woken.ts'
import { type Answer, type Body, type Call, node, type Stage, stage } from './stage.ts'

const waits = { name: 'waits', nodes: [{ id: 'w', type: 'wait', signal: 'go' }] }
const statuses = (answers: readonly Answer[]): number[] => answers.map(({ status }) => status).toSorted()
const times = <T>(count: number, make: () => Promise<T>): Promise<T[]> =>
  Promise.all(Array.from({ length: count }, make))
const limit = async (s: Stage, id: string, limits: object): Promise<void> => {
  const { status, body } = await s.call('PATCH', `/api/tenants/${id}`, { limits })
  assert.equal(status, 200, JSON.stringify(body))
}
const used = async (call: Call, name: string): Promise<number> =>
  (await call('GET', '/api/limits')).body.limits.find((one: Body) => one.name === name).used
async function until<T>(look: () => Promise<T>, holds: (found: T) => boolean): Promise<T> {
  for (;;) {
    const found = await look()
    if (holds(found)) return found
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}
const runOf = (call: Call, id: string, holds: (run: Body) => boolean): Promise<Body> =>
  until(async () => (await call('GET', `/api/workflows/runs/${id}`)).body, holds)

test('pending runs count for a limit of their own, exactly, and a start or a cancellation makes room', async (t) => {
  const s = await stage(t)
  const [hoarder, victim] = [await s.other('hoarder'), await s.other('victim')]
  const create = (call: Call, autoStart: boolean) =>
    call('POST', '/api/workflows/runs', { definition: waits, autoStart })
  await limit(s, 'hoarder', { pendingWorkflowRuns: 3, workflowRuns: 2 })
  const pending = await times(8, () => create(hoarder, false))
  assert.deepEqual(statuses(pending), [202, 202, 202, 409, 409, 409, 409, 409])
  const refused = pending.find(({ status }) => status === 409)!
  assert.deepEqual([refused.body.error, refused.body.limit], ['limit_exceeded', 'pendingWorkflowRuns'])
  assert.equal(await used(hoarder, 'pendingWorkflowRuns'), 3)
  assert.deepEqual(statuses(await times(8, () => create(victim, false))), Array(8).fill(202))
  // They take no place of runs that begin, and are created while all of these places are taken.
  assert.deepEqual(statuses(await times(2, () => create(hoarder, true))), [202, 202])
  const [first, second] = pending.filter(({ status }) => status === 202).map(({ body }) => body.id as string)
  assert.equal((await hoarder('POST', `/api/workflows/runs/${first}/cancel`)).status, 202)
  assert.deepEqual(statuses(await times(2, () => create(hoarder, false))), [202, 409])
  assert.equal((await hoarder('POST', `/api/workflows/runs/${second}/start`)).body.limit, 'workflowRuns')
  await limit(s, 'hoarder', { workflowRuns: 3 })
  assert.equal((await hoarder('POST', `/api/workflows/runs/${second}/start`)).status, 202)
  assert.deepEqual(statuses(await times(2, () => create(hoarder, false))), [202, 409])
  assert.deepEqual([await used(hoarder, 'workflowRuns'), await used(hoarder, 'pendingWorkflowRuns')], [3, 3])
  // A limit that is lowered takes nothing away.
  await limit(s, 'hoarder', { pendingWorkflowRuns: 1 })
  assert.equal((await create(hoarder, false)).status, 409)
  assert.equal(await used(hoarder, 'pendingWorkflowRuns'), 3)
})

/** A tenant with a workflow that waits, and one that has so many of these as children. */
async function parents(s: Stage, id: string, count: number) {
  const call = await s.other(id)
  const define = async (nodes: object[]): Promise<string> =>
    (await call('POST', '/api/workflows/definitions', { name: 'x', nodes })).body.id
  const leaf = await define(waits.nodes)
  const child = { type: 'workflow', workflowDefinitionId: leaf }
  const items = Array.from({ length: count }, (_, i) => i)
  const wide = [{ id: 'm', type: 'map', items, node: child }]
  const start = async (nodes: object[]): Promise<string> =>
    (await call('POST', '/api/workflows/runs', { definition: { name: 'p', nodes } })).body.id
  const open = async (): Promise<Body[]> =>
    (await call('GET', `/api/workflows/runs?status=running&workflowDefinitionId=${leaf}`)).body
  const go = async (): Promise<void> => {
    for (const { id: run } of await open()) await call('POST', `/api/workflows/runs/${run}/signals/go`, {})
  }
  return { call, define, leaf, child, wide, start, open, go }
}
/** Parts that have begun their children, or wait to do so. */
const settled = ({ nodes }: Body): number =>
  nodes.filter((one: Body) => one.workflowRunId !== undefined || (one.status === 1 && one.dueAt !== undefined)).length

test('children count on their level, wait for a place there, and begin when others end', async (t) => {
  const s = await stage(t)
  const hostile = await parents(s, 'hostile', 6)
  const victim = await parents(s, 'victim', 6)
  await limit(s, 'hostile', { workflowRuns: 2 })
  const run = await hostile.start(hostile.wide)
  await runOf(hostile.call, run, (seen) => settled(seen) === 6)
  assert.equal((await hostile.open()).length, 2)
  assert.equal(await used(hostile.call, 'workflowRuns'), 2)
  // They take no place of runs without a parent, and the children of others wait for none.
  const others = await times(2, () => hostile.call('POST', '/api/workflows/runs', { definition: waits }))
  assert.deepEqual(statuses(others), [202, 429])
  const own = await victim.start(victim.wide)
  await until(victim.open, ({ length }) => length === 6)
  await until(
    async () => {
      assert.ok((await hostile.open()).length <= 2)
      await hostile.go()
      return (await hostile.call('GET', `/api/workflows/runs/${run}`)).body
    },
    ({ status }) => status === 3,
  )
  await victim.go()
  await runOf(victim.call, own, ({ status }) => status === 3)
})

test('runs that wait for children on a full level come to an end, and a child that was begun before is joined there', async (t) => {
  const s = await stage(t)
  const { call, define, child, leaf, start, open, go } = await parents(s, 'nested', 1)
  await limit(s, 'nested', { workflowRuns: 1 })
  const middle = await define([{ id: 'c', type: 'map', items: [1, 2], node: child }])
  const inner = { type: 'workflow', workflowDefinitionId: middle }
  const run = await start([{ id: 'm', type: 'map', items: [1, 2], node: inner }])
  assert.equal((await until(open, ({ length }) => length > 0)).length, 1)
  // Its process died before it was written down that the node waits for the child.
  const [found] = await open()
  const lose = () =>
    s.database.tenant('nested', (tx) =>
      tx.query<{ run_id: string; id: string }>({
        text: `UPDATE workflow_nodes SET waits_for = NULL, lease_owner = 'dead', lease_until = now() - interval '1 second'
               WHERE tenant_id = 'nested' AND waits_for = $1 RETURNING run_id, id`,
        values: [found.id],
      }),
    )
  const [joined] = await until(lose, ({ length }) => length > 0)
  await call('POST', `/api/workflows/runs/${joined!.run_id}/signals/look`, {})
  await runOf(call, joined!.run_id, (seen) => node(seen, joined!.id).workflowRunId === found.id)
  await until(
    async () => {
      assert.ok((await open()).length <= 1)
      await go()
      return (await call('GET', `/api/workflows/runs/${run}`)).body
    },
    ({ status }) => status > 1,
  )
  assert.equal((await call('GET', `/api/workflows/runs/${run}`)).body.status, 3)
  assert.equal((await call('GET', `/api/workflows/runs?workflowDefinitionId=${leaf}`)).body.length, 4)
})

test('a child waits for its place as long as it takes, and asks more and more rarely; an agent waits for an hour', () => {
  const patience = new Patience({ of: () => defaultLimits })
  const after = (type: string, waitedMs: number): number | undefined =>
    patience.againIn({ tenantId: 't', spec: { type } as WorkflowNode, startedMs: 0, nowMs: waitedMs })
  const [soon, later, muchLater] = [0, 3_600_000, 86_400_000].map((waited) => after('workflow', waited)!)
  assert.ok(soon! < 1_100 && later! > 180_000 && muchLater! > 4_320_000, `${soon} ${later} ${muchLater}`)
  assert.ok(after('agent', 0)! < 1_100)
  assert.equal(after('agent', 3_600_000), undefined)
})

test('schedules count by their bytes, as long as they are there, and a full tenant makes no more', async (t) => {
  const s = await stage(t)
  const [full, victim] = [await s.other('full'), await s.other('victim')]
  const path = '/api/workflows/schedules'
  const scheduling = async (call: Call): Promise<(chars: number) => Promise<Answer>> => {
    const { body } = await call('POST', '/api/workflows/definitions', waits)
    return (chars) =>
      call('POST', path, { workflowDefinitionId: body.id, cron: '0 0 1 1 *', input: { text: 'ü'.repeat(chars) } })
  }
  const [schedule, other] = [await scheduling(full), await scheduling(victim)]
  const before = await used(full, 'storedBytes')
  const { body } = await schedule(200_000)
  const grown = (await used(full, 'storedBytes')) - before
  assert.ok(grown > 200_000 && grown < 210_000, String(grown))
  assert.equal((await full('DELETE', `${path}/${body.id}`)).status, 204)
  // Entries of the audit log stay.
  const left = (await used(full, 'storedBytes')) - before
  assert.ok(left >= 0 && left < 10_000, String(left))
  await limit(s, 'full', { storedBytes: before + 100_000 })
  assert.equal((await schedule(200_000)).status, 201)
  const refused = await schedule(10)
  assert.deepEqual([refused.status, refused.body.limit], [409, 'storedBytes'])
  assert.equal((await other(200_000)).status, 201)
})

test('what is sent to a run that has not asked for it counts, and a full tenant may only end what it has', async (t) => {
  const s = await stage(t)
  const [full, victim] = [await s.other('full'), await s.other('victim')]
  const nodes = [...waits.nodes, { id: 'after', type: 'condition', if: true, dependsOn: ['bad'] }]
  const bad = { id: 'bad', type: 'condition', if: 'input.none.of.it > 1' }
  const create = async (call: Call): Promise<string> =>
    (await call('POST', '/api/workflows/runs', { definition: { name: 'r', nodes: [...nodes, bad] } })).body.id
  const [run, other] = [await create(full), await create(victim)]
  const paused = (call: Call, id: string) =>
    runOf(call, id, (seen) => seen.status === 2 && node(seen, 'w').status === 2)
  await Promise.all([paused(full, run), paused(victim, other)])
  const repair = (call: Call, id: string) =>
    call('POST', `/api/workflows/runs/${id}/repair`, {
      action: 'replace_node',
      nodeId: 'after',
      node: { type: 'wait', signal: 'late', concurrencyKey: 'k'.repeat(60), retry: { max: 1 } },
    })
  const before = await used(full, 'storedBytes')
  assert.equal((await repair(full, run)).status, 200)
  assert.ok((await used(full, 'storedBytes')) - before >= 100)
  await limit(s, 'full', { storedBytes: 1_000 })
  const signal = (call: Call, id: string, name: string) =>
    call('POST', `/api/workflows/runs/${id}/signals/${name}`, { payload: 'x' })
  for (const refused of [await repair(full, run), await signal(full, run, 'unasked')])
    assert.deepEqual([refused.status, refused.body.limit], [409, 'storedBytes'], JSON.stringify(refused))
  assert.equal((await signal(full, run, 'go')).status, 204)
  const end = { status: 'skipped' }
  assert.equal((await full('PATCH', `/api/workflows/runs/${run}/nodes/bad`, end)).status, 200)
  assert.deepEqual([(await repair(victim, other)).status, (await signal(victim, other, 'unasked')).status], [200, 204])
})

test('messages of approvals and errors of nodes count as they are stored', async (t) => {
  const s = await stage(t)
  const tenant = await s.other('asks')
  const grows = async (definition: object, input: object, holds: (run: Body) => boolean): Promise<number> => {
    const before = await used(tenant, 'storedBytes')
    const { body } = await tenant('POST', '/api/workflows/runs', { definition, input })
    await runOf(tenant, body.id, holds)
    return (await used(tenant, 'storedBytes')) - before
  }
  const asks = { name: 'a', nodes: [{ id: 'ok', type: 'approval', message: '{{ input.text }}' }] }
  const text = 'x'.repeat(15_000)
  assert.ok((await grows(asks, { text }, (run) => node(run, 'ok').approvalId !== undefined)) > 30_000)
})

test('a tenant whose runs cannot be read keeps nobody else from being swept', async () => {
  const swept: string[] = []
  const database = {
    as: () => database,
    systemBatch: async () => [[{ id: 'hostile' }, { id: 'victim' }]],
    batch: async (tenantId: string) => {
      if (tenantId === 'hostile') throw new Error('canceling statement due to statement timeout')
      return [[{ id: 'wfrun_1' }], [], []]
    },
  }
  const wakeUps = { send: async (wakes: Wake[]) => void swept.push(...wakes.map(({ tenantId }) => tenantId)) }
  const all = sweep(database as unknown as Database, wakeUps as unknown as WakeUps, new AbortController().signal)
  await assert.rejects(all, /1 tenants failed/)
  assert.deepEqual(swept, ['victim'])
})
