import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { definePlugin, type Plugin } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { Database } from '#contracts/database'
import { McpServers } from '#contracts/mcp-servers'
import { Secrets } from '#contracts/secrets'
import { fake, testKernel } from '#testing'
import mcpCatalog from '../index.ts'

const serversWith = (t: Pick<TestContext, 'after'>, servers: object, ...more: readonly Plugin[]): Promise<McpServers> =>
  catalogWith(t, { servers }, ...more)

async function catalogWith(
  t: Pick<TestContext, 'after'>,
  config: object,
  ...more: readonly Plugin[]
): Promise<McpServers> {
  const found: McpServers[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { servers: McpServers },
    setup: async ({ deps }) => (found.push(deps.servers), {}),
  })
  const kernel = await testKernel(
    t,
    [
      { name: 'mcp-catalog', plugin: mcpCatalog, config },
      fake(ApiGuard, { protect: () => {} } as never),
      fake(Database, { absent: true } as never),
      probe,
      ...more,
    ],
    {
      listeners: ['conductor'],
    },
  )
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
  assert.deepEqual(await servers.resolve('acme', ['web-search_2', 'gone', 'files']), {
    servers: [
      { name: 'web-search_2', url: 'http://search.test', addresses: 'network' },
      { name: 'files', ...files, addresses: 'network' },
    ],
    unavailable: [{ server: 'gone', message: 'There is no MCP server of this name any more.' }],
  })
})

test('without servers every name is unknown', async (t) => {
  const servers = await serversWith(t, {})
  assert.deepEqual(await servers.unknown('acme', ['files']), ['files'])
  assert.deepEqual((await servers.resolve('acme', ['files'])).servers, [])
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
    // A profile that was written before the list changed gets no more servers than the new list allows.
    assert.deepEqual((await servers.resolve(tenant, all)).servers.map(({ name }) => name).toSorted(), names, tenant)
  }
  await assert.rejects(
    serversWith(t, { files: { url } }),
    /servers\.files\.tenants is required: write '\*' for every tenant, a list such as \[acme, globex\], or \[\] for none/,
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

test('secrets in headers are those of the tenant whose run it is, looked up for each run', async (t) => {
  const asked: unknown[] = []
  const secrets: Secrets = {
    unknown: async (tenantId, names) => (asked.push([tenantId, names]), tenantId === 'acme' ? [] : names),
    resolve: () => assert.fail('not asked'),
    headers: async (tenantId, headers, reader) => (asked.push([tenantId, reader]), { ...headers, of: tenantId }),
  }
  const url = 'https://files.test/mcp'
  const github = { authorization: 'Bearer secret://github', 'x-plain': 'plain' }
  const table = {
    github: { url, headers: github, tenants: '*' },
    plain: { url, headers: { 'x-plain': 'plain' }, tenants: '*' },
    ours: { url, headers: { 'x-key': 'secret://ours' }, tenants: ['acme'] },
  }
  const servers = await serversWith(t, table, fake(Secrets, secrets))
  const addresses = 'network'
  assert.deepEqual((await servers.resolve('acme', ['plain'])).servers, [
    { name: 'plain', url, headers: { 'x-plain': 'plain' }, addresses },
  ])
  assert.deepEqual(await servers.unknownSecrets('acme', ['plain', 'gone']), [])
  assert.deepEqual(asked, [], 'who uses no secret pays nothing')
  assert.deepEqual((await servers.resolve('acme', ['github'])).servers, [
    { name: 'github', url, headers: { ...github, of: 'acme' }, addresses },
  ])
  // A server that the tenant may not use requires no secrets of the tenant.
  assert.deepEqual(await servers.unknownSecrets('globex', ['github', 'ours', 'github']), ['github'])
  assert.deepEqual(asked, [
    ['acme', 'mcp-servers/github'],
    ['globex', ['github']],
  ])
})

test('a reference that can never be resolved refuses the boot', async (t) => {
  const at = (value: string, ...more: readonly Plugin[]) =>
    serversWith(t, { files: { url: 'https://files.test', headers: { 'x-key': value }, tenants: '*' } }, ...more)
  await assert.rejects(
    at('secret://files'),
    /'files': its header 'x-key' refers to a secret, but .* no plugin 'secrets'/,
  )
  const none = fake(Secrets, {} as Secrets)
  for (const value of ['secret://', 'Bearer secret://a/b', 'secret://${A}']) {
    await assert.rejects(at(value, none), /'files': in its header 'x-key', secret:\/\/ has no name of a secret/, value)
  }
})

test('what has to be kept refuses the boot of a role that keeps nothing', async (t) => {
  const at = (more: object) => serversWith(t, { files: { url: 'https://files.test', tenants: '*', ...more } })
  await assert.rejects(at({ toolPolicy: 'review' }), /'files' has 'toolPolicy: review', which needs a database/)
  const oauth = { grant: 'client_credentials', clientId: 'c', clientSecret: 'secret://s' }
  await assert.rejects(at({ oauth }), /'files' has 'oauth', which needs a database and the plugin 'secrets'/)
})

test('a host that entries of tenants may lead to names its port and its tenants, or the boot is refused', async (t) => {
  for (const entry of ['tools.internal', 'tools.internal:8080', 'tools.internal=acme', '10.0.0.7', '.corp.example=*']) {
    const expected = /allowHosts\.0 expects host:port=tenants, .*there is no entry for all ports/
    await assert.rejects(catalogWith(t, { allowHosts: [entry] }), expected, entry)
  }
  await catalogWith(t, { allowHosts: ['tools.internal:8080=acme|globex, .corp.example:443=*'] })
})
