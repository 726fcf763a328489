import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pino } from 'pino'
import { AppError, linesOf } from '#kernel'
import { createEventEncoder, isTerminalType, parseLine } from '#contracts/run-event'
import type { Claim, RunStore } from '#contracts/run-store'
import { type ExecuteRun, type Fleet, leaving, type RunnerLink } from '#contracts/runner'
import { RunLinks } from '../links.ts'
import { endingOf } from '../ending.ts'
import { DelegationTrees } from '../delegations.ts'
import { FlushClock } from '../recorder.ts'
import type { RunState } from '../ending.ts'
import { Run, type RunDeps } from '../run.ts'
import { meddling, profileNamed, result, text } from './stage.ts'
import { MemoryRunStore } from '../memory/store.ts'

/** What can happen to a run while it is in `at`, each as often as it likes. */
const happenings = [
  'result',
  'error',
  'cut',
  'gone',
  'cancel',
  'timeout',
  'abandon',
  'fenced',
  'stolen',
  'hand over',
  'leave',
] as const
type Happening = (typeof happenings)[number]
const states = ['dispatching', 'streaming', 'waiting', 'ending'] as const

/** A runner whose stream does what a test says, when it says so. */
class Puppet {
  readonly hash = 'aaaaaaaa'
  readonly taken = Promise.withResolvers<void>()
  reason: unknown
  aborts = 0
  #next = Promise.withResolvers<'result' | 'error' | 'cut' | 'gone'>()
  do(what: 'result' | 'error' | 'cut' | 'gone'): void {
    this.#next.resolve(what)
  }
  async *execute(_tenant: string, run: ExecuteRun, signal: AbortSignal): AsyncGenerator<Buffer> {
    signal.addEventListener('abort', () => {
      this.aborts++
      this.reason = signal.reason
      this.#next.resolve('cut')
    })
    const encoder = createEventEncoder(run.runId, run.sessionId, run.firstSeq)
    if (this.held) await this.held.promise
    yield Buffer.from(encoder.line(text('one')))
    this.taken.resolve()
    const what = await this.#next.promise
    this.#next = Promise.withResolvers()
    if (what === 'result') yield Buffer.from(encoder.line(result('done')))
    if (what === 'error') yield Buffer.from(encoder.line({ type: 'error', code: 'model_error', message: 'no' }))
    if (what === 'gone') throw new AppError('runner_unreachable', 503)
  }
  held: PromiseWithResolvers<void> | undefined
}

let worlds = 0

async function world(inner: RunStore, at: (typeof states)[number]) {
  const gate = Promise.withResolvers<void>()
  let handedOver = 0
  const store = meddling(inner, {
    // This must be slower than the step that it races with.
    async append(...chunk) {
      for (let i = 0; i < 5; i++) await new Promise((resolve) => setImmediate(resolve))
      return inner.append(...chunk)
    },
    async finish(end) {
      if (at === 'ending') await gate.promise
      return inner.finish(end)
    },
    async handOver() {
      handedOver++
      return true
    },
  })
  const puppet = new Puppet()
  if (at === 'dispatching') puppet.held = Promise.withResolvers()
  const link = puppet as unknown as RunnerLink
  const runners = { place: () => link, home: () => link, owner: () => link, all: () => [link] } as unknown as Fleet
  const profile = { ...profileNamed('writer'), ...(at === 'waiting' ? { onCrash: 'retry' as const } : {}) }
  const ids = { tenantId: 'acme', runId: `r${++worlds}`, sessionId: `sess-aaaaaaaa-${worlds}` }
  const outcome = await store.start({ ...ids, task: { profile: 'writer', prompt: 'x' }, create: { profile } })
  assert.ok(outcome.kind === 'started')
  const deps: RunDeps = {
    store,
    runners,
    mcpServers: undefined,
    approvals: undefined,
    egress: undefined,
    apps: undefined,
    skills: undefined,
    recall: undefined,
    conductorTools: new Map(),
    objectWrites: undefined,
    links: new RunLinks(undefined, { warn() {} }),
    prices: undefined,
    billing: undefined,
    log: pino({ level: 'silent' }),
    children: undefined as unknown as RunDeps['children'],
    trees: new DelegationTrees(undefined),
    limits: { logged() {}, stored() {}, ofRunner: () => ({}) },
    onCrash: 'interrupt',
    announce() {},
    flushes: new FlushClock(),
    givingUp: new AbortController().signal,
    deadlineGraceMs: 0,
    windDownMs: 20,
  }
  const { claim, session } = outcome
  const run = new Run(deps, { claim, session, task: { profile: 'writer', prompt: 'x' }, placed: link, announced: true })
  const until = async (state: RunState): Promise<void> => {
    for (let i = 0; run.state !== state && i < 2_000; i++) await new Promise((resolve) => setImmediate(resolve))
    assert.equal(run.state, state)
  }
  if (at !== 'dispatching') await puppet.taken.promise
  if (at === 'waiting') puppet.do('cut')
  if (at === 'ending') puppet.do('result')
  await until(at)
  return {
    run,
    store: inner,
    puppet,
    claim: claim as Claim,
    handedOver: () => handedOver,
    settle() {
      puppet.held?.resolve()
      gate.resolve()
    },
  }
}
type World = Awaited<ReturnType<typeof world>>

const acts: Readonly<Record<Happening, (w: World) => unknown>> = {
  result: (w) => w.puppet.do('result'),
  error: (w) => w.puppet.do('error'),
  cut: (w) => w.puppet.do('cut'),
  gone: (w) => w.puppet.do('gone'),
  cancel: (w) => w.run.stop(endingOf('cancelled')),
  timeout: (w) => w.run.stop(endingOf('timeout')),
  abandon: (w) => w.run.abandon(),
  fenced: (w) => w.run.leave(),
  stolen: (w) => w.store.steal('acme', w.claim.runId, 'cancelled', { code: 'cancelled', message: 'taken away' }),
  'hand over': (w) => w.run.handOver(),
  leave: (w) => w.run.leave(),
}

/** However it went: one ending or none, and whoever says that it ended here has it on record. */
async function check(w: World, story: string): Promise<void> {
  const how = await w.run.done
  const stored = (await w.store.findRun('acme', w.claim.runId))!
  const page = (await w.store.readLog('acme', w.claim.runId, 0))!
  const events = page.chunks.flatMap(({ lines }) => [...linesOf(lines)]).map((line) => parseLine(line)!)
  const terminals = events.filter(({ type }) => isTerminalType(type as string))
  const over = stored.status !== 'running'
  assert.equal(terminals.length, over ? 1 : 0, `${story}: ${how}, ${stored.status}`)
  if (over) assert.equal(events.at(-1), terminals[0], story)
  assert.deepEqual(
    events.map(({ seq }) => seq),
    events.map((_, i) => i + 1),
    story,
  )
  assert.equal(w.run.state, how, story)
  if (how === 'ended') assert.ok(over, story)
  // A run that has not ended was left to another process: its session is still claimed.
  if (!over) assert.equal(how, 'left', story)
  const session = (await w.store.getSession('acme', stored.sessionId))!
  assert.equal(session.status === 'running', !over, story)
  if (w.handedOver() > 0 && !story.includes('stolen')) assert.ok(!over, `${story}: handed over, and ended`)
  if (w.puppet.reason === leaving) assert.equal(how, 'left', story)
}

test('whatever two things happen to a run at once, in whatever state, it has one ending or is left whole', async () => {
  const inner = new MemoryRunStore()
  for (const at of states) {
    for (const first of happenings) {
      for (const second of happenings) {
        for (const apart of [false, true]) {
          const w = await world(inner, at)
          const acting = [acts[first](w)]
          if (apart) await new Promise((resolve) => setImmediate(resolve))
          acting.push(acts[second](w))
          await Promise.race([Promise.all(acting), new Promise((resolve) => setImmediate(resolve))])
          w.settle()
          // A run that nothing has stopped so far would wait for ever, or for its next attempt.
          w.puppet.do('result')
          if (at === 'waiting' || !['ended', 'left'].includes(w.run.state)) {
            await new Promise((resolve) => setImmediate(resolve))
            w.run.stop(endingOf('cancelled'))
          }
          await Promise.all(acting)
          await check(w, `${at}: ${first}, ${apart ? 'then' : 'and'} ${second}`)
        }
      }
    }
  }
})
