import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { json } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { type Asked, runClient } from './client.ts'
import { type Checks, complaint, documented, type Revision, revisions, runSuite, scenariosOf } from './suite.ts'

const program = fileURLToPath(new URL('client-command.js', import.meta.url))

const rows = await documented('Clients')

test('docs/conformance.md lists every scenario of the suite for clients, and no other, and says why one does not apply', async () => {
  assert.deepEqual(rows.map(({ scenario }) => scenario).toSorted(), (await scenariosOf('client')).toSorted())
  const unexplained = rows.filter(({ claims, why }) => why === '' && claims[0]!.revisions.length === 0)
  assert.deepEqual(unexplained, [])
})

/** Runs our client for each scenario that the suite's command hands over. */
const clients = createServer(async (request, response) => {
  try {
    await runClient((await json(request)) as Asked)
  } catch (error) {
    response.statusCode = 500
    response.write(String((error as Error).stack))
  }
  response.end()
})
before(() => new Promise<void>((resolve) => clients.listen(0, '127.0.0.1', resolve)))
after(() => new Promise<void>((resolve) => clients.close(() => resolve())))

const suiteRuns = new Map<string, Promise<Checks>>()
/** What the suite found in one run of its command, which several tests may look at. */
function found(revision: Revision, which: readonly string[]): Promise<Checks> {
  const url = `http://127.0.0.1:${(clients.address() as AddressInfo).port}`
  // A run of many scenarios begins all of them at once, on a slow machine, too.
  const args = ['--command', `${process.execPath} ${program} ${url}`, '--spec-version', revision, '--timeout', '100000']
  const key = [revision, ...which].join(' ')
  if (!suiteRuns.has(key)) suiteRuns.set(key, runSuite(['client', ...args, ...which]))
  return suiteRuns.get(key)!
}

/** One run of the suite for all that it asks of a client. Of older ones we claim so few scenarios that each is run by its name. */
const whole = revisions.at(-1)

assert.ok(rows.some(({ claims }) => claims[0]!.revisions.length > 0))
for (const revision of revisions) {
  for (const { scenario, claims } of rows) {
    const [claim] = claims
    if (!claim!.revisions.includes(revision)) continue
    test(`our client passes ${scenario} of ${revision}`, async () => {
      const together = revision === whole ? (await found(revision, ['--suite', 'all'])).get(scenario) : undefined
      // What a revision does not ask for, such as an extension or what an older one had, is run by its name, too.
      const checks = together ?? (await found(revision, ['--scenario', scenario, '--force'])).get(scenario)
      assert.equal(complaint(checks, claim!), undefined)
    })
  }
}
