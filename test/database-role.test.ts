import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import pg from 'pg'
import { startPostgres } from '#embedded-postgres'
import { databasePlugin, testKernel } from '#testing'

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
  } finally {
    await admin.end()
  }
})
