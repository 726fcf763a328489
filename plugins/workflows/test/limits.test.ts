import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database } from '#contracts/database'
import type { Wake, WakeUps } from '#contracts/jobs'
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

test('children count for nothing but their bytes: they were counted with their run, however many there are', async (t) => {
  const s = await stage(t)
  const call = await s.other('parents')
  await limit(s, 'parents', { workflowRuns: 1, pendingWorkflowRuns: 0 })
  const { body: leaf } = await call('POST', '/api/workflows/definitions', waits)
  const child = { type: 'workflow', workflowDefinitionId: leaf.id }
  const nodes = [{ id: 'm', type: 'map', items: [1, 2, 3], node: child }]
  const { body: run } = await call('POST', '/api/workflows/runs', { definition: { name: 'p', nodes } })
  const children = async (): Promise<Body[]> =>
    (await call('GET', `/api/workflows/runs?status=running&workflowDefinitionId=${leaf.id}`)).body
  const begun = await until(children, ({ length }) => length === 3)
  assert.equal(await used(call, 'workflowRuns'), 1)
  assert.equal((await call('POST', '/api/workflows/runs', { definition: waits })).status, 429)
  for (const { id } of begun) await call('POST', `/api/workflows/runs/${id}/signals/go`, {})
  await runOf(call, run.id, ({ status }) => status === 3)
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
  const long = { status: 'error', error: 'x'.repeat(1_000) }
  const told = await full('PATCH', `/api/workflows/runs/${run}/nodes/after`, long)
  assert.deepEqual([told.status, told.body.limit], [409, 'storedBytes'])
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
  const warned: unknown[] = []
  const log = { warn: (about: { tenant: string }) => void warned.push(about.tenant) }
  const parts = { database: database as unknown as Database, wakeUps: wakeUps as unknown as WakeUps, log }
  await sweep(parts, new AbortController().signal)
  assert.deepEqual([warned, swept], [['hostile'], ['victim']])
})
