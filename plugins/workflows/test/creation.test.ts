import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Body, stage, startEffects } from './stage.ts'

/** Pending wake-ups, with their keys and the seconds until they are due. */
const waking = `SELECT singleton_key AS key, extract(epoch FROM start_after - now())::float8 AS seconds FROM pgboss.job
                WHERE name = 'workflows' AND state = 'created'`

test('whoever creates a run begins it, another process would come after its leases, and nothing of it is left in the end', async (t) => {
  let release = (): void => {}
  const hanging = new Promise<void>((resolve) => (release = resolve))
  let called = (): void => {}
  const isCalled = new Promise<void>((resolve) => (called = resolve))
  const http = await startEffects(t, async () => {
    called()
    await hanging
    return {}
  })
  t.after(() => release())
  const s = await stage(t)
  const guards = async (id: string): Promise<Body[]> => {
    const [rows] = await s.database.systemBatch<[Body[]]>([{ text: waking }])
    return rows.filter(({ key }) => key.startsWith(id))
  }
  const id = await s.run([
    { id: 'a', type: 'http', url: `${http.url}/a` },
    { id: 'b', type: 'condition', dependsOn: ['a'], if: true },
    { id: 'c', type: 'condition', if: true },
  ])
  await isCalled
  const under = await s.until(id, (run) => run.nodes[2].status === 3)
  assert.deepEqual([under.status, under.nodes[0].status, under.nodes[0].attempt], [1, 2, 1])
  const [guard, ...more] = await guards(id)
  assert.deepEqual([guard.key, more], [`${id}/guard`, []])
  assert.ok(guard.seconds > 20 && guard.seconds < 31, String(guard.seconds))
  release()
  assert.equal((await s.rests(id)).status, 3)
  assert.deepEqual(await guards(id), [])
  // The stream reports the first nodes like all others, although the creating process began them.
  const [events] = await s.database.batch<[{ seq: number; event: string }[]]>('default', [
    {
      text: `SELECT seq, event FROM workflow_events WHERE tenant_id = 'default' AND run_id = $1 ORDER BY seq`,
      values: [id],
    },
  ])
  const { nodes } = JSON.parse(events[0]!.event).workflowRun
  assert.deepEqual(
    [events[0]!.seq, nodes.map((one: Body) => [one.id, one.status, one.attempt])],
    [
      1,
      [
        ['a', 2, 1],
        ['c', 2, 1],
      ],
    ],
  )
})

test('what one dead process left is done at once, and what another one holds is looked at when its lease is over', async (t) => {
  const s = await stage(t)
  const nodes = ['a', 'b'].map((id) => ({ id, type: 'condition', if: true }))
  const { body } = await s.call('POST', '/api/workflows/runs', {
    definition: { name: 'left', nodes },
    autoStart: false,
  })
  const change = (text: string) =>
    s.database.tenant('default', (tx) => tx.query({ text, values: ['default', body.id] }))
  const leave = (node: string, seconds: number) =>
    change(`UPDATE workflow_nodes SET status = 2, attempt = 1, effect = 1, lease_owner = 'dead', lease_until = now() + interval '${seconds} s'
            WHERE tenant_id = $1 AND run_id = $2 AND id = '${node}'`)
  await change('UPDATE workflow_runs SET status = 1 WHERE tenant_id = $1 AND id = $2')
  await leave('a', -1)
  await leave('b', 60)
  await s.call('POST', `/api/workflows/runs/${body.id}/signals/look`)
  await s.until(body.id, ({ nodes }) => nodes.find(({ id }: Body) => id === 'a').status === 3)
  const guards = async (): Promise<Body[]> => {
    const [rows] = await s.database.systemBatch<[Body[]]>([{ text: waking }])
    return rows.filter(({ key }) => key === `${body.id}/guard`)
  }
  let found: Body[] = []
  while (found.length === 0) found = await guards()
  assert.ok(found[0]!.seconds > 30 && found[0]!.seconds < 61, JSON.stringify(found))
  await leave('b', -1)
  await s.call('POST', `/api/workflows/runs/${body.id}/signals/look`)
  assert.equal((await s.rests(body.id)).status, 3)
})

test('a definition is answered with the schemas that it was given', async (t) => {
  const s = await stage(t)
  const schema = { type: 'object', properties: { sum: { type: 'number' } }, required: ['sum'] }
  const nodes = [{ id: 'first', type: 'condition', if: true }]
  const given = { inputSchema: schema, outputSchema: { ...schema, title: 'out' } }
  const { body } = await s.call('POST', '/api/workflows/definitions', { name: 'typed', nodes, ...given })
  const changed = await s.call('PATCH', `/api/workflows/definitions/${body.id}`, { description: 'x' })
  const read = await s.call('GET', `/api/workflows/definitions/${body.id}`)
  for (const { inputSchema, outputSchema } of [body, changed.body, read.body])
    assert.deepEqual({ inputSchema, outputSchema }, given)
})

test('a definition that was used before is used as it is now, or not at all', async (t) => {
  const s = await stage(t)
  const define = (nodes: object[]) => ({ name: 'changing', nodes })
  const first = { id: 'first', type: 'condition', if: true }
  const second = { id: 'second', type: 'condition', if: true, dependsOn: ['first'] }
  const { body } = await s.call('POST', '/api/workflows/definitions', define([first]))
  const create = () => s.call('POST', '/api/workflows/runs', { workflowDefinitionId: body.id })
  const nodesOf = async (): Promise<string[]> =>
    (await s.rests((await create()).body.id)).nodes.map(({ id }: Body) => id)
  assert.deepEqual([await nodesOf(), await nodesOf()], [['first'], ['first']])
  const changed = await s.call('PATCH', `/api/workflows/definitions/${body.id}`, { nodes: [first, second] })
  assert.equal(changed.status, 200, JSON.stringify(changed.body))
  assert.deepEqual(
    [await nodesOf(), await nodesOf()],
    [
      ['first', 'second'],
      ['first', 'second'],
    ],
  )
  assert.equal((await s.call('DELETE', `/api/workflows/definitions/${body.id}`)).status, 204)
  assert.equal((await create()).status, 404)
})

test('changes of one definition at the same time are all kept, and one that changes nothing makes no version', async (t) => {
  const s = await stage(t)
  const node = { id: 'first', type: 'condition', if: true }
  const { body } = await s.call('POST', '/api/workflows/definitions', { name: 'shared', nodes: [node] })
  const path = `/api/workflows/definitions/${body.id}`
  const changes = [{ name: 'renamed' }, { description: 'what it is for' }, { nodes: [node, { ...node, id: 'second' }] }]
  const answers = await Promise.all(changes.map((change) => s.call('PATCH', path, change)))
  assert.deepEqual(
    answers.map(({ status }) => status),
    [200, 200, 200],
    JSON.stringify(answers),
  )
  const { body: now } = await s.call('GET', path)
  assert.deepEqual(
    [now.version, now.name, now.description, now.nodes.length],
    [4, 'renamed', 'what it is for', 2],
    JSON.stringify(now),
  )
  for (const same of [{}, { name: 'renamed' }, { nodes: now.nodes }])
    assert.equal((await s.call('PATCH', path, same)).body.version, 4)
})

test('a definition that was changed has no more values than one that is sent as a whole', async (t) => {
  const s = await stage(t)
  const nodes = [{ id: 'first', type: 'wait', seconds: 0 }]
  const output = Array<number>(120_000).fill(0)
  const { body } = await s.call('POST', '/api/workflows/definitions', { name: 'grows', nodes, output })
  const path = `/api/workflows/definitions/${body.id}`
  const many = [{ id: 'first', type: 'tool', tool: 'calculate', arguments: { expression: '1', output } }]
  const { status, body: problem } = await s.call('PATCH', path, { nodes: many })
  assert.deepEqual([status, problem.error], [400, 'invalid_request'])
  assert.match(problem.message, /more than 200000 values/)
  assert.equal((await s.call('PATCH', path, { nodes: many, output: 'x' })).body.version, 2)
})

test('a tenant that is full of runs is refused, and leaves no wake-ups behind', async (t) => {
  const s = await stage(t)
  const full = await s.other('full')
  await s.call('PATCH', '/api/tenants/full', { limits: { workflowRuns: 1 } })
  const definition = { name: 'waits', nodes: [{ id: 'a', type: 'wait', signal: 'never' }] }
  const { body } = await full('POST', '/api/workflows/definitions', definition)
  const create = () => full('POST', '/api/workflows/runs', { workflowDefinitionId: body.id })
  const begun = await create()
  assert.equal(begun.status, 202)
  for (let i = 0; i < 4; i++) assert.deepEqual((await create()).body.error, 'limit_reached')
  const [left] = await s.database.systemBatch<[Body[]]>([{ text: waking }])
  const others = left.filter(({ key }) => key.startsWith('wfrun_') && !key.startsWith(begun.body.id))
  // The first refused creation used the definition in memory and left one wake-up behind. The later ones check the limit first and leave none.
  assert.ok(others.length <= 1, JSON.stringify(others))
})

test('a run of a large stored definition takes the turns of as many writes as it has bytes', async (t) => {
  const s = await stage(t)
  const define = async (chars: number): Promise<string> => {
    const call = { id: 'a', type: 'http', method: 'POST', url: 'https://example.com/', body: 'x'.repeat(chars) }
    return (await s.call('POST', '/api/workflows/definitions', { name: 'x', nodes: [call] })).body.id
  }
  const [small, middle, large] = [await define(1_000), await define(100_000), await define(1_000_000)]
  const taken: number[] = []
  const take = s.limits.turn.bind(s.limits)
  t.mock.method(s.limits, 'turn', (...[tenantId, kind, turns, options]: Parameters<typeof take>) => {
    taken.push(turns)
    return take(tenantId, kind, turns, options)
  })
  // Of each the first time, and when it is known. The request itself is a turn as well.
  for (const workflowDefinitionId of [small, small, middle, middle, large, large]) {
    const { status, body } = await s.call('POST', '/api/workflows/runs', { workflowDefinitionId, autoStart: false })
    assert.equal(status, 202, JSON.stringify(body))
  }
  assert.deepEqual(taken, [1, 1, 1, 3, 1, 3, 1, 30, 1, 30])
})
