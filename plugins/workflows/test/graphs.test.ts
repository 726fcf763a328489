import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
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
  const http = await startEffects(t, answerOf)
  const s = await stage(t)
  const other = await stage(t, { dsn: s.dsn })
  await t.test('a stream is one snapshot and every change behind it, and goes on at another conductor', () =>
    streams(s, other),
  )
  await t.test('another tenant sees nothing, members run and do not define, and limits are kept', () => tenants(s))
  await t.test('a large graph, and a wide map', () => largeGraphs(s))
  await t.test('random graphs with failures, repairs and cancels end as a small model says', () =>
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
  // From the beginning, and from behind any event, at a conductor that was not there.
  for (const { id: seq } of frames) {
    assert.deepEqual(
      framesOf(await other.stream(id, seq)),
      frames.filter((one) => one.id > seq),
    )
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
  await umbrella('POST', `/api/workflows/runs/${many.find(({ status }) => status === 202)!.body.id}/cancel`)
  const map = { id: 'm', type: 'map', items: [1, 2, 3], node: { type: 'condition', if: true } }
  // The other conductor hears of the limit within seconds; until then it has room for all parts.
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
  // What runs are given counts at once, and not with the next count of the night: there is no room for the next run.
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

async function largeGraphs(s: Stage): Promise<void> {
  // The largest: AGENT_ORC_NODES=10000 npm test -- plugins/workflows/test/graphs.test.ts
  const size = Number(process.env['AGENT_ORC_NODES'] ?? 400)
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

interface Plan {
  /** Indices of earlier nodes. */
  readonly after: readonly number[]
  readonly fails: number
  readonly retries: number
  readonly goesOn: boolean
}
const plans = fc
  .array(
    fc.record({
      after: fc.array(fc.nat(9), { maxLength: 3 }),
      fails: fc.oneof({ weight: 3, arbitrary: fc.constant(0) }, { weight: 1, arbitrary: fc.nat(4) }),
      retries: fc.nat(2),
      goesOn: fc.boolean(),
    }),
    { minLength: 1, maxLength: 9 },
  )
  .map((nodes): Plan[] => nodes.map((plan, i) => ({ ...plan, after: [...new Set(plan.after)].filter((j) => j < i) })))

/** What a graph has to come to, whatever order its nodes run in: each node's status, and how often it was called. */
function model(nodes: readonly Plan[]): { status: number; calls: number }[] {
  return nodes.map(({ fails, retries, goesOn }) => {
    if (!goesOn) return { status: 3, calls: fails + 1 }
    const failed = fails > retries
    return { status: failed ? 4 : 3, calls: failed ? retries + 1 : fails + 1 }
  })
}

/** How often each path still fails. */
const left = new Map<string, number>()
const answerOf = ({ path }: Effect) => {
  const fails = left.get(path) ?? 0
  left.set(path, fails - 1)
  return fails > 0 ? { status: 500 } : {}
}

async function randomGraphs(one: Stage, two: Stage, http: Effects): Promise<void> {
  let graph = 0
  const property = fc.asyncProperty(plans, fc.option(fc.nat(3)), async (nodes, cancelAfter) => {
    const name = `g${++graph}`
    nodes.forEach(({ fails }, i) => left.set(`/${name}/${i}`, fails))
    const id = await (graph % 2 ? one : two).run(
      nodes.map(({ after, retries, goesOn }, i) => ({
        id: `n${i}`,
        type: 'http',
        url: `${http.url}/${name}/${i}`,
        dependsOn: after.map((j) => `n${j}`),
        retry: { max: retries, delaySeconds: 0 },
        continueOnError: goesOn,
      })),
    )
    const callsOf = (i: number) => http.effects.filter(({ path }) => path === `/${name}/${i}`)
    for (let repairs = 0; ; repairs++) {
      const run = await two.rests(id)
      if (run.status !== 2) {
        assert.equal(run.status, 3)
        break
      }
      // What is finished is kept while the others go on.
      const failed = run.nodes.find((each: Body) => each.status === 4 && !nodes[Number(each.id.slice(1))]!.goesOn)
      assert.ok(failed, 'a paused run has a failed node')
      if (repairs === cancelAfter) {
        await one.call('POST', `/api/workflows/runs/${id}/cancel`)
        const { nodes: after, status } = await one.rests(id)
        assert.equal(status, 5)
        for (const each of after) assert.ok(each.status > 2, `${each.id} is ${each.status}`)
        return
      }
      await one.call('POST', `/api/workflows/runs/${id}/repair`, { action: 'retry_node', nodeId: failed.id })
    }
    const run = await one.rests(id)
    for (const [i, { status, calls }] of model(nodes).entries()) {
      assert.equal(node(run, `n${i}`).status, status, `n${i}`)
      const made = callsOf(i)
      assert.equal(made.length, calls, `calls of n${i}`)
      assert.equal(new Set(made.map(({ attempt }) => attempt)).size, calls, 'no attempt was made twice')
    }
    // Nothing began before all that it depends on was over.
    const first = (i: number): number => http.effects.findIndex(({ path }) => path === `/${name}/${i}`)
    const last = (i: number): number => http.effects.findLastIndex(({ path }) => path === `/${name}/${i}`)
    nodes.forEach(({ after }, i) => after.forEach((j) => assert.ok(last(j) < first(i), `n${i} after n${j}`)))
  })
  // More of them: AGENT_ORC_GRAPHS=500 npm test -- plugins/workflows/test/graphs.test.ts
  const many = process.env['AGENT_ORC_GRAPHS']
  const random = many === undefined ? { numRuns: 20, seed: 17 } : { numRuns: Number(many) }
  await fc.assert(property, { ...random, endOnFailure: true })
}
