import assert from 'node:assert/strict'
import { mkdtemp, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import { definePlugin } from '#kernel'
import { DatabaseServer } from '#contracts/database'
import { testKernel } from '#testing'
import embeddedPostgres from '../index.ts'

async function serverOf(t: TestContext, config: object) {
  let server: DatabaseServer | undefined
  const reader = definePlugin({
    name: 'reader',
    requires: { server: DatabaseServer },
    async setup({ deps }) {
      server = deps.server
      return {}
    },
  })
  const plugin = { name: 'embedded-postgres', plugin: embeddedPostgres, config }
  const kernel = await testKernel(t, [plugin, reader], { listeners: [] })
  return { dsn: server!.dsn, kernel }
}

test('a server runs on the data directory while the role does', async (t) => {
  const directory = await mkdtemp(join(tmpdir(), 'ao-plugin-'))
  t.after(() => rm(directory, { recursive: true }))
  const data = join(directory, 'postgres')
  const { dsn, kernel } = await serverOf(t, { data })
  assert.match(dsn, /^postgres:\/\/agent_orc@/)
  await stat(join(data, 'postmaster.pid'))
  await kernel.stop()
  await assert.rejects(stat(join(data, 'postmaster.pid')), { code: 'ENOENT' })
})

test('a server given by its address is used instead, and none is started', async (t) => {
  const { dsn } = await serverOf(t, { data: '/nowhere', dsn: 'postgres://elsewhere/db' })
  assert.equal(dsn, 'postgres://elsewhere/db')
})
