import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import pg from 'pg'
import { startPostgres } from '#kit/postgres'
import { databasePlugin, startProxy, testKernel } from '#testing'

test('no process boots as a database role for whom row security does not hold, and the refusal says what to run', async (t) => {
  const directory = await mkdtemp(join(tmpdir(), 'ao-role-'))
  const server = await startPostgres({ dataDir: join(directory, 'postgres'), settings: { fsync: 'off' } })
  t.after(async () => {
    await server.stop()
    await rm(directory, { recursive: true })
  })
  const admin = new pg.Client({ connectionString: server.adminDsn() })
  await admin.connect()
  const dsn = server.dsn()
  const boot = async (): Promise<void> => {
    const entry = await databasePlugin(dsn)
    const kernel = await testKernel(t, [{ ...entry, config: { dsn } }], { listeners: [] })
    await kernel.stop()
  }
  try {
    for (const right of ['SUPERUSER', 'BYPASSRLS']) {
      await admin.query(`ALTER ROLE agent_orc ${right}`)
      await assert.rejects(boot(), /Run: ALTER ROLE "agent_orc" NOSUPERUSER NOBYPASSRLS;/, right)
      await admin.query('ALTER ROLE agent_orc NOSUPERUSER NOBYPASSRLS')
    }
    await boot()

    // A process that booted while the server was away finds out later, and must not go on then.
    const between = await startProxy(t, dsn)
    between.cut()
    await admin.query('ALTER ROLE agent_orc BYPASSRLS')
    const failure = Promise.withResolvers<Error>()
    const entry = await databasePlugin(between.url)
    const kernel = await testKernel(t, [{ ...entry, config: { dsn: between.url } }], {
      listeners: [],
      onFailure: failure.resolve,
    })
    between.heal()
    assert.match((await failure.promise).message, /^role 'test' cannot boot:\n.*database: .*bypasses row security/)
    await kernel.stop()
  } finally {
    await admin.end()
  }
})
