import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type TestContext, test } from 'node:test'
import { startExternalServer, type TestBody } from '#testing'
import { catalog, failureOf, sentenceOf, stage } from './stage.ts'

/** A request of a token, as an authorization server reads it. */
interface Asked {
  readonly authorization: string | undefined
  readonly form: Readonly<Record<string, string>>
}

/** An authorization server that grants `token-1`, `token-2` and so on. */
async function startAuthorizationServer(t: TestContext) {
  const asked: Asked[] = []
  const server = {
    url: '',
    asked,
    /** The fields of the answer beside the token. */
    more: { token_type: 'Bearer', expires_in: 3_600 } as Record<string, unknown>,
    metadata: {} as Record<string, unknown>,
    status: 200,
    /** Awaited before each answer with a token. */
    gate: Promise.resolve(),
  }
  const http = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const answer = (status: number, body: object): void =>
      void response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
    if (request.url === '/.well-known/oauth-authorization-server') return answer(200, server.metadata)
    if (request.url !== '/token') return answer(404, {})
    const form = Object.fromEntries(new URLSearchParams(Buffer.concat(chunks).toString()))
    const n = asked.push({ authorization: request.headers.authorization, form })
    await server.gate
    if (server.status !== 200) return answer(server.status, { error: 'invalid_client', hint: 'quoted' })
    answer(200, { access_token: `token-${n}`, ...server.more })
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    return new Promise<void>((resolve) => http.close(() => resolve()))
  })
  server.url = `http://127.0.0.1:${(http.address() as AddressInfo).port}`
  return server
}

async function withOAuth(t: TestContext, more: object = {}) {
  const issuer = await startAuthorizationServer(t)
  const server = await startExternalServer(t, { read: {} })
  const own = [issuer.url, server.url]
  const s = await stage(t, { own })
  await s.call('POST', '/api/secrets', { name: 'client', value: 'p@ss:word' })
  const oauth = {
    grant: 'client_credentials',
    clientId: 'agents',
    clientSecret: 'secret://client',
    tokenUrl: `${issuer.url}/token`,
    ...more,
  }
  const entry = { name: 'files', url: server.url, oauth }
  assert.equal((await s.call('POST', catalog, entry)).status, 201)
  const sent = async (servers = s.servers) => {
    const { servers: found, unavailable } = await servers.resolve('default', ['files'])
    return found[0]?.headers?.['authorization'] ?? unavailable[0]?.message
  }
  const age = (text: string) => s.database.batch('default', [{ text: `UPDATE mcp_tokens SET ${text}` }])
  return { ...s, own, issuer, server, oauth, entry, sent, age }
}

test('runs send an access token, which is got once, kept encrypted, and used by every conductor', async (t) => {
  const s = await withOAuth(t, { scopes: ['files.read', 'files.list'] })
  const other = await stage(t, { dsn: s.dsn, own: s.own })
  const all = await Promise.all([s.sent(), s.sent(other.servers), s.sent(), s.sent(other.servers)])
  assert.deepEqual(all, Array(4).fill('Bearer token-1'))
  assert.deepEqual(s.issuer.asked, [
    {
      authorization: `Basic ${Buffer.from('agents:p%40ss%3Aword').toString('base64')}`,
      form: { grant_type: 'client_credentials', scope: 'files.read files.list', resource: s.server.url },
    },
  ])
  const [rows] = await s.database.batch<[object[]]>('default', [{ text: 'SELECT * FROM mcp_tokens' }])
  assert.doesNotMatch(JSON.stringify(rows), /token-1|p@ss/)
  assert.doesNotMatch(JSON.stringify((await s.call('GET', `${catalog}/files`)).body), /token-1|p@ss/)
})

test('a token is replaced before it ends, and once for all who find it due; an ended one is waited for', async (t) => {
  const s = await withOAuth(t)
  assert.equal(await s.sent(), 'Bearer token-1')
  const gate = Promise.withResolvers<void>()
  s.issuer.gate = gate.promise
  await s.age(`due_at = now() - interval '1 second'`)
  assert.deepEqual(await Promise.all([s.sent(), s.sent()]), ['Bearer token-1', 'Bearer token-1'], 'nobody waits')
  await s.age(`expires_at = now() - interval '1 second'`)
  const waiting = [s.sent(), s.sent()]
  gate.resolve()
  assert.deepEqual(await Promise.all(waiting), ['Bearer token-2', 'Bearer token-2'])
  assert.equal(s.issuer.asked.length, 2)
})

test('whoever was only slow brings a token in vain: the lease has gone to another one', async (t) => {
  const s = await withOAuth(t)
  // The second conductor starts before anybody waits: on a busy machine its start takes longer than a waiting caller would wait.
  const other = await stage(t, { dsn: s.dsn, own: s.own })
  const gate = Promise.withResolvers<void>()
  const began = Promise.withResolvers<void>()
  const { push } = s.issuer.asked
  s.issuer.asked.push = (...items) => (began.resolve(), push.apply(s.issuer.asked, items))
  s.issuer.gate = gate.promise
  const slow = s.sent()
  await began.promise
  s.issuer.gate = Promise.resolve()
  await s.age(`leased_until = now() - interval '1 second'`)
  assert.equal(await s.sent(other.servers), 'Bearer token-2')
  gate.resolve()
  assert.equal(await slow, 'Bearer token-2', 'all use the one that is stored')
})

test('a token without an end is taken for a short one, and one with a strange end as well', async (t) => {
  const s = await withOAuth(t)
  for (const more of [{}, { expires_in: null }, { expires_in: 'soon' }, { expires_in: -1 }]) {
    s.issuer.more = more
    await s.age(`token = NULL, due_at = NULL`)
    await s.sent()
    const [rows] = await s.database.batch<[{ seconds: number }[]]>('default', [
      { text: 'SELECT round(extract(epoch FROM expires_at - due_at))::int AS seconds FROM mcp_tokens' },
    ])
    assert.equal(rows[0]!.seconds, 60, JSON.stringify(more))
  }
})

test('an authorization server that gives none costs the run these tools, and is not asked at once again', async (t) => {
  const s = await withOAuth(t)
  s.issuer.status = 401
  assert.equal(await s.sent(), 'The authorization server of the entry answered 401 and invalid_client.')
  assert.equal(await s.sent(), 'The authorization server of the entry answered 401 and invalid_client.')
  assert.equal(s.issuer.asked.length, 1)
  s.issuer.status = 200
  await s.age(`failed_at = now() - interval '6 seconds'`)
  assert.equal(await s.sent(), 'Bearer token-2')
  // A changed client gets a token of its own.
  await s.call('PUT', `${catalog}/files`, { ...s.entry, oauth: { ...s.oauth, clientId: 'others' } })
  assert.equal(await s.sent(), 'Bearer token-3')
  await s.call('DELETE', '/api/secrets/client')
  await s.age(`token = NULL, due_at = NULL`)
  await assert.rejects(s.servers.resolve('default', ['files']), { code: 'unknown_secret: client' })
})

test('a token that the server takes back is replaced when the server is tested; a wrong one says so', async (t) => {
  const s = await withOAuth(t)
  assert.equal(await s.sent(), 'Bearer token-1')
  s.server.before = (request, response) => {
    if (request.headers.authorization === 'Bearer token-2') return false
    response.writeHead(401).end()
    return true
  }
  assert.equal((await s.call('POST', `${catalog}/files/test`)).status, 200)
  assert.equal(await s.sent(), 'Bearer token-2')
  s.server.before = (_, response) => (response.writeHead(401).end(), true)
  assert.deepEqual(failureOf(await s.call('POST', `${catalog}/files/test`)), [502, 'mcp_unauthorized'])
  s.issuer.status = 400
  await s.age(`token = NULL, due_at = NULL`)
  const refused = await s.call('POST', `${catalog}/files/test`)
  assert.deepEqual(failureOf(refused), [502, 'mcp_token_refused'])
  assert.doesNotMatch(sentenceOf(refused), /quoted/)
})

test('without a token endpoint in the entry the server says whom to ask, and that one where and how', async (t) => {
  const s = await withOAuth(t, { tokenUrl: undefined })
  const { origin } = new URL(s.server.url)
  let says: object = {}
  s.server.before = (request, response) => {
    if (request.url === '/who') {
      const resource = { resource: s.server.url, authorization_servers: [s.issuer.url], ...says }
      response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(resource))
      return true
    }
    if (request.headers.authorization === 'Bearer token-1') return false
    response.writeHead(401, { 'www-authenticate': `Bearer resource_metadata="${origin}/who"` }).end()
    return true
  }
  s.issuer.metadata = {
    issuer: s.issuer.url,
    authorization_endpoint: `${s.issuer.url}/authorize`,
    token_endpoint: `${s.issuer.url}/token`,
    response_types_supported: ['code'],
    token_endpoint_auth_methods_supported: ['client_secret_post'],
  }
  const tested = await s.call('POST', `${catalog}/files/test`)
  assert.equal(tested.status, 200, sentenceOf(tested))
  assert.deepEqual(s.issuer.asked, [
    {
      authorization: undefined,
      form: {
        grant_type: 'client_credentials',
        resource: s.server.url,
        client_id: 'agents',
        client_secret: 'p@ss:word',
      },
    },
  ])
  // Wherever a server points to, secrets are sent only to public addresses over TLS, or to hosts that the operator allows.
  const { port } = new URL(s.issuer.url)
  for (const [where, why] of [
    [`http://localhost:${port}/token`, /is not asked without TLS/],
    [`https://localhost:${port}/token`, /has an address that may not be called/],
    [undefined, /does not answer as one|publishes no metadata/],
  ] as const) {
    s.issuer.metadata = where === undefined ? {} : { ...s.issuer.metadata, token_endpoint: where }
    await s.age(`token = NULL, due_at = NULL, failed_at = NULL`)
    assert.match(String(await s.sent()), why)
  }
  // Metadata is believed only about its own server, and this client belongs to the tenant.
  const metadata = { issuer: s.issuer.url, token_endpoint: `${s.issuer.url}/token`, response_types_supported: ['code'] }
  const page = { ...metadata, authorization_endpoint: `${s.issuer.url}/authorize` }
  for (const [about, server, why] of [
    [{ ...page, issuer: 'https://bank.example' }, {}, /says that it is another one/],
    [page, { resource: 'https://bank.example/mcp' }, /speaks for another one/],
  ] as const) {
    s.issuer.metadata = about
    says = server
    await s.age(`token = NULL, due_at = NULL, failed_at = NULL`)
    assert.match(String(await s.sent()), why)
  }
  assert.equal(s.issuer.asked.length, 1)
})

test('a call at the endpoint whose token the server does not take any more gets another token, once', async (t) => {
  const s = await withOAuth(t)
  const { body } = await s.call('POST', '/api/api-keys', { label: 'k', role: 'member' })
  const call = async (): Promise<TestBody> => {
    const { body: answer } = await s.callerWith(body['token'] as string)(
      'POST',
      '/mcp/catalog',
      { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'files__read', arguments: {} } },
      { accept: 'application/json, text/event-stream' },
    )
    return answer['result'] as TestBody
  }
  assert.equal('isError' in (await call()), false)
  const taken = (token: string) => {
    s.server.before = ({ headers }, response) => {
      if (headers.authorization === `Bearer ${token}`) return false
      response.writeHead(401).end()
      return true
    }
  }
  taken('token-2')
  assert.equal('isError' in (await call()), false)
  assert.equal(s.issuer.asked.length, 2)
  taken('none')
  assert.equal((await call())['isError'], true)
  assert.equal(s.issuer.asked.length, 3)
  assert.deepEqual(s.server.calls, ['read', 'read'])
})
