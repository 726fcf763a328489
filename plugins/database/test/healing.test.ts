import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import pg from 'pg'
import { definePlugin, isAppError } from '#kernel'
import { Database } from '#contracts/database'
import { type ReadinessCheck, ReadinessChecks } from '#contracts/health'
import { freshDatabase, startProxy, testKernel } from '#testing'
import database from '../index.ts'
import { migrate } from '../migrate.ts'
import { readMigrations } from '../migrations.ts'
import { NotYet, openDatabase } from '../server.ts'
import { openPool } from '../pool.ts'

async function boot(t: TestContext, config: object) {
  let provided: { database: Database; checks: ReadonlyMap<string, ReadinessCheck> } | undefined
  const reader = definePlugin({
    name: 'reader',
    requires: { database: Database, checks: ReadinessChecks },
    async setup({ deps }) {
      provided = deps
      return {}
    },
  })
  const kernel = await testKernel(t, [{ name: 'database', plugin: database, config }, reader], { listeners: [] })
  return { ...provided!, kernel, ready: () => provided!.checks.get('database')!() }
}

async function run(dsn: string, ...texts: string[]): Promise<unknown[]> {
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    let rows: unknown[] = []
    for (const text of texts) rows = (await client.query(text)).rows
    return rows
  } finally {
    await client.end()
  }
}

async function emptyDatabase(t: TestContext): Promise<string> {
  const dsn = await freshDatabase(t)
  await run(dsn, 'DROP SCHEMA public, pgboss CASCADE', 'CREATE SCHEMA public')
  return dsn
}

const unavailable = (error: unknown): boolean =>
  isAppError(error) && error.code === 'unavailable' && error.status === 503 && error.retryable

/** Bounded, so that a broken promise fails its test instead of hanging the run. */
async function eventually(attempt: () => Promise<unknown>): Promise<void> {
  for (let left = 2_000; ; left--) {
    try {
      await attempt()
      return
    } catch (error) {
      if (left === 0) throw error
      await new Promise((resolve) => setTimeout(resolve, 5))
    }
  }
}

test('processes that boot without their database answer 503, and migrate it once when it comes, without a restart', async (t) => {
  const dsn = await emptyDatabase(t)
  const between = await startProxy(t, dsn)
  between.cut()
  const conductors = await Promise.all([boot(t, { dsn: between.url }), boot(t, { dsn: between.url })])
  const gateway = await boot(t, { dsn: between.url, migrate: false })
  const all = [...conductors, gateway]
  const heard: string[] = []
  await gateway.database.listen('news', (payload) => heard.push(payload))
  for (const { database, ready } of all) {
    await assert.rejects(
      database.tenant('acme', (tx) => tx.query({ text: 'SELECT 1' })),
      unavailable,
    )
    await assert.rejects(database.unit('acme', { text: 'SELECT 1' }), unavailable)
    await assert.rejects(database.systemBatch([{ text: 'SELECT 1' }]), unavailable)
    await assert.rejects(ready(), unavailable)
  }
  between.heal()
  for (const { database, ready } of all) {
    await eventually(ready)
    assert.deepEqual(await database.systemBatch([{ text: `SELECT id FROM tenants` }]), [[{ id: 'default' }]])
  }
  await eventually(async () => {
    await gateway.database.systemBatch([{ text: `SELECT pg_notify('news', 'here')` }])
    assert.ok(heard.includes('here'), 'who listened while it was away is told')
  })
  const applied = conductors.flatMap(({ kernel }) =>
    kernel.logs.map((line) => String(line['msg'])).filter((text) => text.startsWith('applied migration')),
  )
  const names = (await readMigrations()).map((m) => `applied migration ${m.name}`)
  assert.deepEqual(applied.sort(), names)
})

test('a process that does not migrate says what is missing until somebody has', async (t) => {
  const dsn = await emptyDatabase(t)
  const { database, ready, kernel } = await boot(t, { dsn, migrate: false })
  await assert.rejects(ready(), (error: Error) => unavailable(error) && /schema of this release/.test(error.message))
  assert.ok(kernel.logs.some((line) => /lacks migrations 1, 2, .*start a conductor/.test(String(line['msg']))))
  await assert.rejects(database.systemBatch([{ text: 'SELECT 1' }]), unavailable)
  await migrate(dsn)
  await eventually(ready)
})

test('a boot that requires the database fails in a sentence when it stays away', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const stopping = new AbortController()
  t.after(() => stopping.abort())
  const { log } = await quiet(t)
  const opening = openDatabase({
    prepare: async () => {
      throw new NotYet('PostgreSQL at host:5432 does not answer. Start it.')
    },
    required: true,
    log,
    stopping: stopping.signal,
    onRefused: () => assert.fail('it never booted'),
  })
  const refused = assert.rejects(opening, /PostgreSQL at host:5432 does not answer/)
  await new Promise((resolve) => setImmediate(resolve))
  t.mock.timers.tick(10_000)
  await refused
})

test('a database that takes its time, e.g. for a migration, does not hold up the boot for longer than 10 s', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { log } = await quiet(t)
  let done: (applied: string[]) => void = () => {}
  const opening = openDatabase({
    prepare: () => new Promise<string[]>((resolve) => (done = resolve)),
    required: false,
    log,
    stopping: new AbortController().signal,
    onRefused: () => assert.fail('nothing was refused'),
  })
  t.mock.timers.tick(10_000)
  const state = await opening
  assert.ok(unavailable(state.closed?.()))
  done(['0001_a'])
  await new Promise((resolve) => setImmediate(resolve))
  assert.equal(state.closed, undefined)
})

async function quiet(t: TestContext) {
  let log: Parameters<typeof openDatabase>[0]['log'] | undefined
  const logger = definePlugin({
    name: 'logger',
    async setup(ctx) {
      log = ctx.log
      return {}
    },
  })
  await testKernel(t, [logger], { listeners: [] })
  return { log: log! }
}

test('an idle connection that broke is reported without its client, which a log would print with all its settings', async (t) => {
  const dsn = await freshDatabase(t)
  const broken = Promise.withResolvers<Error>()
  const pool = await openPool(dsn, 1, { onError: broken.resolve, gate: { closed: undefined } })
  t.after(() => pool.close())
  const { rows } = await pool.lease((connection) => connection.send([{ text: 'SELECT pg_backend_pid() AS pid' }]))
  const { pid } = rows[0]![0] as { pid: number }
  await run(dsn, `SELECT pg_terminate_backend(${pid})`)
  assert.equal('client' in (await broken.promise), false)
})
