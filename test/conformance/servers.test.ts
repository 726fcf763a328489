// In a process of its own: it starts the whole service, and the suite beside it.
import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { test, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { chat } from '../e2e/client.ts'
import { type Cluster, startCluster } from '../e2e/cluster.ts'
import { asOwnHosts } from '#testing'
import { startFixture } from './fixture.ts'
import { complaint, documented, frontOf, revisions, runSuite, scenariosOf } from './suite.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))

/** The role file of development with the tools of the suite. */
async function roleFile(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'conformance-role-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  const use = relative(folder, join(root, 'test/conformance/fixture-tools.ts'))
  const file = join(folder, 'dev.yaml')
  await writeFile(file, `${await readFile(join(root, 'config/dev.yaml'), 'utf8')}\n  fixture-tools:\n    use: ${use}\n`)
  return file
}

/** The MCP endpoint of a session that has had a run. */
async function sessionUrl(cluster: Cluster): Promise<string> {
  const tools = ['test_simple_text', 'test_error_handling', 'test_streaming_elicitation', 'test_logging_tool']
  const agent = await cluster.agent('fixture', { tools })
  cluster.model.next({ text: 'Hello.' })
  assert.equal((await chat(agent, { message: 'Hello.' })).status, 200)
  const { body } = await cluster.api<{ id: string }[]>('GET', '/api/sessions')
  return `${cluster.runnerUrl}/runner/sessions/${body[0]!.id}/mcp`
}

/** Both endpoints of the catalog, where the suite reaches them. */
async function catalogUrls(t: TestContext, cluster: Cluster, url: string): Promise<readonly string[]> {
  const entry = { name: 'fixture', url }
  assert.equal((await cluster.api('POST', '/api/mcp/catalog', entry)).status, 201)
  const { conductorUrl, bootstrap } = cluster
  const all = await frontOf(t, `${conductorUrl}/mcp/catalog`, bootstrap, 'fixture__')
  return [all, await frontOf(t, `${conductorUrl}/mcp/catalog/fixture`, bootstrap, '')]
}

test('docs/conformance.md lists every scenario of the suite for servers, and no other, and says why one does not apply', async () => {
  const rows = await documented('Servers')
  assert.deepEqual(rows.map(({ scenario }) => scenario).toSorted(), (await scenariosOf('server')).toSorted())
  const unexplained = rows.filter(({ claims, why }) => why === '' && claims.some((one) => one.revisions.length === 0))
  assert.deepEqual(unexplained, [])
})

test('every scenario that applies passes at the endpoint of a session, of the catalog and of one entry', async (t) => {
  const fixture = await startFixture(t)
  const cluster = await startCluster(t, 'single', {
    env: { AGENT_ORC_MCP_ALLOW_HOSTS: asOwnHosts([fixture]), AGENT_ORC_HOSTS: '127.0.0.1' },
    files: { dev: await roleFile(t) },
  })
  const rows = await documented('Servers')
  const [session, [all, one]] = [await sessionUrl(cluster), await catalogUrls(t, cluster, fixture)]
  // Each with its column of the document.
  const endpoints = [
    [session, 0],
    [all!, 1],
    [one!, 2],
  ] as const
  for (const [url, column] of endpoints) {
    for (const revision of revisions) {
      const checks = await runSuite(['server', '--url', url, '--suite', 'all', '--spec-version', revision])
      const claimed = rows.filter(({ claims }) => claims[column]!.revisions.includes(revision))
      assert.ok(claimed.length > 5, `${url} ${revision}: ${claimed.length}`)
      const complaints = claimed.flatMap(({ scenario, claims }) => {
        const wrong = complaint(checks.get(scenario), claims[column]!)
        return wrong === undefined ? [] : [`${scenario}: ${wrong}`]
      })
      assert.deepEqual(complaints, [], `${url} ${revision}`)
    }
  }
})
