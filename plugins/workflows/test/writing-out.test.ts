import assert from 'node:assert/strict'
import { setImmediate as turn } from 'node:timers/promises'
import { test } from 'node:test'
import { creationOf } from '../creation.store.ts'
import { edgesOf } from '../graph.ts'
import type { WorkflowNode } from '../node.schema.ts'
import { stage } from './stage.ts'

const toolOf = (id: string, text: string): WorkflowNode => ({ id, type: 'tool', tool: 'x', arguments: { text } })

/** What the database gets of a run of these nodes, and how many turns others had while it was written out. */
async function writeOut(nodes: readonly WorkflowNode[]) {
  let turns = 0
  let isOver = false
  const others = (async () => {
    for (; !isOver; turns++) await turn()
  })()
  const definition = { name: 'x', nodes }
  const wanted = { definition, input: '{}', start: false, createdBy: 'me' }
  const found = { id: undefined, version: undefined, definition }
  const made = await creationOf('default', wanted, found, { edges: edgesOf(nodes), limits: undefined })
  isOver = true
  await others
  return { turns, values: made.insertion.values! }
}

test('others have their turns while megabytes are written out, also those of few nodes', async () => {
  const { turns } = await writeOut(Array.from({ length: 512 }, (_, i) => toolOf(`n${i}`, 'x'.repeat(16_384))))
  assert.ok(turns >= 8, `${turns} turns`)
})

test('what is sent to the database is no longer than the nodes are, whatever is in them', async () => {
  const nodes = [toolOf('a', '"\\'.repeat(500_000))]
  const { values } = await writeOut(nodes)
  const longest = Math.max(...values.map((value) => String(value).length))
  assert.ok(longest <= JSON.stringify(nodes).length, `${longest} characters`)
})

test('nodes are stored as they are written, whatever is in them', async (t) => {
  const s = await stage(t)
  const texts = ['"', '\\', '\\"', '\0', '\\u0000', '\ud800', '\udc00\ud800', '{}[],"a":1 ', '\n\t\u2028ä😀', "'$1$&"]
  const nodes = texts.map((text, i) => ({
    id: `n${i}`,
    type: 'approval',
    message: text,
    ...(i === 0 ? {} : { dependsOn: ['n0'] }),
  }))
  const id = await s.run(nodes, { autoStart: false })
  const rows = await s.database.tenant('default', (tx) =>
    tx.query<{ spec: string }>({
      text: 'SELECT spec FROM workflow_nodes WHERE tenant_id = $1 AND run_id = $2 ORDER BY position',
      values: ['default', id],
    }),
  )
  assert.deepEqual(
    rows.map(({ spec }) => spec),
    nodes.map((node) => JSON.stringify(node)),
  )
})
