import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test, type TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { Database } from '#contracts/database'
import { Jobs, type Wake, type WakeUps } from '#contracts/jobs'
import { TenantData, type TenantDataStore } from '#contracts/retention'
import { databasePlugin, freshDatabase, testKernel } from '#testing'
import { getConstructionPlans } from 'pg-boss'
import type { Gauge } from 'prom-client'
import jobs from '../index.ts'

type Work = (signal: AbortSignal) => Promise<void>

/** A process that serves one job. */
async function worker(t: TestContext, dsn: string, work: Work) {
  const found: { database: Database; jobs: Jobs; up: () => Promise<number> }[] = []
  const server = definePlugin({
    name: 'server',
    requires: { jobs: Jobs, database: Database },
    async setup({ deps, metrics }) {
      deps.jobs.every('chore', '0 0 1 1 *', work)
      const up = async () => (await (metrics.getSingleMetric('agent_orc_jobs_up') as Gauge).get()).values[0]!.value
      found.push({ ...deps, up })
      return {}
    },
  })
  const kernel = await testKernel(t, [await databasePlugin(dsn), jobs, server], { listeners: [] })
  return { ...found[0]!, kernel }
}

test('what is asked for is done once at a time, whichever process does it, and again when it failed', async (t) => {
  const dsn = await freshDatabase(t)
  const done = Promise.withResolvers<void>()
  let running = 0
  let most = 0
  let attempts = 0
  const work: Work = async () => {
    most = Math.max(most, ++running)
    await new Promise(setImmediate)
    running--
    if (++attempts === 1) throw new Error('the first attempt fails')
    done.resolve()
  }
  const [one, two] = [await worker(t, dsn, work), await worker(t, dsn, work)]
  await Promise.all([one.jobs.ask('chore'), two.jobs.ask('chore'), one.jobs.ask('chore')])
  assert.equal(await one.up(), 1)
  const [[row]] = await one.database.systemBatch<[{ n: number }[]]>([
    { text: `SELECT count(*)::int AS n FROM pgboss.job WHERE name = 'chore'` },
  ])
  assert.equal(row!.n, 1)
  // The job is retried after ten seconds. The test does not wait but makes the retry due now.
  const hurry = {
    text: `UPDATE pgboss.job SET start_after = now() WHERE name = 'chore' AND state = 'retry' RETURNING 1`,
  }
  while ((await one.database.systemBatch<[object[]]>([hurry]))[0].length === 0) await new Promise(setImmediate)
  await two.jobs.ask('chore')
  await done.promise
  assert.equal(most, 1)
  await one.kernel.stop()
  assert.equal(await one.up(), 0)
})

test('the signal of a job aborts when its process stops', async (t) => {
  const begun = Promise.withResolvers<AbortSignal>()
  const { jobs: queue, kernel } = await worker(t, await freshDatabase(t), async (signal) => {
    begun.resolve(signal)
    await new Promise((resolve) => signal.addEventListener('abort', resolve))
  })
  await queue.ask('chore')
  const signal = await begun.promise
  assert.equal(signal.aborted, false)
  await kernel.stop()
  assert.equal(signal.aborted, true)
})

test('the migration makes what pg-boss would make by itself', async () => {
  const migration = await readFile(new URL('../../../migrations/0034_jobs.sql', import.meta.url), 'utf8')
  // Leaves out the lines in which pg-boss begins a transaction and takes a lock: the migration has its own.
  const own = /^\s*(BEGIN;|COMMIT;|SET LOCAL .*|SELECT pg_advisory_xact_lock.*|--.*)?$/
  const statements = (sql: string): string[] =>
    sql
      .split('\n')
      .map((line) => line.trim())
      .filter((line) => !own.test(line))
  assert.deepEqual(statements(migration), statements(getConstructionPlans('pgboss')))
})

/** A process that takes wake-ups. */
async function taker(t: TestContext, dsn: string, work: (what: Wake['what']) => Promise<void>) {
  const found: WakeUps[] = []
  const server = definePlugin({
    name: 'server',
    requires: { jobs: Jobs },
    async setup({ deps }) {
      found.push(deps.jobs.wakeUps('checks', work))
      return {}
    },
  })
  await testKernel(t, [await databasePlugin(dsn), jobs, server], { listeners: [] })
  let sent = 0
  const send = (tenantId: string, count: number): Promise<void> =>
    found[0]!.send(Array.from({ length: count }, () => ({ tenantId, what: { tenantId }, key: `${sent++}` })))
  return { send }
}
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

test('one tenant whose wake-ups take long never keeps those of others', async (t) => {
  const begun: string[] = []
  const over = Promise.withResolvers<void>()
  const { send } = await taker(t, await freshDatabase(t), async ({ tenantId }) => {
    begun.push(tenantId!)
    if (tenantId === 'slow') await over.promise
  })
  for (let i = 1; i <= 4; i++) {
    await send('slow', 1)
    while (begun.length < i) await turn()
  }
  await send('slow', 60)
  await send('quick', 30)
  while (begun.filter((id) => id === 'quick').length < 30) await turn()
  assert.ok(begun.length - 30 < 20, `${begun.length - 30} of one tenant at once`)
  over.resolve()
  while (begun.length < 94) await turn()
})

test('the wake-ups of an erased tenant go with it, also those that are due much later, and nobody else’s', async (t) => {
  const found: { wakeUps: WakeUps; database: Database; data: ReadonlyMap<string, TenantDataStore> }[] = []
  const server = definePlugin({
    name: 'server',
    requires: { jobs: Jobs, database: Database, data: TenantData },
    async setup({ deps }) {
      found.push({ ...deps, wakeUps: deps.jobs.wakeUps('checks', async () => {}) })
      return {}
    },
  })
  await testKernel(t, [await databasePlugin(await freshDatabase(t)), jobs, server], { listeners: [] })
  const { wakeUps, database, data } = found[0]!
  const wake = (tenantId: string, i: number) => ({
    tenantId,
    what: { tenantId },
    key: `${tenantId} ${i}`,
    afterMs: 9e6,
  })
  await wakeUps.send([...Array.from({ length: 1_001 }, (_, i) => wake('acme', i)), wake('globex', 0)])
  const erase = () => data.get('jobs')!.erase('acme', new AbortController().signal)
  assert.deepEqual(
    [await erase(), await erase()],
    [
      { deleted: 1_000, more: true },
      { deleted: 1, more: false },
    ],
  )
  const left = { text: `SELECT data FROM pgboss.job j WHERE name = 'checks' OR position('acme' IN j::text) > 0` }
  assert.deepEqual(await database.systemBatch([left]), [[{ data: { tenantId: 'globex' } }]])
})
