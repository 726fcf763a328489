/* oxlint-disable unicorn/no-thenable -- nodes of type condition have a field of that name. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { countingTurns } from '#testing'
import { mostEdges } from '../graph.ts'
import type { NodeBody } from '../schema.ts'
import { problemsOf } from '../validate.ts'

const wait = { type: 'wait', seconds: 0 }
const check = (nodes: object[], more: object = {}) => problemsOf({ name: 'x', nodes: nodes as NodeBody[], ...more })

test('a list that is too long is refused as a whole, and nobody looks at what is in it', async () => {
  const zeros = Array<number>(mostEdges + 1).fill(0)
  for (const field of ['dependsOn', 'then', 'else']) {
    const [problem, ...others] = await check([{ id: 'a', type: 'condition', if: true, [field]: zeros }])
    assert.deepEqual([problem?.path, others], ['nodes', []])
    assert.match(problem!.message, /at most 40000 dependencies, and these are 40001/)
  }
  const headers = Object.fromEntries(Array.from({ length: 101 }, (_, i) => [`x-${i}`, 1]))
  const http = { type: 'http', url: 'https://example.com' }
  const part = { id: 'm', type: 'map', items: [1] }
  assert.deepEqual(
    (
      await check([
        { id: 'a', ...http, headers },
        { id: 'b', ...http, expect: Array(501).fill(0) },
        { ...part, id: 'c', items: zeros, node: wait },
        { ...part, id: 'd', node: { ...wait, dependsOn: zeros } },
      ])
    ).map(({ path, message }) => `${path} ${message}`),
    [
      'nodes/0/headers has at most 100 entries, and these are 101',
      'nodes/1/expect has at most 500 entries, and these are 501',
      'nodes/2/items has at most 10000 entries, and these are 40001',
      'nodes/3/node/dependsOn has at most 10000 entries, and these are 40001',
    ],
  )
})

test('a header whose name is none is refused, whatever its value is', async () => {
  const http = { id: 'a', type: 'http', url: 'https://example.com' }
  for (const name of ['a b', 'a\nb']) {
    const [problem] = await check([{ ...http, headers: { [name]: { x: 1 } } }])
    assert.match(problem?.path ?? '', /^nodes\/0\/headers/)
  }
})

test('a node sends only so many secrets, because its answers are searched for each of them', async () => {
  const send = (count: number) => ({
    id: 'a',
    type: 'http',
    url: 'https://example.com',
    headers: {
      one: Array.from({ length: count }, (_, i) => `secret://s${i}`).join(' '),
      two: 'secret://s0 secret://s1',
    },
  })
  assert.deepEqual(await check([send(8)]), [])
  const problem = { path: 'nodes/0/headers', message: 'refers to at most 8 secrets, and these are 9' }
  assert.deepEqual(await check([send(9)]), [problem])
})

test('as many dependencies as there may be are fine, and each is named once', async () => {
  const before = Array.from({ length: 200 }, (_, i) => ({ ...wait, id: `a${i}` }))
  const dependsOn = before.map(({ id }) => id)
  const behind = Array.from({ length: 200 }, (_, i) => ({ ...wait, id: `b${i}`, dependsOn }))
  assert.deepEqual(await check([...before, ...behind]), [])
  assert.equal((await check([...before, ...behind, { ...wait, id: 'c', dependsOn: ['a0'] }]))[0]!.path, 'nodes')
  const twice = { id: 'c', type: 'condition', if: true, dependsOn: ['a', 'a'], then: ['b', 'b'] }
  assert.deepEqual(await check([{ ...wait, id: 'a' }, { ...wait, id: 'b' }, twice]), [
    { path: 'nodes/2/dependsOn', message: 'expected array elements to be unique' },
    { path: 'nodes/2/then', message: 'expected array elements to be unique' },
  ])
})

test('no more problems are looked for than are told', async () => {
  const asked: PropertyKey[] = []
  const watched = new Proxy(Array<number>(1_000).fill(0), {
    get: (of, name) => (asked.push(name), of[name as keyof typeof of]),
  })
  const problems = await check([{ ...wait, id: 'a', dependsOn: watched }])
  assert.deepEqual([problems.length, problems[0]!.path], [100, 'nodes/0/dependsOn/0'])
  assert.ok(asked.includes('99') && !asked.includes('999'))
  const strange = Object.fromEntries(Array.from({ length: 60 }, (_, i) => [`strange${i}`, 1]))
  assert.deepEqual(await check([{ ...wait, id: 'a', ...strange }]), [
    { path: 'nodes/0', message: 'has at most 50 fields, and these are 63' },
  ])
})

test('others have their turns while one node is checked, whatever its size is made of', async () => {
  const big = 400_000
  for (const list of [
    Array<number>(big).fill(0),
    Array<object>(big).fill([]),
    Array<string>(big).fill(''),
    [Array<string>(big / 100).fill('x'.repeat(1_000))],
  ]) {
    const { turns } = await countingTurns(() => check([{ id: 'a', type: 'tool', tool: 't', arguments: { list } }]))
    assert.ok(turns > 10, `${turns} turns`)
    assert.ok((await countingTurns(() => check([{ ...wait, id: 'a' }], { output: list }))).turns > 10)
  }
  // Each of these asks which nodes come before its own.
  const chain = Array.from({ length: 2_000 }, (_, i) => ({
    id: `n${i}`,
    type: 'approval',
    message: '{{ nodes.n0.output }}',
    ...(i === 0 ? { message: 'x' } : { dependsOn: [`n${i - 1}`] }),
  }))
  const { turns } = await countingTurns(() => check(chain))
  assert.ok(turns > 50, `${turns} turns`)
})

test('references in templates and conditions are checked, at any depth, and other texts are just texts', async () => {
  const long = 'n'.repeat(1_000)
  const problems = await check(
    [
      { id: 'a', type: 'approval', message: 'How do nodes.js and nodes.gone work?' },
      {
        id: 'b',
        type: 'tool',
        tool: 't',
        arguments: { list: [1, { [long]: '{{ nodes.gone.output }}' }], nodes: 'nodes.gone' },
      },
      { id: 'c', type: 'map', items: ['{{ nodes.a.output }}'], node: { type: 'condition', if: 'nodes.none.output' } },
      { id: 'd', type: 'loop', max: 1, until: 'nodes.b.output', dependsOn: ['b'], node: wait },
    ],
    { output: { x: ['{{ nodes.d.output }}{{ nodes.e.output }}'] } },
  )
  assert.deepEqual(problems.map(({ path, message }) => `${path} ${message}`).toSorted(), [
    `nodes/1/arguments/list/1/${long.slice(0, 100)} there is no node 'gone'`,
    "nodes/2/items/0 'a' is not before it: add it to `dependsOn`",
    "nodes/2/node/if there is no node 'none'",
    "output/x/0 there is no node 'e'",
  ])
})
