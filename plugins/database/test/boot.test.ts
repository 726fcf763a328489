import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { definePlugin, isAppError } from '#kernel'
import { Database, DatabaseServer } from '#contracts/database'
import { type ReadinessCheck, ReadinessChecks } from '#contracts/health'
import { fake, freshDatabase, startProxy, testKernel } from '#testing'
import database from '../index.ts'

async function boot(t: TestContext, config: object, ...others: Parameters<typeof testKernel>[1]) {
  let provided: { database: Database; checks: ReadonlyMap<string, ReadinessCheck> } | undefined
  const reader = definePlugin({
    name: 'reader',
    requires: { database: Database, checks: ReadinessChecks },
    async setup({ deps }) {
      provided = deps
      return {}
    },
  })
  const kernel = await testKernel(t, [{ name: 'database', plugin: database, config }, ...others, reader], {
    listeners: [],
  })
  return { ...provided!, kernel, ready: provided!.checks.get('database')! }
}

async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  for (let attempt = 0; attempt < 2_000; attempt++) {
    if (await holds()) return
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
  assert.fail('it never came true')
}

const works = (promise: Promise<unknown>): Promise<boolean> =>
  promise.then(
    () => true,
    () => false,
  )
const unavailable = (error: unknown): boolean =>
  isAppError(error) && error.code === 'unavailable' && error.status === 503 && error.retryable

test('the server comes from the setting, or from a plugin that started one, or the boot says what to do', async (t) => {
  const dsn = await freshDatabase(t)
  const fromPlugin = await boot(t, {}, fake(DatabaseServer, { dsn }))
  await fromPlugin.ready()
  await assert.rejects(boot(t, {}), /no PostgreSQL server: set POSTGRES_DSN/)
})

test('a database that cannot be used is refused at boot in a sentence without the password', async (t) => {
  const url = new URL(await freshDatabase(t))
  url.pathname = '/nowhere'
  url.password = 'canary'
  await assert.rejects(boot(t, { dsn: url.href }), (error: Error) => {
    assert.match(error.message, /refuses the connection: database "nowhere" does not exist\. Check POSTGRES_DSN/)
    assert.doesNotMatch(error.message, /canary/)
    return true
  })
})

test('an address that names no server is refused at boot in a sentence without the password', async (t) => {
  for (const dsn of ['localhost:5432/agents', 'postgres://user:canary@host:notaport/db', 'mysql://canary@host/db']) {
    await assert.rejects(boot(t, { dsn }), (error: Error) => {
      assert.match(error.message, /POSTGRES_DSN (must begin with postgres:|is not a valid address)/)
      assert.doesNotMatch(error.message, /canary/)
      return true
    })
  }
})

test('while the server is away every call is a 503 and the service is not ready; afterwards all is well without a restart', async (t) => {
  const between = await startProxy(t, await freshDatabase(t))
  const { database, ready, kernel } = await boot(t, { dsn: between.url, poolSize: 2 })
  const got: string[] = []
  await database.listen('news', (payload) => got.push(payload))
  await ready()
  const cut = database.tenant('acme', (tx) => tx.query({ text: 'SELECT pg_sleep(60)' }))
  between.cut()
  await assert.rejects(cut, unavailable)
  await assert.rejects(database.batch('acme', [{ text: 'SELECT 1' }]), unavailable)
  await assert.rejects(ready(), unavailable)
  between.heal()
  await until(() => works(ready()))
  await until(async () => {
    await database.systemBatch([{ text: `SELECT pg_notify('news', 'back')` }])
    return got.includes('back')
  })
  assert.ok(kernel.logs.some((line) => String(line['msg']).startsWith('the connection for notifications broke')))
})

test('a caller that finds no free connection within 5 s gets a 503', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { database } = await boot(t, { dsn: await freshDatabase(t), poolSize: 1 })
  let release = (): void => {}
  const holding = new Promise<void>((resolve) => (release = resolve))
  const holder = database.tenant('acme', async (tx) => {
    await tx.query({ text: 'SELECT 1' })
    const late = database.batch('acme', [{ text: 'SELECT 1' }])
    t.mock.timers.tick(5_000)
    await assert.rejects(
      late,
      (error) => isAppError(error) && error.code === 'database_busy' && error.status === 503 && error.retryable,
    )
    release()
  })
  await holding
  await holder
})

test('notifications reach every listener of their channel until it leaves', async (t) => {
  const { database } = await boot(t, { dsn: await freshDatabase(t) })
  const got: string[] = []
  const notify = (payload: string) =>
    database.systemBatch([{ text: 'SELECT pg_notify($1, $2)', values: ['Odd "name"', payload] }])
  const [leave] = await Promise.all([
    database.listen('Odd "name"', (payload) => got.push(`one ${payload}`)),
    database.listen('Odd "name"', (payload) => got.push(`two ${payload}`)),
    database.listen('other', () => got.push('other')),
  ])
  await notify('a')
  await until(() => got.length === 2)
  await leave()
  await notify('b')
  await until(() => got.length === 3)
  assert.deepEqual(got, ['one a', 'two a', 'two b'])
})

test('the pool is a gauge of /metrics', async (t) => {
  const metricsOf = definePlugin({
    name: 'metrics-of',
    requires: { database: Database },
    async setup({ deps, metrics }) {
      await deps.database.tenant('acme', async (tx) => {
        await tx.query({ text: 'SELECT 1' })
        assert.match(await metrics.metrics(), /agent_orc_database_connections\{state="in_use"\} 1/)
      })
      return {}
    },
  })
  await boot(t, { dsn: await freshDatabase(t) }, metricsOf)
})

test('the pool is that of the innermost listener, and lasts until every plugin that uses it has stopped', async (t) => {
  const dsn = await freshDatabase(t)
  const stopped: unknown[] = []
  const uses = definePlugin({
    name: 'uses',
    requires: { database: Database },
    async setup({ deps, innermost, onStop }) {
      assert.ok(innermost!.getDecorator<{ pool: object }>('pg').pool)
      onStop(async () => void stopped.push(...(await deps.database.systemBatch([{ text: 'SELECT 1 AS one' }]))[0]!))
      return {}
    },
  })
  const kernel = await testKernel(t, [{ name: 'database', plugin: database, config: { dsn } }, uses], {
    listeners: ['gateway', 'conductor'],
  })
  const { pool } = kernel.listeners['conductor']!.getDecorator<{ pool: { totalCount: number; ended: boolean } }>('pg')
  assert.equal(kernel.listeners['gateway']!.hasDecorator('pg'), false)
  await kernel.stop()
  assert.deepEqual(stopped, [{ one: 1 }])
  assert.deepEqual([pool.ended, pool.totalCount], [true, 0])
  assert.deepEqual(
    kernel.logs.filter(({ level }) => Number(level) >= 40),
    [],
  )
})
