import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Body, node, type Stage, stage, startEffects } from './stage.ts'

test('what fails, is repaired, cancelled, run again and lost', async (t) => {
  let failing = true
  const hanging = new Set<() => void>()
  const http = await startEffects(t, async ({ path }) => {
    if (path === '/fails' && failing) return { status: 500 }
    if (path === '/refuses') return { status: 422 }
    if (path === '/hangs') await new Promise<void>((resolve) => hanging.add(resolve))
    return {}
  })
  t.after(() => hanging.forEach((end) => end()))
  let now = 0
  let most = 0
  const counting = await startEffects(t, async () => {
    most = Math.max(most, ++now)
    await new Promise(setImmediate)
    now--
    return {}
  })
  const s = await stage(t)
  const other = await stage(t, s)
  const effectsOf = (id: string): string[] =>
    http.effects.filter(({ key }) => key.startsWith(id)).map(({ key }) => key.slice(id.length + 1))
  const repair = (id: string, body: object) => s.call('POST', `/api/workflows/runs/${id}/repair`, body)

  await t.test('a failed node pauses its run, and everything finished is kept; retry_node goes on', async () => {
    failing = true
    const id = await s.run([
      { id: 'a', type: 'http', url: `${http.url}/a` },
      { id: 'b', type: 'http', dependsOn: ['a'], url: `${http.url}/fails`, retry: { max: 2, delaySeconds: 0.01 } },
      { id: 'c', type: 'http', dependsOn: ['b'], url: `${http.url}/c` },
    ])
    const paused = await s.rests(id)
    assert.deepEqual(
      [
        paused.status,
        node(paused, 'a').status,
        node(paused, 'b').status,
        node(paused, 'b').attempt,
        node(paused, 'c').status,
      ],
      [2, 3, 4, 3, 0],
    )
    assert.equal(node(paused, 'b').error.code, 'http_status')
    failing = false
    const { status, body } = await repair(id, { action: 'retry_node', nodeId: 'b' })
    assert.equal(status, 200, JSON.stringify(body))
    const run = await s.until(id, (one) => one.status > 2)
    assert.equal(run.status, 3)
    // After an attempt whose outcome is known, the next attempt has another idempotency key.
    assert.deepEqual(effectsOf(id), ['a/1', 'b/1', 'b/2', 'b/3', 'b/4', 'c/1'])
    assert.equal((await repair(id, { action: 'abort' })).body.error, 'not_paused')
  })

  await t.test('replace_node and add_dependency mend a run, and what cannot be is refused', async () => {
    const id = await s.run([
      { id: 'a', type: 'http', url: `${http.url}/refuses` },
      { id: 'b', type: 'http', dependsOn: ['a'], url: `${http.url}/b` },
      { id: 'd', type: 'wait', signal: 'd' },
      { id: 'c', type: 'http', dependsOn: ['b'], url: `${http.url}/c` },
    ])
    await s.rests(id)
    const circle = await repair(id, { action: 'add_dependency', nodeId: 'b', dependsOn: 'c' })
    assert.deepEqual([circle.status, circle.body.error], [400, 'invalid_workflow'])
    assert.match(circle.body.message, /b -> c -> b|c -> b -> c/)
    assert.equal((await repair(id, { action: 'add_dependency', nodeId: 'c', dependsOn: 'd' })).status, 200)
    const wrong = await repair(id, {
      action: 'replace_node',
      nodeId: 'a',
      node: { type: 'agent', profile: 'nobody', prompt: '{{ x' },
    })
    assert.deepEqual(wrong.body.issues.map(({ path }: Body) => path).toSorted(), ['node/profile', 'node/prompt'])
    assert.equal(
      (await repair(id, { action: 'replace_node', nodeId: 'a', node: { type: 'http', url: `${http.url}/a2` } })).status,
      200,
    )
    await s.until(id, (run) => node(run, 'b').status === 3)
    assert.deepEqual(effectsOf(id), ['a/1', 'a/2', 'b/1'])
    await s.call('POST', `/api/workflows/runs/${id}/signals/d`)
    assert.equal((await s.until(id, (run) => run.status > 2)).status, 3)
  })

  await t.test('continueOnError goes on, abort gives up, and a client may set the status of a node', async () => {
    const id = await s.run([
      { id: 'a', type: 'http', url: `${http.url}/refuses`, continueOnError: true },
      { id: 'b', type: 'condition', dependsOn: ['a'], if: 'nodes.a.error.status == 422' },
      { id: 'c', type: 'http', dependsOn: ['b'], url: `${http.url}/refuses` },
    ])
    const paused = await s.rests(id)
    assert.deepEqual([paused.status, node(paused, 'b').output], [2, true])
    const set = await s.call('PATCH', `/api/workflows/runs/${id}/nodes/c`, { status: 'ok', output: { by: 'hand' } })
    assert.deepEqual([set.status, set.body.status, set.body.output], [200, 3, { by: 'hand' }])
    assert.equal((await s.until(id, (run) => run.status > 2)).status, 3)
    const again = await s.run([
      { id: 'x', type: 'http', url: `${http.url}/refuses` },
      { id: 'y', type: 'wait', signal: 'y' },
    ])
    await s.rests(again)
    assert.equal((await repair(again, { action: 'abort' })).body.status, 4)
    const failed = await s.rests(again)
    assert.deepEqual(
      failed.nodes.map(({ status }: Body) => status),
      [4, 6],
    )
  })

  await t.test('rerun from a node keeps what went before it', async () => {
    const id = await s.run([
      { id: 'a', type: 'http', url: `${http.url}/a` },
      { id: 'b', type: 'http', dependsOn: ['a'], url: `${http.url}/b` },
      { id: 'side', type: 'map', items: [1, 2], node: { type: 'http', url: `${http.url}/side` } },
      { id: 'c', type: 'http', dependsOn: ['b', 'side'], url: `${http.url}/c` },
    ])
    await s.rests(id)
    const { status, body } = await s.call('POST', `/api/workflows/runs/${id}/rerun`, { fromNodeId: 'b' })
    assert.equal(status, 202, JSON.stringify(body))
    const run = await s.rests(body.id)
    assert.deepEqual([run.status, run.rerunOf], [3, id])
    assert.deepEqual(effectsOf(body.id).toSorted(), ['b/1', 'c/1'])
    assert.equal(node(run, 'side').output.length, 2)
  })

  await t.test('autoStart, start and cancel are idempotent, and a cancelled run leaves its calls', async () => {
    const id = await s.run([{ id: 'a', type: 'http', url: `${http.url}/hangs` }], { autoStart: false })
    assert.equal((await s.call('GET', `/api/workflows/runs/${id}`)).body.status, 0)
    const started = await Promise.all([1, 2, 3].map(() => s.call('POST', `/api/workflows/runs/${id}/start`)))
    assert.deepEqual(
      started.map(({ status, body }) => [status, body.status]),
      [
        [202, 'running'],
        [202, 'running'],
        [202, 'running'],
      ],
    )
    while (!effectsOf(id).length) await new Promise(setImmediate)
    const cancelled = await Promise.all([1, 2].map(() => s.call('POST', `/api/workflows/runs/${id}/cancel`)))
    assert.deepEqual(
      cancelled.map(({ body }) => body.status),
      ['cancelled', 'cancelled'],
    )
    const run = await s.rests(id)
    assert.deepEqual([run.status, node(run, 'a').status, effectsOf(id)], [5, 6, ['a/1']])
  })

  await t.test('cancelling ends agents and child workflows, too', async () => {
    await s.call('POST', '/api/profiles', { name: 'slow', model: 'builtin/demo' })
    const { body: child } = await s.call('POST', '/api/workflows/definitions', {
      name: 'child',
      nodes: [{ id: 'w', type: 'wait', signal: 'never' }],
    })
    const id = await s.run([{ id: 'sub', type: 'workflow', workflowDefinitionId: child.id }])
    const run = await s.until(id, (one) => node(one, 'sub').workflowRunId !== undefined)
    await s.call('POST', `/api/workflows/runs/${id}/cancel`)
    await s.until(node(run, 'sub').workflowRunId, ({ status }) => status === 5)
  })

  await t.test('of nodes with one concurrency key as many are under way as may be, over all runs', async () => {
    const nodes = [1, 2, 3].map((i) => ({
      id: `n${i}`,
      type: 'http',
      url: counting.url,
      concurrencyKey: 'k',
      concurrencyLimit: 2,
    }))
    const ids = await Promise.all([1, 2, 3].map(() => other.run(nodes)))
    for (const id of ids) assert.equal((await other.rests(id)).status, 3)
    assert.equal(counting.effects.length, 9)
    assert.ok(most <= 2, `${most} at once`)
  })

  await t.test('what a process had under way when it died is done by another one, under the same key', async () => {
    const id = await other.run([
      { id: 'a', type: 'http', url: `${http.url}/hangs` },
      { id: 'b', type: 'http', dependsOn: ['a'], url: `${http.url}/b` },
    ])
    while (!effectsOf(id).length) await new Promise((resolve) => setTimeout(resolve, 5))
    // The lease expires as if its process had died, and both servers are woken.
    const over = `UPDATE workflow_nodes SET lease_until = now() - interval '1 second', lease_owner = 'dead' WHERE tenant_id = $1 AND run_id = $2 AND status = 2`
    await s.database.tenant('default', (tx) => tx.query({ text: over, values: ['default', id] }))
    await s.call('POST', `/api/workflows/runs/${id}/signals/look`)
    while (effectsOf(id).length < 2) await new Promise((resolve) => setTimeout(resolve, 5))
    for (const end of hanging) end()
    const run = await s.rests(id)
    assert.equal(run.status, 3, JSON.stringify(run))
    assert.deepEqual(effectsOf(id), ['a/1', 'a/1', 'b/1'])
    const attempts = http.effects.filter(({ key }) => key === `${id}/a/1`).map(({ attempt }) => attempt)
    assert.deepEqual(attempts, [1, 2], 'each attempt had its effect once')
  })

  await t.test('every problem of a definition is told at once, with its path', () => definitions(s))
})

async function definitions(s: Stage): Promise<void> {
  const { status, body } = await s.call('POST', '/api/workflows/definitions', {
    name: 'wrong',
    inputSchema: { type: 'nothing' },
    nodes: [
      { id: 'a', type: 'agent', profile: 'nobody', prompt: 'Hi {{ input.x' },
      { id: 'a', type: 'wait', seconds: 1 },
      { id: 'b', type: 'condition', dependsOn: ['c', 'gone'], if: 'input.x >' },
      { id: 'c', type: 'tool', tool: 'no_such_tool', dependsOn: ['b'], timeoutSeconds: -1 },
      { id: 'd', type: 'nonsense' },
      { id: 'e', type: 'workflow', workflowDefinitionId: 'wfdef_none' },
      { id: 'f', type: 'wait' },
      { id: 'g', type: 'approval', message: 'x', role: 'king' },
      { id: 'h', type: 'map', items: 'input.list', node: { type: 'wait', seconds: 1 } },
      { id: 'i', type: 'agent', profile: 'nobody', prompt: 'x', responseFormat: { type: 'nonsense' } },
    ],
  })
  assert.deepEqual([status, body.error], [400, 'invalid_workflow'])
  const paths = body.issues.map(({ path }: Body) => path).toSorted()
  assert.deepEqual(paths, [
    'inputSchema',
    'nodes/0/profile',
    'nodes/0/prompt',
    'nodes/1/id',
    'nodes/2/dependsOn',
    'nodes/2/dependsOn/1',
    'nodes/2/if',
    'nodes/3/timeoutSeconds',
    'nodes/4/type',
    'nodes/5/workflowDefinitionId',
    'nodes/6',
    'nodes/7/role',
    'nodes/8/items',
    'nodes/9/responseFormat/schema',
    'nodes/9/responseFormat/type',
  ])
  assert.match(JSON.stringify(body.issues), /must be one of member, admin, owner/)
  assert.match(JSON.stringify(body.issues), /c -> b -> c|b -> c -> b/)
  const unseen = await s.call('POST', '/api/workflows/runs', {
    definition: {
      name: 'x',
      nodes: [
        { id: 'a', type: 'wait', seconds: 0 },
        { id: 'b', type: 'condition', if: 'nodes.a.status == "ok"' },
      ],
    },
  })
  assert.match(unseen.body.message, /'a' is not before it/)
  const hostile = await s.run([
    { id: 'long', type: 'approval', message: '{% for i in (1..100000000) %}x{% endfor %}', continueOnError: true },
    { id: 'code', type: 'approval', message: '{{ input.constructor.constructor }}', continueOnError: true },
    {
      // Of a fast machine seven levels took no longer than an expression may.
      id: 'slow',
      type: 'condition',
      if: '[1,2,3,4,5,6,7,8,9].map(a, [1,2,3,4,5,6,7,8,9].map(b, [1,2,3,4,5,6,7,8,9].map(c, [1,2,3,4,5,6,7,8,9].map(d, [1,2,3,4,5,6,7,8,9].map(e, [1,2,3,4,5,6,7,8,9].map(f, [1,2,3,4,5,6,7,8,9].map(g, [1,2,3,4,5,6,7,8,9].map(h, [1,2,3,4,5,6,7,8,9].map(i, a))))))))) == []',
      continueOnError: true,
    },
    { id: 'inner', type: 'http', url: 'https://169.254.169.254/latest', continueOnError: true },
    { id: 'plain', type: 'http', url: 'http://example.com/', continueOnError: true },
  ])
  const run = await s.rests(hostile)
  assert.deepEqual(
    run.nodes.map(({ error }: Body) => error?.code),
    ['bad_expression', 'bad_expression', 'bad_expression', 'forbidden_address', 'forbidden_address'],
    JSON.stringify(run.nodes),
  )
  assert.match(run.nodes[2].error.message, /takes longer than 100 ms|takes too long/)
}

test('calls of one tenant that hang leave room for those of others, and what waits for room goes on when there is some', async (t) => {
  let hanging: (() => void)[] = []
  const http = await startEffects(t, async ({ path }) => {
    if (path === '/hangs') await new Promise<void>((resolve) => hanging.push(resolve))
    return {}
  })
  t.after(() => hanging.forEach((release) => release()))
  const s = await stage(t)
  const hog = await s.other('hog')
  assert.equal((await s.call('PATCH', '/api/tenants/hog', { limits: { workflowCalls: 3 } })).status, 200)
  const calls = {
    id: 'm',
    type: 'map',
    items: Array.from({ length: 12 }, (_, i) => i),
    node: { type: 'http', url: `${http.url}/hangs` },
  }
  const begin = () => hog('POST', '/api/workflows/runs', { definition: { name: 'hog', nodes: [calls] } })
  const runs: string[] = (await Promise.all([begin(), begin()])).map(({ body }) => body.id)
  while (hanging.length < 3) await new Promise((resolve) => setTimeout(resolve, 5))
  const mine = await s.rests(await s.run([{ id: 'a', type: 'http', url: `${http.url}/a` }]))
  assert.equal(mine.status, 3)
  assert.equal(hanging.length, 3)
  const limits: Body[] = (await hog('GET', '/api/limits')).body.limits
  assert.equal(limits.find(({ name }) => name === 'workflowCalls').used, 3)
  for (const id of runs) {
    for (let status = 1; status === 1;) {
      const released = hanging
      hanging = []
      for (const release of released) release()
      ;({ status } = (await hog('GET', `/api/workflows/runs/${id}`)).body)
      assert.ok(hanging.length <= 3, `${hanging.length} at once`)
    }
    assert.equal((await hog('GET', `/api/workflows/runs/${id}`)).body.status, 3)
  }
  assert.equal(http.effects.filter(({ path }) => path === '/hangs').length, 24)
})

test('runs by schedule are writes of their tenant: there are none where it may make none', async (t) => {
  const s = await stage(t)
  const hog = await s.other('hog')
  assert.equal((await hog('POST', '/api/profiles', { name: 'echo', model: 'builtin/demo' })).status, 201)
  const schedule = { profile: 'echo', prompt: 'Hello', cron: '* * * * * *', overlap: 'allow' }
  const made = await hog('POST', '/api/workflows/schedules', schedule)
  assert.equal(made.status, 201, JSON.stringify(made.body))
  await s.call('PATCH', '/api/tenants/hog', { limits: { writesPerMinute: 0 } })
  let rows: Body[] = []
  while (rows.length < 10 && !rows.some(({ outcome }) => outcome === 'failed')) {
    await new Promise((resolve) => setTimeout(resolve, 20))
    rows = (await hog('GET', `/api/workflows/schedules/${made.body.id}/history`)).body
  }
  assert.match(rows.find(({ outcome }) => outcome === 'failed')?.message ?? '', /writesPerMinute/)
})
