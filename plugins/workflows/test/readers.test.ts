import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Body, node, stage } from './stage.ts'

interface Frame {
  readonly id: number
  readonly event: string
  readonly data: Body
}
const framesOf = (text: string): Frame[] =>
  text
    .split('\n\n')
    .filter((frame) => frame.startsWith('id: '))
    .map((frame) => {
      const [id, event, data] = frame.split('\n').map((line) => line.slice(line.indexOf(': ') + 2))
      return { id: Number(id), event: event!, data: JSON.parse(data!) as Body }
    })

test('a stream is one snapshot and every change behind it, and goes on at another conductor', async (t) => {
  const s = await stage(t)
  const id = await s.run([
    { id: 'a', type: 'wait', signal: 'a' },
    { id: 'b', type: 'condition', dependsOn: ['a'], if: true },
  ])
  await s.until(id, (run) => node(run, 'a').status === 2)
  const whole = s.stream(id)
  await s.call('POST', `/api/workflows/runs/${id}/signals/a`)
  const frames = framesOf(await whole)
  assert.deepEqual(
    frames.map(({ event }) => event),
    ['snapshot', ...frames.slice(1).map(() => 'plan_status')],
  )
  assert.equal(frames[0]!.data.workflowRun.nodes.length, 2)
  assert.equal(frames.at(-1)!.data.workflowRun.status, 3)
  assert.deepEqual(
    frames.map((one) => one.id),
    frames.map((_, i) => frames[0]!.id + i),
  )
  // From the beginning, and from behind any event, at a conductor that was not there.
  const other = await stage(t, { dsn: s.dsn })
  for (const { id: seq } of frames) {
    assert.deepEqual(
      framesOf(await other.stream(id, seq)),
      frames.filter((one) => one.id > seq),
    )
  }
})

test('another tenant sees nothing, members run and do not define, and limits are kept', async (t) => {
  const s = await stage(t)
  const umbrella = await s.other('umbrella')
  const member = await s.member()
  const definition = { name: 'mine', nodes: [{ id: 'a', type: 'wait', signal: 'a' }] }
  const { body: stored } = await s.call('POST', '/api/workflows/definitions', definition)
  const { body: run } = await member('POST', '/api/workflows/runs', { workflowDefinitionId: stored.id })
  assert.equal(run.status, 'running')
  assert.equal((await member('POST', '/api/workflows/definitions', definition)).status, 403)
  for (const [method, path, body] of [
    ['GET', `/api/workflows/definitions/${stored.id}`],
    ['GET', `/api/workflows/runs/${run.id}`],
    ['GET', `/api/workflows/runs/${run.id}/stream`],
    ['POST', `/api/workflows/runs/${run.id}/cancel`],
    ['POST', `/api/workflows/runs/${run.id}/signals/a`],
    ['PATCH', `/api/workflows/runs/${run.id}/nodes/a`, { status: 'ok' }],
    ['POST', '/api/workflows/runs', { workflowDefinitionId: stored.id }],
  ] as const) {
    assert.equal((await umbrella(method, path, body)).status, 404, path)
  }
  // Another tenant's workflow is unknown as a child, too.
  const child = await umbrella('POST', '/api/workflows/definitions', {
    name: 'x',
    nodes: [{ id: 'a', type: 'workflow', workflowDefinitionId: stored.id }],
  })
  assert.equal(child.body.error, 'invalid_workflow')
  // A version is pinned: a change is for later runs.
  await s.call('PATCH', `/api/workflows/definitions/${stored.id}`, {
    nodes: [{ id: 'b', type: 'condition', if: true }],
  })
  assert.deepEqual(
    (await s.call('GET', `/api/workflows/runs/${run.id}`)).body.nodes.map((one: Body) => one.id),
    ['a'],
  )
  assert.equal((await s.call('GET', `/api/workflows/definitions/${stored.id}`)).body.version, 2)
  const limited = await s.call('PATCH', '/api/tenants/umbrella', {
    limits: { workflowRuns: 1, workflowDefinitions: 1, workflowSchedules: 1, workflowNodes: 3 },
  })
  assert.equal(limited.status, 200, JSON.stringify(limited.body))
  const wait = { definition }
  const many = await Promise.all([1, 2, 3].map(() => umbrella('POST', '/api/workflows/runs', wait)))
  assert.deepEqual(many.map(({ status }) => status).toSorted(), [202, 429, 429])
  await umbrella('POST', `/api/workflows/runs/${many.find(({ status }) => status === 202)!.body.id}/cancel`)
  const wide = await umbrella('POST', '/api/workflows/runs', {
    definition: {
      name: 'm',
      nodes: [{ id: 'm', type: 'map', items: [1, 2, 3], node: { type: 'condition', if: true } }],
    },
  })
  for (;;) {
    const { body } = await umbrella('GET', `/api/workflows/runs/${wide.body.id}`)
    if (body.status < 2) {
      await new Promise((resolve) => setTimeout(resolve, 20))
      continue
    }
    assert.equal(body.nodes[0].error.code, 'limit_exceeded')
    break
  }
})

test('a graph of 2,000 nodes, and 1,000 parts of a map', async (t) => {
  const s = await stage(t)
  const nodes = Array.from({ length: 2_000 }, (_, i) => ({
    id: `n${i}`,
    type: 'condition',
    if: true,
    ...(i < 500 ? {} : { dependsOn: [`n${i - 500}`] }),
  }))
  const run = await s.rests(await s.run(nodes))
  assert.equal(run.status, 3)
  const wide = await s.rests(
    await s.run([
      {
        id: 'm',
        type: 'map',
        items: Array.from({ length: 1_000 }, (_, i) => i),
        node: { type: 'condition', if: 'item % 2 == 0' },
      },
    ]),
  )
  assert.deepEqual(node(wide, 'm').output.slice(0, 4), [true, false, true, false])
  assert.equal(node(wide, 'm').output.length, 1_000)
})
