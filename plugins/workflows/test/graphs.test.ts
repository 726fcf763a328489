import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { type Body, node, stage, startEffects } from './stage.ts'

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

test('random graphs with failures, repairs and cancels end as a small model says, on two conductors', async (t) => {
  const left = new Map<string, number>()
  const http = await startEffects(t, ({ path }) => {
    const fails = left.get(path) ?? 0
    left.set(path, fails - 1)
    return fails > 0 ? { status: 500 } : {}
  })
  const one = await stage(t)
  const two = await stage(t, { dsn: one.dsn })
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
  await fc.assert(property, { numRuns: 25, seed: 17, endOnFailure: true })
})
