import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { definePlugin } from '#kernel'
import { McpServers } from '#contracts/mcp-servers'
import { testKernel } from '#testing'
import mcpServers from '../index.ts'

async function serversWith(t: Pick<TestContext, 'after'>, servers: object): Promise<McpServers> {
  const found: McpServers[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { servers: McpServers },
    setup: async ({ deps }) => (found.push(deps.servers), {}),
  })
  const kernel = await testKernel(t, [{ name: 'mcp-servers', plugin: mcpServers, config: { servers } }, probe], {
    listeners: [],
  })
  assert.doesNotMatch(JSON.stringify(kernel.logs), /secret/)
  return found[0]!
}

test('servers are found by name, with what is sent to them; names that are gone are left out', async (t) => {
  const files = { url: 'https://files.test/mcp', headers: { authorization: 'Bearer secret' } }
  const servers = await serversWith(t, { files, 'web-search_2': { url: 'http://search.test' } })
  assert.deepEqual(await servers.unknown('acme', ['files', 'gone', 'web-search_2', 'toString']), ['gone', 'toString'])
  assert.deepEqual(await servers.resolve('acme', ['web-search_2', 'gone', 'files']), [
    { name: 'web-search_2', url: 'http://search.test' },
    { name: 'files', ...files },
  ])
})

test('without servers every name is unknown', async (t) => {
  const servers = await serversWith(t, {})
  assert.deepEqual(await servers.unknown('acme', ['files']), ['files'])
  assert.deepEqual(await servers.resolve('acme', ['files']), [])
})

test('a name that no tool could carry, and an address of another kind, are refused at boot', async (t) => {
  await assert.rejects(serversWith(t, { 'my files': { url: 'https://files.test' } }), /'my files'.*letters, digits/)
  await assert.rejects(serversWith(t, { files: { url: 'stdio://files' } }), /http or https URL/)
  await assert.rejects(serversWith(t, { files: { url: 'https://files.test', token: 'x' } }), /token/)
})
