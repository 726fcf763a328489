import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { complaint, documented, runSuite, scenariosOf } from './suite.ts'

const program = join(fileURLToPath(new URL('.', import.meta.url)), 'client.ts')

test('docs/conformance.md lists every scenario of the suite for clients, and no other, and says why one does not apply', async () => {
  const rows = await documented('Clients')
  assert.deepEqual(rows.map(({ scenario }) => scenario).toSorted(), (await scenariosOf('client')).toSorted())
  const unexplained = rows.filter(({ claims, why }) => why === '' && claims[0]!.revisions.length === 0)
  assert.deepEqual(unexplained, [])
})

test('our client passes every scenario that applies', async (t) => {
  const rows = (await documented('Clients')).filter(({ claims }) => claims[0]!.revisions.length > 0)
  assert.ok(rows.length > 0)
  await Promise.all(
    rows.map(async ({ scenario, claims }) => {
      const command = `${process.execPath} ${program}`
      for (const revision of claims[0]!.revisions) {
        const args = ['client', '--command', command, '--scenario', scenario, '--spec-version', revision, '--force']
        const checks = await runSuite(t, args)
        assert.equal(complaint(checks.get(scenario), claims[0]!), undefined, `${scenario} ${revision}`)
      }
    }),
  )
})
