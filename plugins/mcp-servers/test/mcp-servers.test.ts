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
  const tenants = '*'
  const servers = await serversWith(t, {
    files: { ...files, tenants },
    'web-search_2': { url: 'http://search.test', tenants },
  })
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
  await assert.rejects(
    serversWith(t, { 'my files': { url: 'https://files.test', tenants: '*' } }),
    /'my files'.*letters, digits/,
  )
  await assert.rejects(serversWith(t, { files: { url: 'stdio://files', tenants: '*' } }), /http or https URL/)
  await assert.rejects(serversWith(t, { files: { url: 'https://files.test', token: 'x', tenants: '*' } }), /token/)
})

test('a server is there for the tenants that it names, and unknown to any other; nobody is named by default', async (t) => {
  const url = 'https://files.test/mcp'
  const servers = await serversWith(t, {
    some: { url, tenants: ['acme', 'globex, initech'] },
    every: { url, tenants: '*' },
    nobody: { url, tenants: [] },
  })
  const all = ['some', 'every', 'nobody']
  for (const [tenant, names] of [
    ['acme', ['every', 'some']],
    ['initech', ['every', 'some']],
    ['acm', ['every']],
    ['*', ['every']],
  ] as const) {
    assert.deepEqual(await servers.names(tenant), names, tenant)
    const unknown = all.filter((name) => !(names as readonly string[]).includes(name))
    assert.deepEqual(await servers.unknown(tenant, all), unknown, tenant)
    // A profile from before the list was changed gets no more.
    assert.deepEqual((await servers.resolve(tenant, all)).map(({ name }) => name).toSorted(), names, tenant)
  }
  await assert.rejects(
    serversWith(t, { files: { url } }),
    /servers\.files\.tenants is required: write '\*' for every tenant, a list such as \[acme, globex\], or \[\] for nobody/,
  )
  await assert.rejects(serversWith(t, { files: { url, tenants: ['a b'] } }), /'\*' for every tenant, or ids of tenants/)
})

test('a private address names its port, and one where clouds keep their credentials is refused', async (t) => {
  const at = (url: string) => serversWith(t, { files: { url, tenants: '*' } })
  for (const url of ['http://10.0.0.7/mcp', 'https://[fd00::7]', 'http://localhost/mcp', 'http://127.0.0.1']) {
    await assert.rejects(at(url), /private address: write its port, too/, url)
  }
  for (const url of ['http://10.0.0.7:80/mcp', 'https://[fd00::7]:443', 'https://files.internal', 'https://8.8.8.8']) {
    await at(url)
  }
  for (const url of ['http://169.254.169.254:80', 'http://[fd00:ec2::254]:80', 'http://metadata.google.internal:80']) {
    await assert.rejects(at(url), /metadata service of a cloud/, url)
  }
})
