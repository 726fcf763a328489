import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { test } from 'node:test'
import { type Body, node, type Stage, stage, startEffects } from './stage.ts'

const digest = (text: string): string => createHash('sha256').update(text).digest('hex')
/** Text that takes more than its characters: with a NUL, quotes and letters of two bytes. */
const long = (chars: number): string => 'ä"\u0000x'.repeat(Math.ceil(chars / 4)).slice(0, chars)

test('outputs of any size', async (t) => {
  const text = long(3_000_000)
  const http = await startEffects(t, ({ path }) => ({
    body:
      path === '/large'
        ? { text, list: [1, null] }
        : path === '/some'
          ? { text: 'y'.repeat(100_000) }
          : path === '/too-large'
            ? { text: 'x'.repeat(10 * 1024 * 1024) }
            : {},
  }))
  const s = await stage(t)
  const rows = (sql: string): Promise<Body[]> =>
    s.database.tenant('default', (tx) => tx.query<Body>({ text: sql, values: [] }))
  const objects = async (): Promise<number> => (await rows('SELECT count(*)::int AS n FROM linked_objects'))[0].n

  await t.test('a large one goes from node to node, through children, maps and reruns, and is read whole', () =>
    large(s, { text, url: http.url, rows }),
  )
  await t.test('one that is too large fails its node', async () => {
    const run = await s.rests(await s.run([{ id: 'a', type: 'http', url: `${http.url}/too-large` }]))
    assert.deepEqual([run.status, node(run, 'a').error.code], [2, 'output_too_large'])
  })
  await t.test('one that is in its row, as without an object store, is read whole as well', async () => {
    const id = await s.run([{ id: 'a', type: 'condition', if: true }])
    await s.rests(id)
    const set = 'UPDATE workflow_nodes SET output = $3 WHERE tenant_id = $1 AND run_id = $2'
    await s.database.tenant('default', (tx) => tx.query({ text: set, values: ['default', id, JSON.stringify(text)] }))
    const { body } = await s.call('GET', `/api/workflows/runs/${id}/nodes/a`)
    assert.equal(digest(body.output), digest(text))
    assert.equal(node((await s.call('GET', `/api/workflows/runs/${id}`)).body, 'a').outputTruncated, true)
  })
  await t.test('what is too large for a snapshot has a route of its own', () => leftOut(s))
  await t.test('an output that its node does not promise fails the attempt, and is tried again', () =>
    promised(s, http.url),
  )
  await t.test('they go with their runs', async () => {
    assert.ok((await objects()) > 0)
    await s.database.tenant('default', (tx) =>
      tx.query({ text: 'DELETE FROM workflow_runs WHERE tenant_id = $1', values: ['default'] }),
    )
    await s.sweepObjects()
    assert.equal(await objects(), 0)
  })
})

async function large(
  s: Stage,
  { text, url, rows }: { readonly text: string; readonly url: string; rows(sql: string): Promise<Body[]> },
): Promise<void> {
  const { body: child } = await s.call('POST', '/api/workflows/definitions', {
    name: 'child',
    nodes: [{ id: 'get', type: 'http', url: `${url}/large` }],
    output: '{{ nodes.get.output.body }}',
  })
  const id = await s.run([
    { id: 'sub', type: 'workflow', workflowDefinitionId: child.id },
    { id: 'is', type: 'condition', dependsOn: ['sub'], if: 'nodes.sub.output.list.size() == 2' },
    { id: 'send', type: 'http', dependsOn: ['is'], url, method: 'POST', body: '{{ nodes.sub.output }}' },
    { id: 'each', type: 'map', dependsOn: ['send'], items: [1, 2], node: { type: 'http', url: `${url}/some` } },
    {
      id: 'again',
      type: 'loop',
      dependsOn: ['each'],
      max: 2,
      until: 'size(output.body.text) < 10',
      node: { type: 'http', method: 'POST', url: `${url}/some`, body: '{{ previous.status }}' },
    },
    {
      id: 'last',
      type: 'map',
      dependsOn: ['again'],
      items: ['{{ nodes.sub.output.text }}'],
      node: { type: 'wait', seconds: 0 },
    },
  ])
  const run = await s.rests(id)
  assert.equal(run.status, 3, JSON.stringify(run.nodes.map((one: Body) => one.error)))
  assert.ok(node(run, 'sub').outputTruncated)
  const whole = (await s.call('GET', `/api/workflows/runs/${id}/nodes/sub`)).body.output
  assert.deepEqual([digest(whole.text), whole.list], [digest(text), [1, null]])
  const each = (await s.call('GET', `/api/workflows/runs/${id}/nodes/each`)).body.output
  assert.deepEqual(
    each.map((one: Body) => one.body.text.length),
    [100_000, 100_000],
  )
  // The child run keeps its output as well; the tables contain only links.
  const inner = node(run, 'sub').workflowRunId
  assert.equal(digest((await s.call('GET', `/api/workflows/runs/${inner}/output`)).body.text), digest(text))
  const [{ most }] = (await rows('SELECT max(octet_length(output)) AS most FROM workflow_nodes')) as [Body]
  assert.ok(most < 70_000, `${most} bytes in a row`)
  const { body: rerun } = await s.call('POST', `/api/workflows/runs/${id}/rerun`, { fromNodeId: 'each' })
  assert.equal((await s.rests(rerun.id)).status, 3)
  const kept = (await s.call('GET', `/api/workflows/runs/${rerun.id}/nodes/sub`)).body.output
  assert.equal(digest(kept.text), digest(text))
  const other = await s.other('umbrella')
  for (const path of [`/api/workflows/runs/${inner}/output`, `/api/workflows/runs/${id}/nodes/sub`])
    assert.equal((await other('GET', path)).status, 404)
}

/** What is too large for a snapshot: its input, and the errors of its nodes. Each has a route of its own. */
async function leftOut(s: Stage): Promise<void> {
  const count = 300
  const nodes = Array.from({ length: count }, (_, i) => ({ id: `n${i}`, type: 'wait', signal: 'never' }))
  const text = 'ü'.repeat(600_000)
  const id = await s.run(nodes, { input: { text }, autoStart: false })
  const path = `/api/workflows/runs/${id}`
  const first = (await s.call('GET', path)).body
  assert.deepEqual([first.inputTruncated, 'input' in first], [true, false])
  assert.equal((await s.call('GET', `${path}/input`)).body.text, text)
  const other = await s.other('curious')
  assert.equal((await other('GET', `${path}/input`)).status, 404)
  assert.equal((await s.call('GET', '/api/workflows/runs/none/input')).status, 404)
  const small = await s.run(nodes.slice(0, 1), { input: { text: 'x'.repeat(500_000) } })
  assert.equal((await s.call('GET', `/api/workflows/runs/${small}`)).body.input.text.length, 500_000)
  const update = (message: string) =>
    s.call('PATCH', `/api/workflows/runs/${small}/nodes/n0`, { status: 'error', error: { code: 'mine', message } })
  const refused = await update('x'.repeat(20_001))
  assert.deepEqual([refused.status, refused.body.error], [400, 'invalid_request'])
  const message = 'x'.repeat(19_000)
  assert.equal((await update(message)).body.error.message, message)
  const fail = 'UPDATE workflow_nodes SET error = $3 WHERE tenant_id = $1 AND run_id = $2'
  const error = JSON.stringify({ code: 'mine', message })
  await s.database.tenant('default', (tx) => tx.query({ text: fail, values: ['default', id, error] }))
  const run = (await s.call('GET', path)).body
  const shown = run.nodes.filter(({ error }: Body) => error !== undefined)
  assert.equal(run.nodes.filter(({ errorTruncated }: Body) => errorTruncated).length, count - shown.length)
  assert.ok(shown.length * message.length <= 4 * 1024 * 1024 && shown.length > 200, `${shown.length} errors`)
  assert.equal((await s.call('GET', `${path}/nodes/n299`)).body.error.message, message)
}

async function promised(s: Stage, url: string): Promise<void> {
  const outputSchema = { type: 'object', properties: { status: { const: 201 } } }
  const run = await s.rests(
    await s.run([
      { id: 'a', type: 'http', url, outputSchema, retry: { max: 1, delaySeconds: 0 }, continueOnError: true },
      {
        id: 'm',
        type: 'map',
        items: [1],
        node: { type: 'condition', if: true },
        outputSchema: { maxItems: 0 },
        continueOnError: true,
      },
      { id: 'long', type: 'http', url: `${url}/large`, outputSchema: { properties: { status: { const: 200 } } } },
      { id: 'wrong', type: 'http', url: `${url}/large`, outputSchema, continueOnError: true },
      { id: 'fits', type: 'map', items: [1], node: { type: 'condition', if: true }, outputSchema: { maxItems: 1 } },
    ]),
  )
  assert.equal(run.status, 3)
  assert.deepEqual([node(run, 'a').error.code, node(run, 'a').attempt], ['bad_output', 2])
  assert.match(node(run, 'a').error.message, /\/status must be equal to constant/)
  // Outputs of megabytes are checked to their end as well.
  assert.deepEqual([node(run, 'long').status, node(run, 'wrong').error], [3, node(run, 'a').error])
  assert.deepEqual([node(run, 'm').error.code, node(run, 'fits').output], ['bad_output', [true]])
  const wrong = await s.call('POST', '/api/workflows/definitions', {
    name: 'wrong',
    nodes: [
      { id: 'a', type: 'http', url, outputSchema: { type: 'nothing' } },
      { id: 'b', type: 'map', items: [], node: { type: 'http', url, outputSchema: { type: 'nothing' } } },
      { id: 'c', type: 'wait', seconds: 0, outputSchema: {} },
    ],
  })
  assert.deepEqual(wrong.body.issues.map(({ path }: Body) => path).toSorted(), [
    'nodes/0/outputSchema',
    'nodes/1/node/outputSchema',
    'nodes/2/outputSchema',
  ])
}
