import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import type { Delegation, DelegationAnswer } from '#contracts/delegation'
import { type Limits, TenantLimits } from '#contracts/limits'
import type { RuntimeEvent } from '#contracts/run-event'
import type { RunSummary } from '#contracts/runs'
import { fake, testProfile } from '#testing'
import { DelegationTrees } from '../delegations.ts'
import {
  chat,
  endless,
  eventually,
  FakeRunner,
  limitsOf,
  meddling,
  parkedRuns,
  result,
  runId,
  type Script,
  stage,
  type StageOptions,
  untilAborted,
} from './stage.ts'

const never = new AbortController().signal
const told = (runOfChild: string): RuntimeEvent => ({
  type: 'progress',
  stage: 'delegation',
  delegation: { id: 'd', runId: runOfChild, profile: 'other', state: 'started' },
})
const usage = (costCents: number): RuntimeEvent => ({
  type: 'usage',
  inputTokens: 1,
  outputTokens: 1,
  model: 'm',
  costCents,
})

/** Holds the delegations that its tools wait for, as the real runner does. */
class DelegatingRunner extends FakeRunner {
  readonly waiting: Delegation[] = []
  readonly answers = new Map<string, DelegationAnswer>()
  readonly children: string[] = []
  child: Script = chat
  /** The parent of a session that exists already. */
  parent = ''
  /** How many tasks the parent gives at once. */
  tasks: Pick<Delegation, 'id' | 'profile'>[] = [{ id: 'd', profile: 'other' }]
  before: RuntimeEvent[] = []
  override script: Script = (run, signal) => this.play(run, signal)
  override delegations = async () => this.waiting
  override async answerDelegation(...args: unknown[]): Promise<void> {
    const [, , id, answer] = args as [string, string, string, DelegationAnswer]
    this.answers.set(id, answer)
  }
  private async *play(...[run, signal]: Parameters<Script>): ReturnType<Script> {
    if (run.create?.profile.name !== 'parent' && run.runId !== this.parent) {
      this.children.push(run.runId)
      yield* this.child(run, signal)
      return
    }
    yield* this.before
    for (const { id, profile } of this.tasks) {
      this.waiting.push({ id, profile, parentRunId: run.runId, runId: `child-${id}-${run.runId}`, prompt: 'do it' })
    }
    yield told('child')
    // The second look must not start the child again.
    yield told('child')
    while (this.answers.size < this.tasks.length && !signal.aborted) await new Promise((go) => setTimeout(go, 1))
    if (!signal.aborted) yield result([...this.answers.values()].map(({ content }) => content).join('|'))
  }
}

async function begin(
  t: TestContext,
  over: Parameters<typeof testProfile>[1] = {},
  prepare: (runner: DelegatingRunner) => unknown = () => {},
  more: StageOptions['more'] = [],
) {
  const runner = new DelegatingRunner()
  prepare(runner)
  const profiles = [testProfile('parent', over), testProfile('other')]
  const s = await stage(t, { runner, profiles, more })
  const id = runId()
  const started = await s.dispatch.start('acme', { profile: 'parent', prompt: 'x', id }, 0, never)
  const ended = async (): Promise<RunSummary> => {
    for await (const _ of started.events);
    return (await s.store.findRun('acme', id))!
  }
  return { ...s, runner, id, ended }
}

test('a delegated task is a run of its own, with the parent in it, and its answer goes back to the tool', async (t) => {
  const s = await begin(t)
  const run = await s.ended()
  assert.deepEqual([run.status, run.result], ['ok', 'Hello, world.'])
  assert.deepEqual(s.runner.answers.get('d'), { ok: true, content: 'Hello, world.', status: 'ok', costCents: 0.5 })
  const { items: children } = await s.store.listRuns('acme', { parent: s.id })
  assert.deepEqual(
    children.map(({ runId: id, status, parent, subTask }) => [id, status, parent, subTask.profile]),
    [[`child-d-${s.id}`, 'ok', { runId: s.id, rootId: s.id, depth: 1, awaits: true }, 'other']],
  )
  const { depth, awaited } = s.runner.executed.find(({ runId: id }) => id === `child-d-${s.id}`)!
  assert.deepEqual([depth, awaited], [1, true])
})

test('several tasks at once run at once, each one time', async (t) => {
  const s = await begin(t, {}, (runner) => (runner.tasks = ['a', 'b', 'c'].map((id) => ({ id, profile: 'other' }))))
  await s.ended()
  assert.deepEqual(
    s.runner.children.toSorted(),
    ['a', 'b', 'c'].map((id) => `child-${id}-${s.id}`),
  )
})

test('a child that fails, and a profile that is unknown or not allowed, are told to the model', async (t) => {
  const failing = await begin(t, {}, (runner) => {
    runner.child = async function* () {
      yield { type: 'error', code: 'model_error', message: 'The model is away.' }
    }
  })
  await failing.ended()
  assert.deepEqual(failing.runner.answers.get('d'), {
    ok: false,
    content: 'The task was not done: The model is away.',
    status: 'error',
  })
  const unknown = await begin(t, {}, (runner) => (runner.tasks = [{ id: 'd', profile: 'nobody' }]))
  await unknown.ended()
  assert.match(unknown.runner.answers.get('d')!.content, /^The task was not started: /)
  const forbidden = await begin(t, { delegates: ['somebody'] })
  await forbidden.ended()
  assert.match(forbidden.runner.answers.get('d')!.content, /may not delegate to 'other'; it may to: somebody/)
  assert.deepEqual(forbidden.runner.children, [])
})

test('when the parent is cancelled its children are, too', async (t) => {
  const s = await begin(t, {}, (runner) => (runner.child = endless))
  await eventually('the child runs', () => s.runner.children.length === 1)
  await s.dispatch.cancel('acme', s.id)
  assert.equal((await s.ended()).status, 'cancelled')
  await eventually('the child is cancelled', async () => {
    const child = await s.store.findRun('acme', s.runner.children[0]!)
    return child?.status === 'cancelled'
  })
})

test('what a run and its children may cost is one budget', async (t) => {
  const limits = { maxCostCents: 10 }
  // The parent has spent 4: the child may spend 6, and spends 7.
  const over = await begin(t, { limits }, (runner) => {
    runner.before = [usage(4)]
    runner.child = async function* (_run, signal) {
      yield usage(7)
      await untilAborted(signal)
    }
  })
  const run = await over.ended()
  const child = (await over.store.findRun('acme', over.runner.children[0]!))!
  assert.deepEqual([child.status, child.error?.code, child.parent?.budgetCents], ['error', 'budget_exceeded', 6])
  assert.deepEqual([run.status, run.error?.code], ['error', 'budget_exceeded'])

  // Of two at once neither passes what it may spend itself, and together they do.
  const together = await begin(t, { limits }, (runner) => {
    runner.tasks = ['a', 'b'].map((id) => ({ id, profile: 'other' }))
    runner.child = async function* (_run, signal) {
      yield usage(6)
      await untilAborted(signal)
    }
  })
  const both = await together.ended()
  assert.deepEqual([both.status, both.error?.code], ['error', 'budget_exceeded'])

  const nothingLeft = await begin(t, { limits: { maxCostCents: 4 } }, (runner) => (runner.before = [usage(4)]))
  await nothingLeft.ended()
  assert.match(nothingLeft.runner.answers.get('d')!.content, /budget of this run is used up/)
})

test('a run that costs more than its limit ends, and one at its limit does not', async (t) => {
  const alone = (cost: number) =>
    begin(t, { limits: { maxCostCents: 5 } }, (runner) => {
      runner.tasks = []
      runner.before = [usage(cost)]
    })
  const within = await (await alone(5)).ended()
  assert.equal(within.status, 'ok')
  const s = await alone(5.5)
  const run = await s.ended()
  assert.deepEqual([run.status, run.error?.code], ['error', 'budget_exceeded'])
})

test('a worker that says it delegates starts nothing: only what the runner itself holds counts', async (t) => {
  const s = await begin(t, {}, (runner) => {
    runner.tasks = []
    runner.before = [told('forged')]
  })
  assert.equal((await s.ended()).status, 'ok')
  assert.deepEqual(s.runner.children, [])
})

test('a worker that says without end that a tool waits has its runner asked once more, not once for each', async (t) => {
  let asked = 0
  const s = await begin(t, {}, (runner) => {
    runner.before = Array.from({ length: 500 }, () => told('nobody'))
    runner.delegations = async () => {
      asked++
      await eventually('the events are through', () => runner.waiting.length > 0)
      return runner.waiting
    }
  })
  assert.equal((await s.ended()).result, 'Hello, world.')
  assert.ok(asked <= 3, `asked ${asked} times`)
})

test('a tree of tasks has as many runs as it may, in all, at once and one below the other', async (t) => {
  const tree = (limits: Partial<Limits>, tasks: number) =>
    begin(
      t,
      {},
      (runner) => (runner.tasks = Array.from({ length: tasks }, (_, i) => ({ id: `d${i}`, profile: 'other' }))),
      [fake(TenantLimits, limitsOf(limits))],
    )
  const refusals = (s: { readonly runner: DelegatingRunner }): string[] =>
    [...s.runner.answers.values()].filter(({ ok }) => !ok).map(({ content }) => content)
  const inAll = await tree({ delegatedRuns: 3 }, 14)
  await inAll.ended()
  assert.equal(inAll.runner.children.length, 3)
  assert.match(refusals(inAll)[0]!, /limit delegatedRuns, 3/)
  const atOnce = await tree({ delegatedAtOnce: 2 }, 6)
  await atOnce.ended()
  assert.match(refusals(atOnce)[0]!, /limit delegatedAtOnce, 2/)
  const deep = await tree({ delegationDepth: 0 }, 1)
  await deep.ended()
  assert.match(refusals(deep)[0]!, /limit delegationDepth, 0/)
})

test('a run that is resumed has delegated what its tree had delegated before, and joins what counts already', async (t) => {
  const parent = testProfile('parent')
  const { approvals, decide, ...parked } = await parkedRuns(parent, 'parked')
  const asked: unknown[] = []
  const store = meddling(parked.store, {
    async delegatedInTree(...of) {
      asked.push(of)
      return ['child-known-parked', 'another']
    },
  })
  const runner = new DelegatingRunner()
  runner.parent = 'parked'
  runner.tasks = ['new', 'known', 'late'].map((id) => ({ id, profile: 'other' }))
  const profiles = [parent, testProfile('other')]
  const more = [approvals, fake(TenantLimits, limitsOf({ delegatedRuns: 3 }))]
  await stage(t, { runner, profiles, store, more })
  await decide('parked')
  await eventually('all are answered', () => runner.answers.size === 3)
  assert.deepEqual(runner.children.toSorted(), ['child-known-parked', 'child-new-parked'])
  assert.match(runner.answers.get('late')!.content, /limit delegatedRuns, 3/)
  assert.deepEqual(asked, [['acme', 'parked', 3]])
})

test('a fan-out starts little by little at the pace of its tenant, and those of others do not wait for it', async () => {
  const trees = new DelegationTrees(limitsOf({ writesPerMinute: 1 }))
  const stop = new AbortController()
  let passed = 0
  const turns = Array.from({ length: 10 }, () => trees.turn('acme', stop.signal).then(() => passed++))
  await trees.turn('globex', stop.signal)
  assert.ok(passed >= 2 && passed < 10, `${passed} at once`)
  stop.abort()
  await Promise.all(turns)
})
