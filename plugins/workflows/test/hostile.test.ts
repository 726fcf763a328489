/* oxlint-disable unicorn/no-thenable -- nodes of type condition have a field of that name. */
import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import type { WakeUps } from '#contracts/jobs'
import { sweep } from '../woken.ts'
import { type Body, node, type Stage, stage, startEffects } from './stage.ts'

test('what hostile tenants ask, and what unlucky ones meet', async (t) => {
  const http = await startEffects(t, async ({ path }) => {
    if (path === '/hangs') await new Promise<never>(() => {})
    if (path === '/away') return { status: 302, location: `${http.url}/inner` }
    return path === '/fails' ? { status: 422 } : {}
  })
  const s = await stage(t)
  await t.test('a NUL is refused where it names something, and does no harm anywhere else', () => nul(s, http.url))
  await t.test('a redirect is an answer, and is not followed', async () => {
    const run = await s.rests(await s.run([{ id: 'a', type: 'http', url: `${http.url}/away` }]))
    assert.deepEqual([run.status, node(run, 'a').output.status], [3, 302])
    assert.ok(!http.effects.some(({ path }) => path === '/inner'))
  })
  await t.test('a map that somebody ends takes its parts with it, those that failed as well', () => ended(s, http.url))
  await t.test('repairs of parts, of conditions, and of what waits for a failure that was passed', () =>
    repaired(s, http.url),
  )
  await t.test('dependencies are bounded, also those that a repair adds, and one that is named twice is one', () =>
    edges(s, http.url),
  )
  await t.test('a snapshot counts as an answer that is not read until its stream has handed it over', (t) => held(t, s))
  await t.test('signals of one name wait in line', async () => {
    const id = await s.run([
      { id: 'pause', type: 'wait', signal: 'pause' },
      ...[1, 2, 3].map((n) => ({
        id: `w${n}`,
        type: 'wait',
        signal: 'go',
        dependsOn: [n > 1 ? `w${n - 1}` : 'pause'],
      })),
    ])
    const send = async (name: string, payload?: unknown): Promise<void> => {
      const { status, body } = await s.call('POST', `/api/workflows/runs/${id}/signals/${name}`, { payload })
      assert.equal(status, 204, JSON.stringify(body))
    }
    for (const payload of [1, '2\0', null]) await send('go', payload)
    await send('pause')
    const run = await s.rests(id)
    assert.deepEqual(
      [1, 2, 3].map((n) => node(run, `w${n}`).output),
      [1, '2\0', null],
    )
  })
  await t.test('neither starts nor reruns pass the limit of runs, and what a rerun copies is stored', () => bounds(s))
  await t.test('what nobody is woken for is found, however many wait for people', () => swept(s))
  await t.test('a key that is freed goes to a run that goes on, not to paused ones', () => keys(s, http.url))
})

async function nul(s: Stage, url: string): Promise<void> {
  const wait = { id: 'a', type: 'wait', seconds: 0 }
  const run = (nodes: object[], name = 'x') => s.call('POST', '/api/workflows/runs', { definition: { name, nodes } })
  const refused = [
    await run([wait], 'a\0b'),
    await s.call('POST', '/api/workflows/definitions', { name: 'a\0b', nodes: [wait] }),
    await s.call('POST', '/api/workflows/runs', { workflowDefinitionId: 'a\0b' }),
    await s.call('POST', '/api/workflows/schedules', { workflowDefinitionId: 'a\0b', cron: '0 0 1 1 *' }),
    await run([{ id: 'a', type: 'workflow', workflowDefinitionId: 'a\0b' }]),
    await run([{ id: 'a', type: 'tool', tool: 'a\0/b' }]),
    await run([{ ...wait, concurrencyKey: 'a\0b' }]),
    await run([{ id: 'm', type: 'map', items: [1], node: { type: 'wait', seconds: 0, concurrencyKey: 'a\0b' } }]),
  ]
  assert.deepEqual(
    refused.map(({ status }) => status),
    refused.map(() => 400),
  )
  await s.call('POST', '/api/profiles', { name: 'echo', model: 'builtin/demo' })
  const id = await s.run(
    [
      { id: 'a', type: 'agent', profile: 'echo', prompt: 'a\0b', metadata: { 'k\0': '{{ input }}\0' } },
      { id: 'b', type: 'approval', message: '{{ input }}\0', expiresIn: 0.01, onExpiry: 'approve' },
      { id: 'c', type: 'http', method: 'POST', url: `${url}/fails`, body: ['a\0b'], continueOnError: true },
      { id: 'd', type: 'condition', dependsOn: ['c'], if: 'nodes.c.error.code == "http_status" && size(input) == 2' },
    ],
    { input: '\0\0' },
  )
  const over = await s.rests(id)
  assert.deepEqual([over.status, over.nodes.map(({ status }: Body) => status)], [3, [3, 3, 4, 3]], JSON.stringify(over))
  const { status, body } = await s.call('POST', `/api/workflows/runs/${id}/rerun`, { fromNodeId: 'd' })
  assert.equal(status, 202, JSON.stringify(body))
  assert.equal((await s.rests(body.id)).status, 3)
  const bad = await s.call('POST', `/api/workflows/runs/${id}/rerun`, { fromNodeId: 'd\0' })
  assert.equal(bad.status, 400)
}

async function ended(s: Stage, url: string): Promise<void> {
  const { body: child } = await s.call('POST', '/api/workflows/definitions', {
    name: 'waits',
    nodes: [{ id: 'w', type: 'wait', signal: 'never' }],
  })
  const id = await s.run([
    { id: 'm', type: 'map', items: [1, 2], node: { type: 'workflow', workflowDefinitionId: child.id } },
    { id: 'go', type: 'wait', signal: 'go' },
    { id: 'f', type: 'map', items: [1], dependsOn: ['go'], node: { type: 'http', url: `${url}/fails` } },
    { id: 'z', type: 'wait', dependsOn: ['m', 'f'], seconds: 0 },
  ])
  const run = await s.until(id, (now) => [0, 1].every((n) => node(now, `m.${n}`)?.workflowRunId))
  // Not before: a failure holds up what has not begun.
  assert.equal((await s.call('POST', `/api/workflows/runs/${id}/signals/go`, {})).status, 204)
  await s.until(id, ({ status }) => status === 2)
  for (const [map, status] of [
    ['m', 'ok'],
    ['f', 'skipped'],
  ])
    assert.equal((await s.call('PATCH', `/api/workflows/runs/${id}/nodes/${map}`, { status, output: [] })).status, 200)
  const over = await s.until(id, ({ status }) => status > 2)
  assert.deepEqual(
    [over.status, over.nodes.map((one: Body) => `${one.id}: ${one.status}`)],
    [3, ['m: 3', 'm.0: 6', 'm.1: 6', 'go: 3', 'f: 5', 'f.0: 6', 'z: 3']],
  )
  for (const part of ['m.0', 'm.1']) await s.until(node(run, part).workflowRunId, ({ status }) => status === 5)
}

async function repaired(s: Stage, url: string): Promise<void> {
  const fails = { type: 'http', url: `${url}/fails` }
  const id = await s.run([
    { id: 'm', type: 'map', items: [1], node: fails },
    { id: 'c', type: 'wait', signal: 'never' },
    { id: 'passed', ...fails, continueOnError: true },
    { id: 'yes', type: 'wait', dependsOn: ['m'], seconds: 0 },
    { id: 'no', type: 'wait', dependsOn: ['m'], seconds: 0 },
  ])
  const repair = (body: object) => s.call('POST', `/api/workflows/runs/${id}/repair`, body)
  await s.until(id, (run) => node(run, 'm.0')?.status === 4 && node(run, 'passed').status === 4)
  await s.until(id, (run) => node(run, 'c').status === 2)
  assert.equal((await s.call('PATCH', `/api/workflows/runs/${id}/nodes/c`, { status: 'error' })).status, 200)
  const added = await repair({ action: 'add_dependency', nodeId: 'yes', dependsOn: 'passed' })
  assert.equal(added.status, 200, JSON.stringify(added.body))
  const inPart = await repair({
    action: 'replace_node',
    nodeId: 'm.0',
    node: { type: 'condition', if: true, else: ['yes'] },
  })
  assert.deepEqual([inPart.status, inPart.body.issues?.[0].path], [400, 'node'])
  assert.equal(
    (await repair({ action: 'replace_node', nodeId: 'm.0', node: { type: 'wait', seconds: 0 } })).status,
    200,
  )
  const replace = (branches: object) =>
    repair({ action: 'replace_node', nodeId: 'c', node: { type: 'condition', if: true, ...branches } })
  assert.equal((await replace({ else: ['nobody'] })).body.error, 'invalid_workflow')
  assert.equal((await replace({ else: ['passed'] })).body.error, 'node_over')
  assert.equal((await replace({ else: ['no'] })).status, 200)
  const run = await s.until(id, ({ status }) => status > 2)
  assert.deepEqual([run.status, node(run, 'yes').status, node(run, 'no').status], [3, 3, 5])
  assert.deepEqual(node(run, 'no').dependsOn.toSorted(), ['c', 'm'])
}

async function edges(s: Stage, url: string): Promise<void> {
  // Each node depends on all before: 39,903 dependencies.
  const nodes = Array.from({ length: 283 }, (_, i) => ({
    id: `n${i}`,
    ...(i === 0 ? { type: 'http', url: `${url}/fails` } : { type: 'condition', if: true }),
    dependsOn: Array.from({ length: i }, (_, j) => `n${j}`),
  }))
  const behind = (id: string, before: string) => ({ id, type: 'condition', if: true, dependsOn: [before] })
  const more = Array.from({ length: 98 }, (_, i) => behind(`m${i}`, 'n0'))
  const tooMany = await s.call('POST', '/api/workflows/runs', { definition: { name: 'x', nodes: [...nodes, ...more] } })
  assert.deepEqual([tooMany.status, tooMany.body.issues?.[0].path], [400, 'definition/nodes'])
  const id = await s.run([...nodes, ...more.slice(5), behind('last', 'n0'), behind('free', 'n282')])
  await s.until(id, ({ status }) => status === 2)
  const repair = (body: object) => s.call('POST', `/api/workflows/runs/${id}/repair`, body)
  const add = (dependsOn: string[]) => repair({ action: 'add_dependency', nodeId: 'last', dependsOn })
  const added = await add(['n2', 'n2', 'n0'])
  assert.equal(added.status, 200, JSON.stringify(added.body).slice(0, 1_000))
  assert.deepEqual(node(added.body, 'last').dependsOn.toSorted(), ['n0', 'n2'])
  const refused = await add(['n3', 'n4'])
  assert.deepEqual([refused.status, refused.body.error], [400, 'invalid_workflow'])
  assert.match(refused.body.message, /at most 40000 dependencies/)
  const branches = { type: 'condition', if: true, then: ['n3', 'free'], else: ['last', 'm5'] }
  const replaced = await repair({ action: 'replace_node', nodeId: 'n0', node: branches })
  assert.equal(replaced.status, 200, JSON.stringify(replaced.body).slice(0, 1_000))
  assert.deepEqual(node(replaced.body, 'free').dependsOn.toSorted(), ['n0', 'n282'])
  assert.equal((await s.call('POST', `/api/workflows/runs/${id}/cancel`)).status, 202)
}

async function held(t: TestContext, s: Stage): Promise<void> {
  const used = async (): Promise<number | undefined> => (await s.limits.usedBy('default')).answerBytes
  const id = await s.run([{ id: 'a', type: 'wait', signal: 'a' }], { input: 'x'.repeat(100_000) })
  const other = s.limits.holdAnswer('default', s.limits.of('default').answerBytes)
  assert.ok(typeof other === 'function')
  const refused = await s.call('GET', `/api/workflows/runs/${id}`)
  assert.deepEqual([refused.status, refused.body.limit], [429, 'answerBytes'])
  assert.match(await s.stream(id), /"limit":"answerBytes"/)
  other()
  const { mock } = t.mock.method(s.limits, 'holdAnswer')
  const whole = s.stream(id)
  while (mock.callCount() === 0) await new Promise(setImmediate)
  assert.ok(mock.calls[0]!.arguments[1] > 100_000)
  // The stream goes on, and holds nothing any more.
  while ((await used()) !== 0) await new Promise(setImmediate)
  assert.equal((await s.call('POST', `/api/workflows/runs/${id}/signals/a`, {})).status, 204)
  assert.match(await whole, /event: snapshot[^]*event: plan_status/)
}

async function bounds(s: Stage): Promise<void> {
  const umbrella = await s.other('umbrella')
  const wait = { name: 'w', nodes: [{ id: 'a', type: 'wait', signal: 'a' }] }
  const create = async (more: object): Promise<Body> =>
    (await umbrella('POST', '/api/workflows/runs', { definition: wait, ...more })).body
  const pending = await Promise.all([1, 2, 3].map(() => create({ autoStart: false })))
  const open = await create({ input: { text: 'x'.repeat(50_000) } })
  await umbrella('POST', `/api/workflows/runs/${open.id}/cancel`)
  await s.call('PATCH', '/api/tenants/umbrella', { limits: { workflowRuns: 2 } })
  const started = await Promise.all(pending.map(({ id }) => umbrella('POST', `/api/workflows/runs/${id}/start`)))
  assert.deepEqual(started.map(({ status }) => status).toSorted(), [202, 202, 429])
  // Starting is idempotent: a run that has begun is not refused by the limit.
  const begun = pending[started.findIndex(({ status }) => status === 202)]
  assert.equal((await umbrella('POST', `/api/workflows/runs/${begun.id}/start`)).status, 202)
  const rerun = () => umbrella('POST', `/api/workflows/runs/${open.id}/rerun`, { fromNodeId: 'a' })
  assert.deepEqual([(await rerun()).status, (await rerun()).body.error], [429, 'limit_reached'])
  await umbrella('POST', `/api/workflows/runs/${begun.id}/cancel`)
  const used = async (): Promise<number> =>
    (await umbrella('GET', '/api/limits')).body.limits.find(({ name }: Body) => name === 'storedBytes').used
  const before = await used()
  assert.equal((await rerun()).status, 202)
  assert.ok((await used()) - before > 50_000)
}

async function swept(s: Stage): Promise<void> {
  const { body: child } = await s.call('POST', '/api/workflows/definitions', {
    name: 'forgotten',
    nodes: [{ id: 'w', type: 'wait', signal: 'never' }],
  })
  const waits = await s.run([{ id: 'w', type: 'wait', signal: 'never' }])
  const parent = await s.run([{ id: 'sub', type: 'workflow', workflowDefinitionId: child.id }])
  const stuck = await s.run([{ id: 'w', type: 'wait', seconds: 0 }], { autoStart: false })
  await s.until(waits, (run) => node(run, 'w').status === 2)
  const inner = node(await s.until(parent, (run) => node(run, 'sub').workflowRunId), 'sub').workflowRunId
  // Waits until no wake-up for the child is pending.
  const open = { text: `SELECT 1 FROM pgboss.job WHERE data->>'child' = $1 AND state < 'completed'`, values: [inner] }
  while ((await s.database.systemBatch<[object[]]>([open]))[0].length > 0)
    await new Promise((resolve) => setTimeout(resolve, 10))
  await s.database.batch(
    'default',
    [
      `UPDATE workflow_runs SET moved_at = now() - interval '1 hour', status = CASE WHEN id = $5 THEN 3 ELSE 1 END WHERE tenant_id = $1 AND id IN ($2, $3, $4, $5)`,
      `UPDATE workflow_nodes SET started_at = now() - interval '1 hour', status = CASE WHEN run_id = $4 THEN 1 ELSE status END WHERE tenant_id = $1 AND run_id IN ($2, $3, $4, $5)`,
    ].map((text) => ({ text, values: ['default', waits, parent, stuck, inner] })),
  )
  const woken: unknown[] = []
  const wakeUps = { send: async (wakes: Body[]) => void woken.push(...wakes.map(({ what }) => what)) }
  const log = { warn: (about: object) => assert.fail(JSON.stringify(about)) }
  await sweep({ database: s.database, wakeUps: wakeUps as unknown as WakeUps, log }, new AbortController().signal)
  const tenantId = 'default'
  assert.deepEqual(woken, [
    { tenantId, runId: stuck },
    { tenantId, runId: parent, node: 'sub', child: inner },
  ])
}

async function keys(s: Stage, url: string): Promise<void> {
  const keyed = { id: 'k', type: 'wait', seconds: 0, concurrencyKey: 'one' }
  const holder = await s.run([{ ...keyed, signal: 'free', seconds: 3_600 }])
  await s.until(holder, (run) => node(run, 'k').status === 2)
  const paused = await Promise.all(
    Array.from({ length: 21 }, () => s.run([{ id: 'f', type: 'http', url: `${url}/fails` }, keyed])),
  )
  for (const id of paused)
    assert.deepEqual(
      (await s.rests(id)).nodes.map(({ status }: Body) => status),
      [4, 1],
    )
  const waits = await s.run([keyed])
  await s.until(waits, (run) => run.startedAt !== undefined && node(run, 'k').status === 1)
  await s.call('POST', `/api/workflows/runs/${holder}/signals/free`)
  assert.equal((await s.rests(waits)).status, 3)
}
