import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import pLimit from 'p-limit'
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
  // Each is two processes.
  const some = pLimit(4)
  const command = `${process.execPath} ${program}`
  const cases = rows.flatMap(({ scenario, claims: [claim] }) =>
    claim!.revisions.map((revision) => ({ scenario, revision, claim: claim! })),
  )
  const complaints = await some.map(cases, async ({ scenario, revision, claim }) => {
    const args = ['client', '--command', command, '--scenario', scenario, '--spec-version', revision, '--force']
    const wrong = complaint((await runSuite(t, args)).get(scenario), claim)
    return wrong === undefined ? [] : [`${scenario} ${revision}: ${wrong}`]
  })
  assert.deepEqual(complaints.flat(), [])
})
