import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { pino } from 'pino'
import type { Database } from '#contracts/database'
import { createInstance, type Instance } from '../instance.ts'
import { beginConversation, findRun, finishRun } from '../runs.store.ts'
import { commitOutcome, outcomeOfFailure } from '../service.ts'
import { createSweep, type Sweep } from '../sweep.ts'
import { createWatchers, type Watchers } from '../watchers.ts'
import { emptyDatabase, gateway, publish, sql, until } from './gateway.ts'
import { finish, say, type ScriptedDispatch, scriptedDispatch } from './scripted-dispatch.ts'

interface Process {
  readonly instance: Instance
  readonly watchers: Watchers
  readonly sweep: Sweep
  readonly beginning: Set<string>
  readonly logs: Record<string, unknown>[]
  /** The counts of its sweeps, newest last. */
  swept(): Record<string, unknown>[]
}

/** What a gateway process has for recovery, without timers: the test says when it beats and sweeps. */
async function process(
  t: TestContext,
  database: Database,
  dispatch: ScriptedDispatch,
  options: { readonly beginning?: Set<string> } = {},
): Promise<Process> {
  const logs: Record<string, unknown>[] = []
  const log = pino({ level: 'debug' }, { write: (line: string) => void logs.push(JSON.parse(line)) })
  const instance = createInstance(database, log)
  await instance.beat()
  const watchers = createWatchers({
    dispatch,
    log,
    outcomeOf: outcomeOfFailure,
    commit: (watcher, outcome) => commitOutcome(database, watcher, outcome),
  })
  const beginning = options.beginning ?? new Set<string>()
  const sweep = createSweep({ database, dispatch, instance, watchers, beginning, log })
  t.after(() => watchers.close())
  const swept = () => logs.filter((line) => line['msg'] === 'crash.recovery.sweep')
  return { instance, watchers, sweep, beginning, logs, swept }
}

let counter = 0
const chat = async (database: Database, tenant: string, publishedId: string, owner: string) => {
  const tail = String(counter++).padStart(25, '0')
  const run = {
    tenantId: tenant,
    publishedId,
    conversationId: `conv_${tail}`,
    publicRunId: `prun_${tail}`,
    runId: `run_${tail}`,
  }
  await beginConversation(database, { ...run, owner, message: 'Hi' })
  return run
}

const die = (database: Database, id: string) =>
  sql(database, 'acme', `UPDATE instances SET lease_until = now() - interval '1 second' WHERE id = $1`, id)

const launch = (dispatch: ScriptedDispatch, tenant: string, runId: string) =>
  dispatch.start(tenant, { id: runId, profile: 'p', prompt: 'Hi' }, new AbortController().signal)

test('a sweep ends or takes over the runs of dead gateways in every tenant, and touches no run of a live one', async (t) => {
  const database = await emptyDatabase(t)
  const dispatch = scriptedDispatch()
  const [live, dead, sweeper] = [
    await process(t, database, dispatch),
    await process(t, database, dispatch),
    await process(t, database, dispatch),
  ]
  const runs = []
  for (const tenant of ['acme', 'globex']) {
    const { id } = await publish(database, { tenant })
    const of = (owner: Instance) => chat(database, tenant, id, owner.id)
    const [kept, unknown, ended, going] = [
      await of(live.instance),
      await of(dead.instance),
      await of(dead.instance),
      await of(dead.instance),
    ]
    dispatch.script = (_task, run) => run().emit(say('half'), finish('ended meanwhile'))
    await launch(dispatch, tenant, ended.runId)
    dispatch.script = (_task, run) => run().emit(say('half'))
    await launch(dispatch, tenant, going.runId)
    runs.push({ tenant, kept, unknown, ended, going })
  }
  await sweeper.sweep.run()
  assert.deepEqual(sweeper.swept(), [], 'everybody lives')
  await die(database, dead.instance.id)
  await sweeper.sweep.run()
  const [counts] = sweeper.swept()
  assert.deepEqual([counts?.['swept'], counts?.['lost'], counts?.['finished'], counts?.['taken_over']], [6, 2, 2, 2])
  const stored = async (run: { tenantId: string; publicRunId: string }) =>
    findRun(database, run.tenantId, run.publicRunId)
  await until(() => sweeper.watchers.size === 2)
  for (const { kept, unknown, ended, going } of runs) {
    assert.equal((await stored(kept))?.status, 'dispatching')
    assert.equal((await stored(unknown))?.status, 'lost')
    assert.deepEqual((await stored(ended))?.outcome?.message, 'ended meanwhile')
    assert.equal((await stored(going))?.outcome, undefined)
    dispatch.runs.get(going.runId)!.emit(finish('half and half'))
    await until(async () => (await stored(going))?.status === 'ok')
    assert.equal((await stored(going))?.outcome?.message, 'half and half')
  }
  await until(() => sweeper.watchers.size === 0)
  await sweeper.sweep.run()
  assert.equal(sweeper.swept().length, 1, 'nothing is swept twice')
})

test('two gateways that sweep at once take each run once', async (t) => {
  const database = await emptyDatabase(t)
  const dispatch = scriptedDispatch()
  const dead = await process(t, database, dispatch)
  const [a, b] = [await process(t, database, dispatch), await process(t, database, dispatch)]
  const { id } = await publish(database)
  const runs = []
  for (let i = 0; i < 40; i++) {
    const run = await chat(database, 'acme', id, dead.instance.id)
    dispatch.script = (_task, create) => void create()
    await launch(dispatch, 'acme', run.runId)
    runs.push(run)
  }
  await die(database, dead.instance.id)
  await Promise.all([a.sweep.run(), b.sweep.run()])
  assert.equal(a.watchers.size + b.watchers.size, 40)
  for (const run of runs) dispatch.runs.get(run.runId)!.emit(finish('once'))
  await until(() => a.watchers.size + b.watchers.size === 0)
  const answers = await sql(database, 'acme', `SELECT 1 FROM messages WHERE role = 'assistant' AND content = 'once'`)
  assert.equal(answers.length, 40)
})

test('a gateway that was frozen and declared dead comes back under another id and keeps its runs', async (t) => {
  const database = await emptyDatabase(t)
  const dispatch = scriptedDispatch()
  const frozen = await process(t, database, dispatch)
  const { id } = await publish(database)
  const run = await chat(database, 'acme', id, frozen.instance.id)
  dispatch.script = (_task, create) => create().emit(say('half'))
  const watcher = frozen.watchers.open({ ...run, owner: frozen.instance.id, exposeToolEvents: false }, async (signal) =>
    dispatch.start('acme', { id: run.runId, profile: 'p', prompt: 'Hi' }, signal),
  )
  await watcher.dispatched
  const before = frozen.instance.id
  await sql(database, 'acme', 'UPDATE instances SET dead = true WHERE id = $1', before)
  await frozen.instance.beat()
  assert.notEqual(frozen.instance.id, before)
  await frozen.sweep.run()
  assert.equal(watcher.owner, frozen.instance.id)
  assert.equal(frozen.watchers.size, 1)
  dispatch.runs.get(run.runId)!.emit(finish('whole'))
  assert.equal((await watcher.ended)?.message, 'whole')
  assert.equal((await findRun(database, 'acme', run.publicRunId))?.outcome?.message, 'whole')
})

test('a gateway whose run was taken over announces what the new owner stored', async (t) => {
  const database = await emptyDatabase(t)
  const dispatch = scriptedDispatch()
  const [frozen, other] = [await process(t, database, dispatch), await process(t, database, dispatch)]
  const { id } = await publish(database)
  const run = await chat(database, 'acme', id, frozen.instance.id)
  const watcher = frozen.watchers.open(
    { ...run, owner: frozen.instance.id, exposeToolEvents: false },
    async (signal) => {
      await until(() => dispatch.runs.has(run.runId))
      return { sessionId: 's', events: dispatch.follow('acme', run.runId, 0, signal) }
    },
  )
  await die(database, frozen.instance.id)
  await other.sweep.run()
  assert.equal((await findRun(database, 'acme', run.publicRunId))?.status, 'lost')
  dispatch.script = (_task, create) => create().emit(finish('too late'))
  await launch(dispatch, 'acme', run.runId)
  assert.equal((await watcher.ended)?.status, 'lost')
})

test('a run whose write was in doubt is found by the process itself; runs that are beginning are left alone', async (t) => {
  const database = await emptyDatabase(t)
  const dispatch = scriptedDispatch()
  const self = await process(t, database, dispatch)
  const { id } = await publish(database)
  const doubtful = await chat(database, 'acme', id, self.instance.id)
  const beginning = await chat(database, 'acme', id, self.instance.id)
  self.beginning.add(beginning.publicRunId)
  await self.sweep.run()
  assert.equal((await findRun(database, 'acme', doubtful.publicRunId))?.status, 'dispatching')
  self.sweep.doubt('acme')
  await self.sweep.run()
  assert.equal((await findRun(database, 'acme', doubtful.publicRunId))?.status, 'lost')
  assert.equal((await findRun(database, 'acme', beginning.publicRunId))?.status, 'dispatching')
})

test('a run that began after the sweep had asked is left to the watcher that comes', async (t) => {
  const database = await emptyDatabase(t)
  const dispatch = scriptedDispatch()
  // Not there yet when the question is put, and there when the answer comes.
  class Late extends Set<string> {
    override [Symbol.iterator]() {
      return new Set<string>().values()
    }
  }
  const self = await process(t, database, dispatch, { beginning: new Late() })
  const { id } = await publish(database)
  const run = await chat(database, 'acme', id, self.instance.id)
  self.beginning.add(run.publicRunId)
  self.sweep.doubt('acme')
  await self.sweep.run()
  assert.equal((await findRun(database, 'acme', run.publicRunId))?.status, 'dispatching')
  assert.equal(self.watchers.size, 0)
})

test('only the owner of a run writes its end, and only once', async (t) => {
  const database = await emptyDatabase(t)
  const { id } = await publish(database)
  const run = await chat(database, 'acme', id, 'inst_new')
  const outcome = { status: 'ok', message: 'mine', seq: 3 } as const
  assert.equal(await finishRun(database, run, 'inst_old', { ...outcome, message: 'stale' }), false)
  assert.equal((await findRun(database, 'acme', run.publicRunId))?.outcome, undefined)
  assert.equal(await finishRun(database, run, 'inst_new', outcome), true)
  assert.equal(await finishRun(database, run, 'inst_new', { ...outcome, message: 'again' }), false)
  assert.deepEqual((await findRun(database, 'acme', run.publicRunId))?.outcome, outcome)
})

test('while the conductor is away an orphan run stays open: what became of it is known, not guessed', async (t) => {
  const database = await emptyDatabase(t)
  const dispatch = scriptedDispatch()
  const [dead, sweeper] = [await process(t, database, dispatch), await process(t, database, dispatch)]
  const { id } = await publish(database)
  const run = await chat(database, 'acme', id, dead.instance.id)
  dispatch.script = (_task, create) => create().emit(finish('still there'))
  await launch(dispatch, 'acme', run.runId)
  await die(database, dead.instance.id)
  dispatch.away = true
  const swept = sweeper.sweep.run()
  await until(() => sweeper.logs.some((line) => String(line['msg']).includes('could not be asked')))
  assert.equal((await findRun(database, 'acme', run.publicRunId))?.outcome, undefined)
  dispatch.away = false
  await swept
  assert.equal((await findRun(database, 'acme', run.publicRunId))?.outcome?.message, 'still there')
})

test('the row of a dead gateway goes when nothing it sent can still arrive, after a last look', async (t) => {
  const database = await emptyDatabase(t)
  const dispatch = scriptedDispatch()
  const [dead, sweeper] = [await process(t, database, dispatch), await process(t, database, dispatch)]
  const { id } = await publish(database)
  await die(database, dead.instance.id)
  await sweeper.sweep.run()
  const late = await chat(database, 'acme', id, dead.instance.id)
  await sweeper.sweep.run()
  assert.equal((await findRun(database, 'acme', late.publicRunId))?.status, 'dispatching')
  await sql(database, 'acme', `UPDATE instances SET lease_until = now() - interval '2 minutes' WHERE dead`)
  await sweeper.sweep.run()
  assert.equal((await findRun(database, 'acme', late.publicRunId))?.status, 'lost')
  assert.deepEqual(await sql(database, 'acme', 'SELECT 1 FROM instances WHERE dead'), [])
})

test('a gateway registers, renews and signs off; at boot it sweeps, and says how much', async (t) => {
  const a = await gateway(t)
  const rows = () => sql<{ kind: string; dead: boolean }>(a.database, 'acme', 'SELECT kind, dead FROM instances')
  assert.deepEqual(await rows(), [{ kind: 'gateway', dead: false }])
  await until(() => a.kernel.logs.some((line) => line['msg'] === 'crash.recovery.sweep'))
  const b = await gateway(t, { dsn: a.dsn })
  assert.equal((await rows()).length, 2)
  await b.kernel.stop()
  assert.deepEqual(await rows(), [{ kind: 'gateway', dead: false }])
})
