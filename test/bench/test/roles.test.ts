import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { plan } from '#kernel'
import { sampleEnvironment } from '../../../cli/check-config.ts'
import { loadRole } from '../../../kernel/config.ts'
import { changedRole } from '../cluster.ts'
import { runnerRole } from '../soak/service.ts'

async function folder(t: TestContext): Promise<string> {
  const made = await mkdtemp(join(tmpdir(), 'agent-orc-roles-'))
  t.after(() => rm(made, { recursive: true }))
  return made
}
const planned = async (file: string) => plan(await loadRole(file, { env: await sampleEnvironment() }))

// A soak runs seldom, so nobody would notice that it cannot start.
test('the runner of the soak boots with its role file', async (t) => {
  await planned(await runnerRole(await folder(t)))
})

test('a changed role has the settings of the shipped one beside its own, and only those that there are', async (t) => {
  const directory = await folder(t)
  const file = await changedRole('vfs', directory, 'vfs', ({ mounts }) => ({
    mounts: { ...(mounts as object), more: {} },
  }))
  await assert.rejects(planned(file), /mounts\.more/)
  await assert.rejects(
    changedRole('vfs', directory, 'vsf', () => ({})),
    /config\/vfs\.yaml has no plugin vsf/,
  )
})
