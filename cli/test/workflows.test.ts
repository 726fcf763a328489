import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { parse } from 'yaml'
import { startCluster } from '../../test/e2e/cluster.ts'
import { emptyFolder, run } from './spawned.ts'

const review = `
name: review
inputSchema: { type: object, required: [n] }
nodes:
  - { id: last, type: condition, dependsOn: [many], if: "size(nodes.many.output) == 3" }
  - id: many
    type: map
    items: "{{ input.list }}"
    node: { type: condition, if: item > input.n }
output:
  many: "{{ nodes.many.output }}"
`

async function file(t: TestContext, text: string): Promise<string> {
  const path = join(await emptyFolder(t), 'review.yaml')
  await writeFile(path, text)
  return path
}

test('validate says everything that is wrong, and show has the nodes in their order, without a server', async (t) => {
  const path = await file(t, review)
  const valid = await run(t, ['workflow', 'validate', path])
  assert.deepEqual([valid.code, JSON.parse(valid.stdout)], [0, { file: path, valid: true, problems: [] }])
  const wrong = await file(t, review.replace('[many]', '[none]').replace('item >', 'item >>'))
  const { code, stdout, stderr } = await run(t, ['workflow', 'validate', wrong])
  assert.equal(code, 1)
  const paths = JSON.parse(stdout).problems.map((one: { path: string }) => one.path)
  assert.deepEqual(paths.toSorted(), ['nodes/0/dependsOn/0', 'nodes/0/if', 'nodes/1/node/if'])
  assert.match(stderr, /has 3 problems/)
  const shown = await run(t, ['workflow', 'show', path])
  assert.deepEqual([shown.code, JSON.parse(shown.stdout).name], [0, 'review'])
  for (const bad of ['name: [', 'nodes: 1', ''])
    assert.equal((await run(t, ['workflow', 'validate', await file(t, bad)])).code, 1, bad)
  assert.equal((await run(t, ['workflow', 'show', join(path, 'nowhere')])).code, 1)
})

test('a file is run to its end, stored, and comes back as it was', async (t) => {
  const cluster = await startCluster(t, 'single')
  const of = ['--url', cluster.conductorUrl, '--key', cluster.bootstrap]
  const path = await file(t, review)
  const input = ['--input', '{"n": 1, "list": [1, 2, 3]}']
  const done = await run(t, ['workflow', 'run', path, ...of, ...input])
  assert.equal(done.code, 0, done.stderr)
  assert.deepEqual(JSON.parse(done.stdout).output, { many: [false, true, true] })
  assert.match(done.stderr, /last: ok/)
  const unfit = await run(t, ['workflow', 'run', path, ...of])
  assert.deepEqual([unfit.code, /does not fit/.test(unfit.stderr)], [1, true], unfit.stderr)
  const fails = await file(t, 'name: x\nnodes: [{ id: a, type: condition, if: input.none > 1 }]')
  const paused = await run(t, ['workflow', 'run', fails, ...of])
  assert.deepEqual([paused.code, /is paused/.test(paused.stderr)], [1, true], paused.stderr)
  const imported = await run(t, ['workflow', 'import', path, ...of])
  assert.equal(imported.code, 0, imported.stderr)
  const { id, version } = JSON.parse(imported.stdout)
  const exported = await run(t, ['workflow', 'export', id, ...of])
  assert.deepEqual([version, exported.code, parse(exported.stdout)], [1, 0, parse(review)], exported.stderr)
  assert.equal((await run(t, ['workflow', 'export', 'wfdef_none', ...of])).code, 1)
  assert.equal((await run(t, ['workflow', 'import', path, '--data', await emptyFolder(t)])).code, 2)
})
