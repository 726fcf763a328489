import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startExternalServer } from '#testing'
import { catalog, failureOf, itemsOf, sentenceOf, stage } from './stage.ts'

const files = { name: 'files', url: 'https://files.example/mcp' }

test('an entry is made, read, listed, replaced and deleted; what the server owns is ignored', async (t) => {
  const { call, member: asMember } = await stage(t)
  const made = await call('POST', catalog, { ...files, managedBy: 'config', description: 'Files.' })
  assert.equal(made.status, 201)
  const { createdAt, updatedAt, ...rest } = made.body
  assert.equal(createdAt, updatedAt)
  const shown = {
    ...files,
    transport: 'streamable-http',
    active: true,
    toolPolicy: 'trust',
    description: 'Files.',
    managedBy: 'user',
  }
  assert.deepEqual(rest, shown)
  assert.deepEqual(failureOf(await call('POST', catalog, files)), [409, 'conflict'])

  const member = await asMember()
  assert.deepEqual((await member('GET', `${catalog}/files`)).body, made.body)
  for (const [method, url] of [
    ['POST', catalog],
    ['PUT', `${catalog}/files`],
    ['DELETE', `${catalog}/files`],
    ['POST', `${catalog}/import`],
    ['POST', `${catalog}/files/test`],
    ['POST', `${catalog}/files/accept`],
  ] as const) {
    assert.equal((await member(method, url, method === 'DELETE' ? undefined : files)).status, 403, `${method} ${url}`)
  }

  const replaced = await call('PUT', `${catalog}/files`, {
    url: 'https://files.example/v2',
    active: false,
    toolPolicy: 'review',
    allowedTools: ['read'],
    managedBy: 'config',
  })
  assert.equal(replaced.status, 200)
  const { updatedAt: later, createdAt: still, ...now } = replaced.body
  assert.ok(still === createdAt && later !== updatedAt)
  assert.deepEqual(now, {
    name: 'files',
    url: 'https://files.example/v2',
    transport: 'streamable-http',
    active: false,
    toolPolicy: 'review',
    allowedTools: ['read'],
    managedBy: 'user',
  })
  assert.deepEqual(failureOf(await call('PUT', `${catalog}/files`, { ...files, name: 'other' })), [
    400,
    'invalid_request',
  ])
  await call('POST', catalog, { ...files, name: 'another' })
  const page = await call('GET', `${catalog}?limit=1`)
  assert.deepEqual([itemsOf(page)[0]!['name'], page.headers['x-total-count']], ['another', '2'])
  assert.equal((await call('DELETE', `${catalog}/files`)).status, 204)
  for (const method of ['GET', 'DELETE', 'PUT'] as const) {
    const body = method === 'PUT' ? { url: files.url } : undefined
    assert.deepEqual(failureOf(await call(method, `${catalog}/files`, body)), [404, 'not_found'])
  }
  assert.equal((await call('GET', `${catalog}/no%20name`)).status, 404)
})

test('entries of the role file are in the catalog of the tenants that they are for, and nobody changes them', async (t) => {
  const { call, other } = await stage(t, {
    settings: {
      servers: {
        github: { url: 'http://10.0.0.7:80/mcp?key=k', headers: { 'x-key': 'hush' }, tenants: ['default'] },
        other: { url: 'https://other.example', tenants: ['initech'] },
      },
    },
  })
  await call('POST', catalog, files)
  const list = itemsOf(await call('GET', catalog))
  assert.deepEqual(
    list.map(({ name, managedBy, url }) => [name, managedBy, url]),
    [
      ['files', 'user', files.url],
      ['github', 'config', 'http://10.0.0.7:80/mcp'],
    ],
  )
  assert.doesNotMatch(JSON.stringify(list), /hush/)
  for (const answer of [
    await call('PUT', `${catalog}/github`, { url: files.url }),
    await call('DELETE', `${catalog}/github`),
    await call('POST', catalog, { ...files, name: 'github' }),
  ]) {
    assert.deepEqual(failureOf(answer), [409, 'managed_by_config'])
    assert.match(sentenceOf(answer), /'github' is from the role file/)
  }
  assert.equal((await call('DELETE', `${catalog}/other`)).status, 404)
  const initech = await other('initech')
  assert.deepEqual(
    itemsOf(await initech('GET', catalog)).map(({ name }) => name),
    ['other'],
  )
  // A name that the role file gives to another tenant is free.
  assert.equal((await initech('POST', catalog, { ...files, name: 'github' })).status, 201)
})

test('values of headers are masked, references are not; the mask stands for what is stored, at the same server', async (t) => {
  const { call, servers } = await stage(t)
  await call('POST', '/api/secrets', { name: 'github', value: 'ghp_1' })
  const headers = { authorization: 'Bearer secret://github', 'x-plain': 'plain' }
  const made = await call('POST', catalog, { ...files, headers })
  const shown = { authorization: 'Bearer secret://github', 'x-plain': '********' }
  assert.deepEqual(made.body['headers'], shown)
  const sent = async () => (await servers.resolve('default', ['files'])).servers[0]?.headers
  assert.deepEqual(await sent(), { authorization: 'Bearer ghp_1', 'x-plain': 'plain' })

  const moved = { url: 'https://files.example/v2', headers: { 'X-Plain': '********' } }
  assert.equal((await call('PUT', `${catalog}/files`, moved)).status, 200)
  assert.deepEqual(await sent(), { 'X-Plain': 'plain' })
  const elsewhere = { url: 'https://evil.example/mcp', headers: { 'x-plain': '********' } }
  const refused = await call('PUT', `${catalog}/files`, elsewhere)
  assert.deepEqual(failureOf(refused), [400, 'invalid_request'])
  assert.match(sentenceOf(refused), /written anew/)
  const unknown = await call('PUT', `${catalog}/files`, { url: files.url, headers: { 'x-other': '********' } })
  assert.match(sentenceOf(unknown), /body\/headers\/x-other must have a value/)
})

test('each bad input is a 400 that says what is wrong', async (t) => {
  const { call } = await stage(t, { own: ['http://127.0.0.1:1/mcp'] })
  const cases: [object, RegExp][] = [
    [{ name: 'a b' }, /body\/name/],
    [{ url: undefined }, /url/],
    [{ url: 'nothing' }, /must be a URL/],
    [{ url: 'stdio://x' }, /must be an https URL/],
    [{ url: 'http://files.example/mcp' }, /must be an https URL; AGENT_ORC_MCP_ALLOW_HOSTS/],
    [{ url: 'https://user:pw@files.example/mcp' }, /credentials/],
    [{ url: 'https://10.0.0.7/mcp' }, /public address/],
    [{ url: 'https://localhost/mcp' }, /public address/],
    [{ url: 'https://[::ffff:10.0.0.1]/' }, /public address/],
    [{ url: 'https://0x0a.7/' }, /public address/],
    [{ url: 'https://metadata.google.internal/' }, /public address/],
    [{ transport: 'stdio' }, /transport/],
    [{ toolPolicy: 'maybe' }, /toolPolicy/],
    [{ token: 'x' }, /token/],
    [{ headers: { 'a b': 'x' } }, /name that headers can have/],
    [{ headers: { host: 'x' } }, /transport itself/],
    [{ headers: { a: 'x', A: 'y' } }, /there once/],
    [{ headers: { a: 'x\r\ny' } }, /line break/],
    [{ headers: { a: 'secret://' } }, /reference/],
    [{ description: 'a\0b' }, /cannot be stored/],
    [{ oauth: { grant: 'client_credentials', clientId: 'c', clientSecret: 'plain' } }, /clientSecret/],
    [
      {
        oauth: {
          grant: 'client_credentials',
          clientId: 'c',
          clientSecret: 'secret://x',
          tokenUrl: 'https://10.0.0.1/',
        },
      },
      /body\/oauth\/tokenUrl must lead to a public address/,
    ],
  ]
  for (const [fields, sentence] of cases) {
    const answer = await call('POST', catalog, { ...files, ...fields })
    assert.equal(answer.status, 400, JSON.stringify(fields))
    assert.match(JSON.stringify(answer.body), sentence, JSON.stringify(fields))
  }
  const missing = await call('POST', catalog, { ...files, headers: { a: 'secret://nobody' } })
  assert.deepEqual(failureOf(missing), [400, 'unknown_secret: nobody'])
  // A host that the operator allows may be private and without TLS.
  assert.equal((await call('POST', catalog, { ...files, url: 'http://127.0.0.1:1/mcp' })).status, 201)
})

test('an entry may be private at the port and for the tenants that the operator names, and nowhere else', async (t) => {
  const server = await startExternalServer(t, { read: {} })
  const another = await startExternalServer(t, { read: {} })
  const { call, other, servers, database } = await stage(t, {
    variables: { AGENT_ORC_MCP_ALLOW_HOSTS: `${new URL(server.url).host}=acme|initech` },
  })
  const initech = await other('initech')
  assert.equal((await initech('POST', catalog, { name: 'files', url: server.url })).status, 201)
  assert.equal((await initech('POST', `${catalog}/files/test`)).status, 200)
  const found = async (tenantId: string) => (await servers.resolve(tenantId, ['files'])).servers[0]?.addresses
  assert.equal(await found('initech'), 'network')
  const oauth = { grant: 'client_credentials', clientId: 'c', clientSecret: 'secret://x', tokenUrl: another.url }
  for (const [caller, entry] of [
    [initech, { url: another.url }],
    [initech, { url: 'https://127.0.0.1/mcp' }],
    [initech, { url: server.url, oauth }],
    [call, { url: server.url }],
  ] as const) {
    const refused = await caller('POST', catalog, { name: 'more', ...entry })
    assert.deepEqual(failureOf(refused), [400, 'invalid_request'], JSON.stringify(entry))
    assert.match(sentenceOf(refused), /AGENT_ORC_MCP_ALLOW_HOSTS names hosts, with their ports and tenants/)
  }
  // What was stored while the operator allowed more is not connected to.
  await call('POST', catalog, { ...files, name: 'files' })
  for (const [tenantId, caller, url] of [
    ['default', call, server.url],
    ['initech', initech, another.url],
  ] as const) {
    const text = `UPDATE mcp_entries SET entry = jsonb_set(entry, '{url}', to_jsonb($1::text)) WHERE name = 'files'`
    await database.batch(tenantId, [{ text, values: [url] }])
    assert.equal(await found(tenantId), 'public')
    assert.deepEqual(failureOf(await caller('POST', `${catalog}/files/test`)), [400, 'mcp_address_refused'], tenantId)
  }
  assert.deepEqual(another.opened, [])
})

test('a tenant has as many entries as it may, and none is larger than it may be', async (t) => {
  const { call, database } = await stage(t)
  const fill = {
    text: `INSERT INTO mcp_entries (tenant_id, name, active, entry)
           SELECT 'default', 'e' || n, true, '{"url":"https://x.example"}' FROM generate_series(1, 499) n`,
  }
  await database.batch('default', [fill])
  const answers = await Promise.all(['a', 'b'].map((name) => call('POST', catalog, { ...files, name })))
  assert.deepEqual(answers.map(({ status }) => status).toSorted(), [201, 409])
  const refused = answers.find(({ status }) => status === 409)!
  assert.deepEqual([refused.body['error'], refused.body['limit']], ['limit_exceeded', 'mcpEntries'])
  const headers = Object.fromEntries(Array.from({ length: 5 }, (_, i) => [`h${i}`, 'x'.repeat(8_000)]))
  const large = await call('PUT', `${catalog}/e1`, { url: files.url, headers })
  assert.deepEqual([large.body['error'], large.body['limit']], ['limit_exceeded', 'mcpEntryBytes'])
  const { limits } = (await call('GET', '/api/limits')).body as { limits: { name: string; used?: number }[] }
  assert.equal(limits.find(({ name }) => name === 'mcpEntries')?.used, 500)
})

test('profiles name entries that are there and active; a run loads those alone, whatever the size of the catalog', async (t) => {
  const { call, servers, database } = await stage(t, {
    settings: { servers: { ours: { url: 'https://ours.example', tenants: '*' } } },
  })
  const fill = {
    text: `INSERT INTO mcp_entries (tenant_id, name, active, entry)
           SELECT 'default', 'e' || n, true, '{"url":"https://x.example"}' FROM generate_series(1, 200) n`,
  }
  await database.batch('default', [fill])
  await call('POST', catalog, { ...files, active: false })
  const write = (mcpServers: string[]) => call('POST', '/api/profiles', { name: 'p', mcpServers })
  const refused = await write(['e1', 'files', 'gone'])
  assert.deepEqual(failureOf(refused), [400, 'unknown_mcp_server: files'])
  assert.match(sentenceOf(refused), /files, gone/)
  assert.equal((await write(['e1', 'e200', 'ours'])).status, 201)

  const batch = t.mock.method(database, 'batch')
  assert.equal((await servers.resolve('default', ['ours'])).servers.length, 1)
  assert.equal(batch.mock.callCount(), 0, 'what the role file says costs no round trip')
  const found = await servers.resolve('default', ['e2', 'files', 'gone', 'ours'])
  assert.equal(batch.mock.callCount(), 1)
  assert.equal((await (batch.mock.calls[0]!.result as Promise<object[][]>))[0]!.length, 3)
  batch.mock.restore()
  assert.deepEqual(found.servers, [
    { name: 'e2', url: 'https://x.example', addresses: 'public' },
    { name: 'ours', url: 'https://ours.example', addresses: 'network' },
  ])
  assert.deepEqual(found.unavailable, [
    { server: 'files', message: 'The entry of this MCP server is inactive.' },
    { server: 'gone', message: 'There is no MCP server of this name any more.' },
  ])
  assert.deepEqual((await servers.resolve('acme', ['e2'])).servers, [])
})
