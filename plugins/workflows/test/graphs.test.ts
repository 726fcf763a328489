import assert from 'node:assert/strict'
import { test } from 'node:test'
import { answerOf, randomGraphs } from './model.ts'
import { type Body, type Effect, type Effects, node, type Stage, stage, startEffects } from './stage.ts'

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

test('graphs and their readers, on two conductors', async (t) => {
  const http = await startEffects(t, answers)
  const s = await stage(t)
  const other = await stage(t, s)
  await t.test('a stream is one snapshot and every change behind it, and goes on at another conductor', () =>
    streams(s, other),
  )
  await t.test('another tenant sees nothing, members run and do not define, and limits are kept', () => tenants(s))
  await t.test('runs of a tenant that was deleted end, and do nothing more', () => deleted(s, http))
  await t.test('a large graph, and a wide map', () => largeGraphs(s))
  await t.test('wide graphs whose nodes put something out', () => wideOutputs(s, http.url))
  await t.test('random graphs with failures, decisions, repairs, cancels and reruns end as a small model says', () =>
    randomGraphs(s, other, http),
  )
})

async function streams(s: Stage, other: Stage): Promise<void> {
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
  // Resumes after every event, at a conductor that did not execute the run.
  for (const { id: seq } of frames) {
    assert.deepEqual(
      framesOf(await other.stream(id, seq)),
      frames.filter((one) => one.id > seq),
    )
  }
  // An id that the run has not reached is none of its events: the reader begins anew, and hears how the run ended.
  const last = frames.at(-1)!.id
  for (const stray of [last + 1, 999_999]) {
    const [anew, ...more] = framesOf(await other.stream(id, stray))
    assert.deepEqual([anew!.event, anew!.id, anew!.data.workflowRun.status, more.length], ['snapshot', last, 3, 0])
  }
}

async function tenants(s: Stage): Promise<void> {
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
  // A refused run leaves no wake-up behind.
  const woken = async (): Promise<Set<string>> => {
    const text = `SELECT data->>'runId' AS id FROM pgboss.job WHERE name = 'workflows' AND data->>'tenantId' = 'umbrella'`
    const [rows] = await s.database.systemBatch<[{ id: string }[]]>([{ text }])
    return new Set(rows.map(({ id }) => id))
  }
  const before = await woken()
  assert.equal((await umbrella('POST', '/api/workflows/runs', wait)).status, 429)
  assert.deepEqual(
    [...(await woken())].filter((id) => !before.has(id)),
    [],
  )
  await umbrella('POST', `/api/workflows/runs/${many.find(({ status }) => status === 202)!.body.id}/cancel`)
  const map = { id: 'm', type: 'map', items: [1, 2, 3], node: { type: 'condition', if: true } }
  // The other conductor learns of the limit within seconds. Until then it has room for all parts.
  for (let code: string | undefined; code === undefined;) {
    const wide = await umbrella('POST', '/api/workflows/runs', { definition: { name: 'm', nodes: [map] } })
    let { body } = await umbrella('GET', `/api/workflows/runs/${wide.body.id}`)
    while (body.status < 2) {
      await new Promise((resolve) => setTimeout(resolve, 20))
      ;({ body } = await umbrella('GET', `/api/workflows/runs/${wide.body.id}`))
    }
    code = body.nodes[0].error?.code
    assert.ok(code === undefined || code === 'limit_exceeded', code)
  }
  // The input of a run counts at once towards the stored bytes, not only at the nightly recount: there is no room for the next run.
  await s.call('PATCH', '/api/tenants/umbrella', { limits: { workflowRuns: 10, storedBytes: 200_000 } })
  const nodes = [{ id: 'c', type: 'condition', if: true }]
  const large = { definition: { name: 'l', nodes }, input: { text: 'x'.repeat(250_000) } }
  const filling = await umbrella('POST', '/api/workflows/runs', large)
  assert.equal(filling.status, 202, JSON.stringify(filling.body))
  const refused = await umbrella('POST', '/api/workflows/runs', large)
  assert.deepEqual([refused.status, refused.body.limit], [409, 'storedBytes'])
  const defined = await umbrella('POST', '/api/workflows/definitions', { name: 'd', nodes })
  assert.deepEqual([defined.status, defined.body.limit], [409, 'storedBytes'])
}

async function deleted(s: Stage, http: Effects): Promise<void> {
  const doomed = await s.other('doomed')
  const nodes = [
    { id: 'a', type: 'http', url: `${http.url}/held` },
    { id: 'b', type: 'http', url: `${http.url}/after`, dependsOn: ['a'] },
  ]
  const { body: run } = await doomed('POST', '/api/workflows/runs', { definition: { name: 'd', nodes } })
  const release = await held.promise
  assert.equal((await s.call('DELETE', '/api/tenants/doomed')).status, 204)
  release()
  const text = 'SELECT status FROM workflow_runs WHERE tenant_id = $1 AND id = $2'
  for (let status = 1; status < 3;) {
    ;[{ status }] = await s.database.tenant('doomed', (tx) => tx.query<Body>({ text, values: ['doomed', run.id] }))
    assert.ok(status < 3 || status === 5, `${status}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  assert.ok(!http.effects.some(({ path }) => path === '/after'))
}

// The largest size: AGENT_ORC_NODES=10000 npm test -- plugins/workflows/test/graphs.test.ts. For outputs 2000 is the largest: two times a thousand at
// once.
const size = Number(process.env['AGENT_ORC_NODES'] ?? 400)

async function largeGraphs(s: Stage): Promise<void> {
  const nodes = Array.from({ length: size }, (_, i) => ({
    id: `n${i}`,
    type: 'condition',
    if: true,
    ...(i < size / 4 ? {} : { dependsOn: [`n${i - size / 4}`] }),
  }))
  const run = await s.rests(await s.run(nodes))
  assert.equal(run.status, 3)
  const wide = await s.rests(
    await s.run([
      {
        id: 'm',
        type: 'map',
        items: Array.from({ length: size / 2 }, (_, i) => i),
        node: { type: 'condition', if: 'item % 2 == 0' },
      },
    ]),
  )
  assert.deepEqual(node(wide, 'm').output.slice(0, 4), [true, false, true, false])
  assert.equal(node(wide, 'm').output.length, size / 2)
}

/** Large outputs at once: those of the parts of a map, and those of separate nodes, all of which one later node names. */
async function wideOutputs(s: Stage, url: string): Promise<void> {
  const wide = Math.min(size / 2, 1_000)
  const call = { type: 'http', url: `${url}/out` }
  const id = await s.run([
    { id: 'm', type: 'map', items: Array.from({ length: wide }, (_, i) => i), node: call },
    ...Array.from({ length: wide }, (_, i) => ({ id: `w${i}`, ...call })),
    {
      id: 'end',
      type: 'map',
      dependsOn: ['m', ...Array.from({ length: wide }, (_, i) => `w${i}`)],
      items: [
        '{{ nodes.m.output | size }}',
        Array.from({ length: wide }, (_, i) => `{{ nodes.w${i}.output.status }}`).join(),
      ],
      node: { type: 'approval', message: '{{ item }}', expiresIn: 0.001, onExpiry: 'approve' },
    },
  ])
  const run = await s.rests(id)
  assert.equal(run.status, 3, JSON.stringify(run.error))
  const { body } = await s.call('GET', `/api/workflows/runs/${id}/nodes/m`)
  assert.deepEqual([body.output.length, new Set(body.output.map((one: Body) => one.body.text)).size], [wide, 1])
  const { body: asked } = await s.call('GET', `/api/approvals?workflowRunId=${id}`)
  assert.deepEqual(
    asked.map(({ message }: Body) => message).toSorted(),
    [Array(wide).fill('200').join(), String(wide)].toSorted(),
  )
}

/** Resolves when the call to `/held` has arrived, to the function that answers it. */
const held = Promise.withResolvers<() => void>()
const answers = async (effect: Effect) => {
  if (effect.path === '/held') await new Promise<void>((release) => held.resolve(release))
  if (effect.path === '/out') return { body: { text: 'x'.repeat(8_000) } }
  return answerOf(effect)
}
