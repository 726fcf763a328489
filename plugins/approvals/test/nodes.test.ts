import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Body, serve, world } from './stage.ts'

const webhook = { url: 'https://hooks.example/approvals' }

test('nodes of workflows that wait for people', async (t) => {
  const w = await world(t)
  const s = await serve(t, w)
  const start = async (nodes: object[], more: object = {}): Promise<string> => {
    const { status, body } = await s.call('POST', '/api/workflows/runs', {
      definition: { name: 'test', nodes },
      ...more,
    })
    assert.equal(status, 202, JSON.stringify(body))
    return body.id
  }
  const run = async (id: string): Promise<Body> => (await s.call('GET', `/api/workflows/runs/${id}`)).body
  const rests = (id: string): Promise<Body> =>
    s.until(async () => {
      const found = await run(id)
      return found.status > 1 ? found : undefined
    })
  const waiting = (query: string): Promise<Body> =>
    s.until(async () => (await s.call('GET', `/api/approvals?status=waiting&${query}`)).body[0])
  /** What receivers are told of an approval, in its order. */
  const told = async (approval: string): Promise<Body[]> => {
    const text = `SELECT body::json ->> 'type' AS type, body::json -> 'data' ->> 'role' AS role FROM webhook_deliveries
                  WHERE body::json -> 'data' ->> 'id' = $1 AND url = $2 ORDER BY body::json ->> 'timestamp'`
    const about = { text, values: [approval, webhook.url] }
    const [rows] = await s.database.batch<[Body[]]>('default', [about])
    return rows
  }
  const decide = (id: string, decision: string, call = s.call) =>
    call('POST', `/api/approvals/${id}/resolve`, { decision })
  const profile = { name: 'payer', model: 'openai/m', tools: ['pay', 'note'], requireApproval: ['pay'] }
  assert.equal((await s.call('POST', '/api/profiles', profile)).status, 201)
  const member = await s.as('member')

  await t.test('the webhook of the workflow is told of nodes, of calls of its agents, and of children', async () => {
    const { body: child } = await s.call('POST', '/api/workflows/definitions', {
      name: 'child',
      nodes: [{ id: 'ask', type: 'approval', message: 'child' }],
    })
    const definition = {
      name: 'told',
      webhook,
      nodes: [
        { id: 'ask', type: 'approval', message: 'node' },
        { id: 'agent', type: 'agent', profile: 'payer', prompt: 'pay({"sum":7})' },
        { id: 'sub', type: 'workflow', workflowDefinitionId: child.id },
      ],
    }
    const id = await start([], { definition })
    const open = await s.until(async () => {
      const { body } = await s.call('GET', '/api/approvals?status=waiting')
      return body.length === 3 ? (body as Body[]) : undefined
    })
    for (const one of open) assert.equal((await decide(one.id, 'approve')).status, 200)
    assert.equal((await rests(id)).status, 3)
    const expected = ['approval.waiting', 'approval.resolved'].map((type) => ({ type, role: 'member' }))
    for (const one of open) assert.deepEqual(await told(one.id), expected, JSON.stringify(one))
    const refused = await s.call('POST', '/api/workflows/runs', { definition, webhook: { url: 'http://10.0.0.1/' } })
    assert.deepEqual([refused.status, refused.body.error], [400, 'invalid_webhook'])
  })
  await t.test('only the role decides, and nobody else puts another end in the place of its decision', async () => {
    const inner = { type: 'approval', message: 'Sure?', role: 'admin' }
    const id = await start([
      { id: 'each', type: 'map', items: [1], node: inner },
      { id: 'then', type: 'approval', message: 'x', dependsOn: ['each'], role: 'owner' },
    ])
    const approval = await waiting(`workflowRunId=${id}`)
    assert.deepEqual([approval.nodeId, approval.role, approval.kind], ['each.0', 'admin', 'node'])
    const end = (node: string, call = s.call) =>
      call('PATCH', `/api/workflows/runs/${id}/nodes/${node}`, { status: 'ok' })
    const answers = [
      await decide(approval.id, 'approve', member),
      await end('each.0', member),
      await end('each', member),
    ]
    for (const { status, body } of answers) assert.deepEqual([status, body.error], [403, 'wrong_approver'])
    const due = (expires: string) => ({
      text: `UPDATE approvals SET expires_at = ${expires} WHERE id = $1`,
      values: [approval.id],
    })
    await s.database.batch('default', [due('now()')])
    assert.equal((await decide(approval.id, 'approve')).body.error, 'already_resolved', 'its time is over')
    await s.database.batch('default', [due('NULL')])
    const admin = await s.as('admin')
    assert.equal((await end('then', admin)).body.error, 'wrong_approver')
    assert.equal((await decide(approval.id, 'reject', admin)).status, 200)
    assert.deepEqual((await rests(id)).error.code, 'rejected')
    const replace = { action: 'replace_node', nodeId: 'then', node: { type: 'wait', seconds: 0 } }
    const replaced = await member('POST', `/api/workflows/runs/${id}/repair`, replace)
    assert.equal(replaced.body.error, 'wrong_approver')
    // A caller who may decide the approval may also end its node.
    assert.equal((await end('each.0', admin)).status, 200)
    assert.equal((await decide((await waiting(`workflowRunId=${id}`)).id, 'approve')).status, 200)
    assert.equal((await rests(id)).status, 3)
  })
  await t.test('nobody goes around an approval of a role that they do not have', async () => {
    const admin = await s.as('admin')
    const ask = { id: 'ask', type: 'approval', message: 'Sure?', role: 'admin' }
    const { body: child } = await s.call('POST', '/api/workflows/definitions', { name: 'asks', nodes: [ask] })
    const once = { type: 'wait', seconds: 0 }
    const id = await start([
      { ...once, id: 'before', signal: 'go', seconds: 3_600 },
      { ...ask, dependsOn: ['before'] },
      { id: 'other', type: 'wait', signal: 'other' },
      { ...once, id: 'behind', dependsOn: ['ask', 'other'] },
      { id: 'sub', type: 'workflow', workflowDefinitionId: child.id },
      { ...once, id: 'after', dependsOn: ['sub'] },
      { ...once, id: 'last', dependsOn: ['behind', 'after'] },
    ])
    const end = (node: string, status: string, call = member) =>
      call('PATCH', `/api/workflows/runs/${id}/nodes/${node}`, { status })
    const refused = async (answer: Promise<Body>, name: string): Promise<void> => {
      const { status, body } = await answer
      assert.deepEqual([status, body.error], [403, 'wrong_approver'])
      assert.match(
        body.message,
        new RegExp(`Only keys of the role admin or above may decide the approval '${name}'\\.`),
      )
    }
    const inChild = await s.until(async () =>
      (await s.call('GET', '/api/approvals?status=waiting')).body.find(
        ({ message, workflowRunId }: Body) => message === 'Sure?' && workflowRunId !== id,
      ),
    )
    // Refused: nodes after the approval, nodes after the child that asks, the child itself, and nodes with which the approval would be skipped.
    await refused(end('last', 'ok'), 'ask')
    await refused(end('behind', 'skipped'), 'ask')
    await refused(end('sub', 'ok'), 'sub')
    await refused(end('after', 'ok'), 'sub')
    await refused(end('before', 'cancelled'), 'ask')
    assert.equal((await end('before', 'ok')).status, 200)
    assert.equal((await end('other', 'error')).status, 200)
    assert.equal((await rests(id)).status, 2)
    const repair = (action: object) => member('POST', `/api/workflows/runs/${id}/repair`, action)
    await refused(repair({ action: 'replace_node', nodeId: 'behind', node: once }), 'ask')
    // Also refused: a new condition that skips the approval, and a second way to the nodes after it.
    // oxlint-disable-next-line unicorn/no-thenable -- nobody awaits a node.
    const skips = { type: 'condition', if: false, then: ['ask'] }
    await refused(repair({ action: 'replace_node', nodeId: 'other', node: skips }), 'ask')
    await refused(repair({ action: 'add_dependency', nodeId: 'behind', dependsOn: 'before' }), 'ask')
    assert.equal((await repair({ action: 'replace_node', nodeId: 'other', node: once })).status, 200)
    for (const { id: approval } of [inChild, await waiting(`workflowRunId=${id}`)])
      assert.equal((await decide(approval, 'approve', admin)).status, 200)
    assert.equal((await rests(id)).status, 3)
    // A rerun does not repeat what was approved once, unless it asks again.
    const rerun = (fromNodeId: string, call = member) => call('POST', `/api/workflows/runs/${id}/rerun`, { fromNodeId })
    await refused(rerun('last'), 'ask')
    assert.equal((await rests((await rerun('last', admin)).body.id)).status, 3)
    const anew = (await rerun('ask')).body.id
    assert.equal((await decide((await waiting(`workflowRunId=${anew}`)).id, 'approve', admin)).status, 200)
    assert.equal((await rests(anew)).status, 3)
  })
  await t.test(
    'what a child workflow asks is not gone around before it has begun, nor after it was rejected',
    async () => {
      const admin = await s.as('admin')
      const define = async (name: string, node: object): Promise<string> =>
        (await s.call('POST', '/api/workflows/definitions', { name, nodes: [{ id: 'in', ...node }] })).body.id
      const asks = await define('asks', { type: 'approval', message: 'Child?', role: 'admin' })
      const nests = await define('nests', { type: 'workflow', workflowDefinitionId: asks })
      const child = (workflowDefinitionId: string) => ({ type: 'workflow', workflowDefinitionId })
      const once = { type: 'wait', seconds: 0 }
      const id = await start([
        { ...once, id: 'go', signal: 'go', seconds: 3_600 },
        { ...child(nests), id: 'sub', dependsOn: ['go'] },
        { id: 'each', type: 'map', items: [1], node: child(asks), dependsOn: ['go'] },
        { ...once, id: 'free', dependsOn: ['go'] },
        { ...once, id: 'last', dependsOn: ['sub', 'each'] },
      ])
      const end = (node: string, status = 'ok', call = member) =>
        call('PATCH', `/api/workflows/runs/${id}/nodes/${node}`, { status })
      const refused = async (answer: Promise<Body>): Promise<void> => {
        const { status, body } = await answer
        assert.deepEqual([status, body.error], [403, 'wrong_approver'], JSON.stringify(body))
      }
      // No child has begun.
      for (const node of ['sub', 'each', 'last']) await refused(end(node))
      await refused(end('go', 'skipped'))
      assert.equal((await end('go')).status, 200)
      const asked = (count: number): Promise<Body[]> =>
        s.until(async () => {
          const { body } = await s.call('GET', '/api/approvals?status=waiting')
          const found = (body as Body[]).filter(({ message }) => message === 'Child?')
          return found.length === count && found
        })
      const repair = (of: string, action: object) => member('POST', `/api/workflows/runs/${of}/repair`, action)
      const nodeOf = async (of: string, node: string): Promise<Body> =>
        (await run(of)).nodes.find((one: Body) => one.id === node)
      for (const one of await asked(2)) assert.equal((await decide(one.id, 'reject', admin)).status, 200)
      // The child of the map is given up, so that its part fails; that of `sub` waits for a repair.
      const givenUp = (await nodeOf(id, 'each.0')).workflowRunId
      const asking = (await nodeOf((await nodeOf(id, 'sub')).workflowRunId, 'in')).workflowRunId
      await rests(asking)
      await rests(givenUp)
      assert.equal((await repair(givenUp, { action: 'abort' })).status, 200)
      assert.equal((await rests(id)).status, 2)
      for (const node of ['sub', 'each.0', 'each', 'last']) await refused(end(node))
      for (const nodeId of ['each', 'last']) await refused(repair(id, { action: 'replace_node', nodeId, node: once }))
      assert.equal((await end('each.0', 'ok', admin)).status, 200)
      assert.equal((await repair(asking, { action: 'retry_node', nodeId: 'in' })).status, 200)
      const [again] = await asked(1)
      assert.equal((await decide(again.id, 'approve', admin)).status, 200)
      assert.equal((await rests(id)).status, 3)
      // Nor does a rerun repeat what was approved once, of the run or of a rerun of it.
      const rerun = (of: string, fromNodeId: string, call = member) =>
        call('POST', `/api/workflows/runs/${of}/rerun`, { fromNodeId })
      await refused(rerun(id, 'last'))
      const { body: second } = await rerun(id, 'last', admin)
      assert.equal((await rests(second.id)).status, 3)
      await refused(rerun(second.id, 'last'))
      assert.equal((await rerun(second.id, 'free')).status, 202)
    },
  )
  await t.test('a tenant has as many open as it may; a node beyond that fails, and is asked again', async () => {
    await s.call('PATCH', '/api/tenants/default', { limits: { openApprovals: 2 } })
    const one = { type: 'approval', message: 'one of many' }
    const id = await start(['a', 'b', 'c'].map((name) => ({ ...one, id: name })))
    const paused = await rests(id)
    assert.deepEqual([paused.status, paused.error.code], [2, 'limit_reached'])
    assert.match(paused.error.message, /openApprovals of this tenant is 2/)
    assert.match((await s.over(await s.run('payer', 'pay({})'))).result, /openApprovals/)
    await s.call('PATCH', '/api/tenants/default', { limits: { openApprovals: 100 } })
    const failed = paused.nodes.find(({ status }: Body) => status === 4).id
    const repaired = await s.call('POST', `/api/workflows/runs/${id}/repair`, { action: 'retry_node', nodeId: failed })
    assert.equal(repaired.status, 200, JSON.stringify(repaired.body))
    const open = await s.until(async () => {
      const { body } = await s.call('GET', `/api/approvals?status=waiting&workflowRunId=${id}`)
      return body.length === 3 ? (body as Body[]) : undefined
    })
    for (const { id: approval } of open) await decide(approval, 'approve')
    assert.equal((await rests(id)).status, 3)
  })
  await t.test('the time of an agent stands still while its run waits for people, and goes on afterwards', async () => {
    w.effects.length = 0
    const prompt = 'pay({"sum":1})\npay({"sum":2})'
    const id = await start([{ id: 'agent', type: 'agent', profile: 'payer', prompt, timeoutSeconds: 300 }])
    const agent = async (): Promise<Body> => (await run(id)).nodes[0]
    const first = await waiting('profile=payer')
    await s.parked(first.runId)
    await s.until(async () => (await agent()).dueAt === undefined)
    // Pretends that people took a day, far longer than the timeout of the node.
    const aDay = `UPDATE runs SET started_at = started_at - interval '1 day', parked_at = parked_at - interval '1 day' WHERE id = $1`
    await s.database.batch('default', [{ text: aDay, values: [first.runId] }])
    await decide(first.id, 'approve')
    const second = await s.until(async () => {
      const found = await waiting('profile=payer')
      return found.id !== first.id && found
    })
    assert.equal((await agent()).status, 2)
    await s.parked(second.runId)
    // The agent then works for longer than its timeout. The time it waited for people does not extend the timeout.
    await s.until(async () => (await agent()).dueAt === undefined)
    const late = `UPDATE runs SET started_at = started_at - interval '301 seconds' WHERE id = $1`
    await s.database.batch('default', [{ text: late, values: [first.runId] }])
    w.before = () => new Promise(() => {})
    await decide(second.id, 'approve')
    const paused = await rests(id)
    assert.deepEqual([paused.status, paused.error.code], [2, 'timeout'])
    assert.equal((await s.over(first.runId)).status, 'cancelled')
    assert.deepEqual(
      w.effects.map(({ input }) => input),
      [{ sum: 1 }],
    )
    w.before = async () => {}
  })
})
