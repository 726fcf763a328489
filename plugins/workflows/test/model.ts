import assert from 'node:assert/strict'
import fc from 'fast-check'
import { type Body, type Effect, type Effects, node, type Stage } from './stage.ts'

/** A node of a random graph, and what happens to it. */
interface Plan {
  readonly kind: 'call' | 'map' | 'loop' | 'approval' | 'condition'
  /** Indices of earlier nodes. */
  readonly after: readonly number[]
  /** How many calls fail before one succeeds, or how many people reject before one approves. For maps and loops: in every second part. */
  readonly fails: number
  readonly retries: number
  readonly goesOn: boolean
  /** Parts of a map or loop. */
  readonly parts: number
  /** For a condition: its value, so whether the nodes after it run. */
  readonly holds: boolean
  /** How people repair the node after it has failed. Its parts, and approvals, are always retried. */
  readonly mends: 'retry' | 'replace' | 'settle'
}
const few = (most: number) => fc.oneof({ weight: 2, arbitrary: fc.constant(0) }, { weight: 1, arbitrary: fc.nat(most) })
const plans = fc
  .array(
    fc.record({
      kind: fc.constantFrom('call', 'call', 'call', 'map', 'loop', 'approval', 'condition'),
      after: fc.array(fc.nat(9), { maxLength: 3 }),
      fails: few(4),
      retries: fc.nat(2),
      goesOn: fc.boolean(),
      parts: fc.integer({ min: 1, max: 3 }),
      holds: fc.boolean(),
      mends: fc.constantFrom('retry', 'replace', 'settle'),
    }),
    { minLength: 1, maxLength: 9 },
  )
  .map((all) => all.map((plan, i): Plan => ({ ...plan, after: [...new Set(plan.after)].filter((j) => j < i) })))

const ok = 3
const failed = 4
const skipped = 5
/** The result of a node, and how often each of its parts was called or asked. A node that is no map or loop has one part. */
interface Fate {
  readonly status: number
  readonly calls: readonly number[]
  readonly replaced: boolean
}
const isDivided = ({ kind }: Plan): boolean => kind === 'map' || kind === 'loop'

/** The expected result of a graph, whatever order its nodes run in. `before`: the results of the run that is run again from `from`. */
function model(all: readonly Plan[], before?: readonly Fate[], from = 0): Fate[] {
  const fates: Fate[] = []
  const again = new Set<number>()
  for (const [i, plan] of all.entries()) {
    const known = before?.[i]
    const isDead = plan.after.some((j) => skips(all[j]!, fates[j]!))
    const isKept = known && i !== from && !plan.after.some((j) => again.has(j))
    // Nodes that a kept condition has skipped stay skipped, whatever else leads to them.
    const keepsOut = known && i !== from && plan.after.some((j) => !again.has(j) && skips(all[j]!, fates[j]!))
    if (isKept || keepsOut) {
      fates.push({ ...known, calls: [] })
      continue
    }
    again.add(i)
    const isCutOff = plan.after.length > 0 && plan.after.every((j) => fates[j]!.status === skipped)
    const goes = i === from && before ? true : !isDead && !isCutOff
    fates.push(goes ? alone(plan, known) : { status: skipped, calls: [], replaced: known?.replaced ?? false })
  }
  return fates
}
const skips = (plan: Plan, { status }: Fate): boolean => plan.kind === 'condition' && status === ok && !plan.holds

/** The result of a node whose turn has come. */
function alone(plan: Plan, before: Fate | undefined): Fate {
  const { kind, goesOn, mends } = plan
  if (kind === 'condition' || before?.replaced) return { status: ok, calls: [], replaced: before?.replaced ?? false }
  const retries = kind === 'approval' ? 0 : plan.retries
  const parts = isDivided(plan) ? plan.parts : 1
  let status = ok
  let replaced = false
  const calls = Array.from({ length: parts }, (_, part) => {
    const fails = Math.max(0, failsOf(plan, part) - (before?.calls[part] ?? 0))
    if (fails <= retries) return fails + 1
    if (goesOn && !isDivided(plan)) status = failed
    if (goesOn) return retries + 1
    if (kind !== 'call' || mends === 'retry') return fails + 1
    replaced = mends === 'replace'
    return retries + 1
  })
  return { status, calls, replaced }
}
const failsOf = (plan: Plan, part: number): number => (isDivided(plan) && part % 2 === 0 ? 0 : plan.fails)

/** How often each path still fails. */
const left = new Map<string, number>()
export const answerOf = ({ path }: Effect) => {
  const fails = left.get(path) ?? 0
  left.set(path, fails - 1)
  return fails > 0 ? { status: 500 } : {}
}

function nodesOf(all: readonly Plan[], url: string): object[] {
  return all.map(({ kind, after, retries, goesOn, parts, holds }, i) => {
    const place = { id: `n${i}`, dependsOn: after.map((j) => `n${j}`) }
    const policy = {
      continueOnError: goesOn,
      ...(kind === 'approval' ? {} : { retry: { max: retries, delaySeconds: 0 } }),
    }
    const call = { type: 'http', ...policy, url: `${url}/${i}/{{ ${kind === 'loop' ? 'iteration' : 'index'} }}` }
    const those = all.flatMap((other, j) => (other.after.includes(i) ? [`n${j}`] : []))
    switch (kind) {
      case 'call':
        return { ...place, ...call, url: `${url}/${i}/0` }
      case 'map':
        return { ...place, type: kind, items: Array.from({ length: parts }, (_, n) => n), concurrency: 2, node: call }
      case 'loop':
        return { ...place, type: kind, until: `iteration >= ${parts - 1}`, max: 9, node: call }
      case 'approval':
        return { ...place, ...policy, type: kind, message: 'Is it well?' }
      case 'condition':
        // oxlint-disable-next-line unicorn/no-thenable -- nobody awaits a node.
        return { ...place, type: kind, if: holds, then: those }
    }
  })
}

interface Played {
  readonly run: Body
  /** How often people were asked, by node. */
  readonly asked: ReadonlyMap<string, number>
}

/** Plays the people who decide and repair as planned until the run is over, or cancels the run after a number of actions. */
async function play(
  all: readonly Plan[],
  id: string,
  rejects: Map<string, number>,
  by: Stage[],
  cancelAfter = Infinity,
): Promise<Played> {
  const [one, two] = by as [Stage, Stage]
  const asked = new Map<string, number>()
  for (let done = 0; ; done++) {
    const waits = (each: Body): boolean => each.type === 'approval' && each.status === 2
    const run = await two.until(
      id,
      (now) =>
        now.status > 1 ||
        now.nodes.some(
          (each: Body) =>
            waits(each) &&
            now.nodes.every(
              (other: Body) =>
                other.status !== 1 &&
                (other.status !== 2 || waits(other) || other.type === 'map' || other.type === 'loop'),
            ),
        ),
    )
    if (run.status > 2) return { run, asked }
    if (done === cancelAfter) {
      await one.call('POST', `/api/workflows/runs/${id}/cancel`)
      return { run: await one.rests(id), asked }
    }
    const broken = run.nodes.find((each: Body) => each.status === failed && blocks(all, each))
    if (broken) await repair(all, id, broken, one)
    const waiting = (await two.call('GET', '/api/approvals?status=waiting&limit=200')).body
    for (const { id: approval, nodeId } of waiting.filter((each: Body) => each.workflowRunId === id)) {
      const fails = rejects.get(nodeId) ?? 0
      rejects.set(nodeId, fails - 1)
      const { status } = await one.call('POST', `/api/approvals/${approval}/resolve`, {
        decision: fails > 0 ? 'reject' : 'approve',
      })
      assert.equal(status, 200)
      asked.set(nodeId, (asked.get(nodeId) ?? 0) + 1)
    }
  }
}
const planOf = (all: readonly Plan[], id: string): Plan => all[Number(/^n(\d+)/.exec(id)![1])]!
const blocks = (all: readonly Plan[], { id }: Body): boolean => !planOf(all, id).goesOn

async function repair(all: readonly Plan[], id: string, { id: nodeId }: Body, stage: Stage): Promise<void> {
  const { kind, mends } = planOf(all, nodeId)
  const how = kind === 'call' ? mends : 'retry'
  const of = `/api/workflows/runs/${id}`
  const { status, body } =
    how === 'settle'
      ? await stage.call('PATCH', `${of}/nodes/${nodeId}`, { status: 'ok' })
      : await stage.call('POST', `${of}/repair`, {
          nodeId,
          ...(how === 'retry'
            ? { action: 'retry_node' }
            : { action: 'replace_node', node: { type: 'condition', if: true } }),
        })
  assert.ok(status < 300, `${how} of ${nodeId}: ${JSON.stringify(body)}`)
}

/** Compares random graphs with the model, with failures, decisions, repairs, cancels and reruns on two conductors. */
export async function randomGraphs(one: Stage, two: Stage, http: Effects): Promise<void> {
  let graph = 0
  const property = fc.asyncProperty(
    plans,
    fc.option(fc.nat(3)),
    fc.option(fc.nat(8)),
    async (all, cancelAfter, from) => {
      const name = `g${++graph}`
      all.forEach((plan, i) =>
        Array.from({ length: 3 }, (_, part) => left.set(`/${name}/${i}/${part}`, failsOf(plan, part))),
      )
      const rejects = new Map(all.map(({ fails }, i) => [`n${i}`, fails]))
      const begin = http.effects.length
      const id = await (graph % 2 ? one : two).run(nodesOf(all, `${http.url}/${name}`))
      const first = await play(all, id, rejects, [one, two], cancelAfter ?? undefined)
      const isCancelled = first.run.status === 5
      for (const each of first.run.nodes) assert.ok(each.status > 2, `${each.id} is ${each.status}`)
      const fates = model(all)
      if (isCancelled) attemptsOf(all, id, http.effects.slice(begin), first.run)
      else compare(all, fates, first, http.effects.slice(begin), name)
      if (from === null) return
      const later = http.effects.length
      const again = await one.call('POST', `/api/workflows/runs/${id}/rerun`, { fromNodeId: `n${from % all.length}` })
      assert.equal(again.status, 202, JSON.stringify(again.body))
      const second = await play(all, again.body.id, rejects, [two, one])
      assert.equal(second.run.status, 3)
      if (!isCancelled) compare(all, model(all, fates, from % all.length), second, http.effects.slice(later), name)
    },
  )
  // More of them: AGENT_ORC_GRAPHS=500 npm test -- plugins/workflows/test/graphs.test.ts, which prints the seed of a failure.
  const { AGENT_ORC_GRAPHS: many, AGENT_ORC_GRAPHS_SEED: seed } = process.env
  const random =
    many === undefined ? { numRuns: 20, seed: 17 } : { numRuns: Number(many), ...(seed ? { seed: Number(seed) } : {}) }
  await fc.assert(property, { ...random, endOnFailure: true })
}

function compare(
  all: readonly Plan[],
  fates: readonly Fate[],
  { run, asked }: Played,
  effects: readonly Effect[],
  name: string,
): void {
  assert.equal(run.status, 3)
  for (const [i, { status, calls }] of fates.entries()) {
    assert.equal(node(run, `n${i}`).status, status, `n${i}`)
    const { kind } = all[i]!
    for (const [part, count] of calls.entries()) {
      const made = effects.filter(({ path }) => path === `/${name}/${i}/${part}`)
      assert.equal(kind === 'approval' ? asked.get(`n${i}`) : made.length, count, `calls of n${i}.${part}`)
      assert.equal(new Set(made.map(({ attempt }) => attempt)).size, made.length, 'no attempt was made twice')
    }
    if (calls.length === 0)
      assert.ok(
        !effects.some(({ path }) => path.startsWith(`/${name}/${i}/`)) && !asked.has(`n${i}`),
        `n${i} was called`,
      )
  }
  // No node began before all its dependencies were over.
  const first = (i: number): number => effects.findIndex(({ path }) => path.startsWith(`/${name}/${i}/`))
  const last = (i: number): number => effects.findLastIndex(({ path }) => path.startsWith(`/${name}/${i}/`))
  all.forEach(({ after }, i) =>
    after.forEach((j) => assert.ok(first(i) < 0 || last(j) < first(i), `n${i} after n${j}`)),
  )
}

/** Checks a cancelled run: every attempt that had begun took effect at most once. */
function attemptsOf(all: readonly Plan[], id: string, effects: readonly Effect[], run: Body): void {
  assert.equal(run.nodes.filter((each: Body) => each.parent === undefined).length, all.length)
  const keys = effects.filter(({ key }) => key.startsWith(`${id}/`)).map(({ key, attempt }) => `${key} ${attempt}`)
  assert.equal(new Set(keys).size, keys.length, 'no attempt was made twice')
}
