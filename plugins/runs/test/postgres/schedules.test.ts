import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { chunkOf } from '#testing'
import { createEventEncoder, parseLine } from '#contracts/run-event'
import type { Profile } from '#contracts/profiles'
import { type Claim, type NextOutcome, type RunStore, type StartOutcome } from '#contracts/run-store'
import type { PostgresRunStore } from '../../postgres/store.ts'
import { openStores } from './stores.ts'

/** How many schedules are tried. More of them: `AGENT_ORC_SCHEDULES=10000 npm test -- plugins/runs/test/postgres/schedules.test.ts`. */
const numRuns = Number(process.env['AGENT_ORC_SCHEDULES'] || 200)

const profile = { name: 'p', runtime: 'general', limits: {} } as Profile
const tenantId = 'acme'

/** One step of a schedule; `at` picks which of two conductors does it, `pick` which of the runs it is about. */
const step = fc.record({
  act: fc.constantFrom('reject', 'enqueue', 'enqueue', 'interrupt', 'next', 'ok', 'fail', 'cancel', 'append', 'crash'),
  at: fc.integer({ min: 0, max: 1 }),
  pick: fc.nat(20),
  /** Whether the step after it begins at once. */
  together: fc.boolean(),
})
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never

/** A claim and whoever holds it, which writes one thing after the other. */
interface Held {
  readonly claim: Claim
  readonly store: RunStore
  written: Promise<unknown>
}

/** What one schedule knows of its session. */
interface World {
  readonly stores: PostgresRunStore[]
  readonly sessionId: string
  readonly claims: Held[]
  readonly ids: string[]
  /** In the order in which they were accepted into the line. */
  readonly line: string[]
  count: number
}

function ending({ runId, sessionId }: Claim, seq: number, event: 'result' | 'error') {
  const encoder = createEventEncoder(runId, sessionId, seq)
  const line =
    event === 'result'
      ? encoder.line({ type: 'result', text: 'done', finishReason: 'stop' })
      : encoder.line({ type: 'error', code: 'model', message: 'no' })
  return { firstSeq: seq, count: 1, lines: Buffer.from(line) }
}

const remember = (world: World, store: RunStore, outcome: StartOutcome | NextOutcome): void => {
  if (outcome.kind === 'started') world.claims.push({ claim: outcome.claim, store, written: Promise.resolve() })
}

const append = ({ claim, store }: Held): Promise<boolean> => store.append(claim, chunkOf(claim, 1, 2))

async function finish({ claim, store }: Held, ok: boolean): Promise<boolean> {
  return store.finish({
    claim,
    status: ok ? 'ok' : 'error',
    sessionStatus: ok ? 'idle' : 'errored',
    ...(ok ? { result: 'done' } : { error: { code: 'model', message: 'no' } }),
    tail: ending(claim, (await lastSeq(store, claim.runId)) + 1, ok ? 'result' : 'error'),
  })
}

async function take(world: World, { act, at, pick }: Step, open: () => Promise<PostgresRunStore>): Promise<void> {
  const { sessionId } = world
  const store = world.stores[at]!
  const held = world.claims[pick % Math.max(1, world.claims.length)]
  if (act === 'reject' || act === 'enqueue' || act === 'interrupt') {
    const runId = `${sessionId}-${world.count++}`
    world.ids.push(runId)
    const task = { profile: 'p', prompt: runId }
    const outcome = await store.start({ tenantId, runId, sessionId, task })
    if (outcome.kind === 'busy' && act !== 'reject') {
      const interrupt = act === 'interrupt'
      const waits = await store.enqueue({ tenantId, runId, sessionId, task, interrupt })
      assert.equal(waits.kind, 'queued')
      if (!interrupt) world.line.push(runId)
    } else remember(world, store, outcome)
  } else if (act === 'next') remember(world, store, await store.claimNext(tenantId, sessionId))
  else if (act === 'cancel') {
    const runId = world.ids[pick % Math.max(1, world.ids.length)]
    if (runId) await store.steal(tenantId, runId, 'cancelled', { code: 'cancelled', message: 'x' })
  } else if ((act === 'append' || act === 'ok' || act === 'fail') && held) {
    held.written = held.written.then(() => (act === 'append' ? append(held) : finish(held, act === 'ok')))
    await held.written
  } else if (act === 'crash') {
    // A killed process: its instance is dead, what it claimed is not released. Claims it had stay with the schedule, as a frozen one's would.
    world.stores[at] = await open()
    await store.close()
  }
}

async function lastSeq(store: RunStore, runId: string): Promise<number> {
  const log = await store.readLog(tenantId, runId, 0)
  const last = log?.chunks.at(-1)
  return last ? last.firstSeq + last.count - 1 : 0
}

/** Lets the schedule come to rest as a live conductor would: it sweeps, claims what is next and runs it. */
async function settle(world: World): Promise<void> {
  const store = world.stores[0]!
  for (const old of world.stores) await old.sweepOrphans()
  for (const { claim } of world.claims)
    await store.steal(tenantId, claim.runId, 'cancelled', { code: 'x', message: 'x' })
  for (;;) {
    const next = await store.claimNext(tenantId, world.sessionId)
    if (next.kind !== 'started') return
    const { claim } = next
    const tail = ending(claim, 1, 'result')
    assert.equal(await store.finish({ claim, status: 'ok', sessionStatus: 'idle', result: 'done', tail }), true)
  }
}

async function check(world: World): Promise<void> {
  const store = world.stores[0]!
  for (const runId of world.ids) {
    const run = await store.findRun(tenantId, runId)
    if (!run) continue
    assert.ok(run.finishedAt, `${runId} is over, not ${run.status}`)
    const events: Record<string, unknown>[] = []
    for (const chunk of (await store.readLog(tenantId, runId, 0))!.chunks)
      for (const line of chunk.lines.toString().trimEnd().split('\n')) events.push(parseLine(Buffer.from(line))!)
    const terminal = events.filter((event) => event['type'] === 'result' || event['type'] === 'error')
    assert.equal(terminal.length, 1, `${runId} has one terminal event`)
    assert.equal(events.at(-1), terminal[0])
    assert.deepEqual(
      events.map((event) => event['seq']),
      events.map((_, i) => i + 1),
    )
  }
  const { runs } = (await store.runsOfSession(tenantId, world.sessionId, 0))!
  const claimed = runs.map((run) => run.runId)
  assert.equal(new Set(claimed).size, claimed.length)
  assert.equal(new Set(runs.map((run) => run.ordinal)).size, runs.length, 'no two runs have one number')
  // Epochs rise with every claim: what was claimed later is later in the session, too.
  const order = world.line.filter((runId) => claimed.includes(runId))
  assert.deepEqual(
    claimed.filter((runId) => order.includes(runId)),
    order,
    'those that waited ran in their order',
  )
}

test(
  'whatever is started, queued, interrupted, finished, cancelled and killed, on two conductors: one ending each, in order, one at a time, nothing stuck',
  { timeout: 120_000 + numRuns * 1_000 },
  async (t) => {
    const stores = await openStores(t)
    const pair = [await stores.open(), await stores.open()]
    let schedule = 0
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 4, maxLength: 24 }), async (steps) => {
        const sessionId = `sess-${schedule++}`
        const world: World = {
          stores: pair,
          sessionId,
          claims: [],
          ids: [`${sessionId}-first`],
          line: [],
          count: 0,
        }
        const task = { profile: 'p', prompt: 'x' }
        remember(
          world,
          pair[0]!,
          await pair[0]!.start({ tenantId, runId: world.ids[0]!, sessionId, task, create: { profile } }),
        )
        const underWay: Promise<void>[] = []
        for (const one of steps) {
          // Crashes and what is put in line have an order of their own; the rest may race.
          const alone = one.act === 'crash' || one.act === 'enqueue' || !one.together
          if (alone) await Promise.all(underWay.splice(0))
          const taking = take(world, one, () => stores.open())
          if (alone) await taking
          else underWay.push(taking)
          if (!alone) continue
          const { total } = await pair[0]!.listRuns(tenantId, { sessionId, status: 'running' })
          assert.ok(total <= 1, `${total} runs at once in one session`)
        }
        await Promise.all(underWay)
        await settle(world)
        await check(world)
        // Else every new process looks after all that ever died.
        await stores.db.systemBatch([{ text: 'DELETE FROM instances WHERE dead' }])
        assert.notEqual((await pair[0]!.getSession(tenantId, sessionId))?.status, 'running')
        assert.equal((await pair[0]!.listRuns(tenantId, { sessionId, status: 'queued' })).total, 0)
      }),
      { numRuns, ...(numRuns === 200 ? { seed: 20_261_121 } : {}) },
    )
  },
)
