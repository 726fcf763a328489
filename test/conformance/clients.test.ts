import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { complaint, documented, runSuite, scenariosOf } from './suite.ts'

const program = join(fileURLToPath(new URL('.', import.meta.url)), 'client.ts')

const rows = await documented('Clients')

test('docs/conformance.md lists every scenario of the suite for clients, and no other, and says why one does not apply', async () => {
  assert.deepEqual(rows.map(({ scenario }) => scenario).toSorted(), (await scenariosOf('client')).toSorted())
  const unexplained = rows.filter(({ claims, why }) => why === '' && claims[0]!.revisions.length === 0)
  assert.deepEqual(unexplained, [])
})

assert.ok(rows.some(({ claims }) => claims[0]!.revisions.length > 0))
// Each is two processes, and a test of its own: all together would take longer than a test may on a slow machine.
for (const { scenario, claims } of rows) {
  const [claim] = claims
  for (const revision of claim!.revisions) {
    test(`our client passes ${scenario} of ${revision}`, async (t) => {
      const command = `${process.execPath} ${program}`
      const args = ['client', '--command', command, '--scenario', scenario, '--spec-version', revision, '--force']
      assert.equal(complaint((await runSuite(t, args)).get(scenario), claim!), undefined)
    })
  }
}
