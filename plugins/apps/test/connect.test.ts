import assert from 'node:assert/strict'
import { test } from 'node:test'
import { failureOf, itemsOf, publicUrl, sentenceOf, stage, stageWithOAuth } from './stage.ts'

test('an end user connects an account by a link, on whichever conductor, and calls are made as that user', async (t) => {
  const s = await stageWithOAuth(t)
  const other = await stage(t, { dsn: s.dsn, own: s.own })
  const before = await s.read('ann')
  assert.deepEqual([failureOf(before), before.body['state']], [[409, 'app_not_connected'], 'none'])

  const link = await s.begin({ endUserId: 'ann' })
  const url = new URL(String(link.body['url']))
  const asked = Object.fromEntries(url.searchParams)
  assert.equal(url.origin + url.pathname, `${s.issuer.url}/authorize`)
  assert.deepEqual(
    [asked['response_type'], asked['client_id'], asked['code_challenge_method'], asked['resource'], asked['scope']],
    ['code', 'client-1', 'S256', s.server.url, 'files'],
  )
  assert.equal(asked['redirect_uri'], `${publicUrl}/api/apps/callback`)
  assert.deepEqual(s.issuer.registered[0]!['redirect_uris'], [`${publicUrl}/api/apps/callback`])
  assert.equal((await s.state())!['state'], 'initiated')

  const back = s.issuer.agree(url.href)
  const page = await other.browse(back)
  assert.deepEqual([page.status, page.headers['content-type']], [200, 'text/html; charset=utf-8'])
  assert.match(String(page.headers['content-security-policy']), /default-src 'none'/)
  const again = await s.browse(back)
  assert.deepEqual([again.status, /used already/.test(again.text)], [400, true], 'the answer is good once')
  assert.equal(s.issuer.asked.length, 1)
  const { code: _, code_verifier: verifier, ...form } = s.issuer.asked[0]!.form
  assert.ok(verifier!.length >= 43)
  assert.deepEqual(form, {
    grant_type: 'authorization_code',
    redirect_uri: `${publicUrl}/api/apps/callback`,
    resource: s.server.url,
    client_id: 'client-1',
  })

  const called = await s.read('ann')
  assert.deepEqual([called.status, called.body['ok']], [200, true], called.text)
  assert.deepEqual(called.body['result'], { content: [{ type: 'text', text: 'read done' }] })
  assert.deepEqual(new Set(s.sent), new Set(['Bearer access-1']))
  assert.deepEqual(failureOf(await s.read('bob')), [409, 'app_not_connected'], 'the account is of one user')
  const nobody = await s.read()
  assert.deepEqual(
    [failureOf(nobody), sentenceOf(nobody).startsWith('endUserId must name the person')],
    [[400, 'invalid_request'], true],
  )

  // The second person uses the client that was registered for the first.
  await s.connect({ endUserId: 'bob' })
  assert.equal(s.issuer.registered.length, 1)
  assert.equal((await s.read('bob')).status, 200)
  const shown = JSON.stringify([
    (await s.call('GET', '/api/apps/files/connections')).body,
    await s.rows('SELECT * FROM app_connections'),
    await s.rows('SELECT * FROM app_authorizations'),
    await s.rows('SELECT * FROM mcp_oauth_clients'),
    (await s.call('GET', '/api/mcp/catalog/files')).body,
  ])
  assert.doesNotMatch(shown, /access-\d|refresh-\d|client-1/)
})

test('the tenant’s own account serves its runs, its tests and its calls; one of users serves none of the first two', async (t) => {
  const s = await stageWithOAuth(t, {})
  assert.equal(
    (await s.servers.resolve('default', ['files'])).unavailable[0]!.message,
    'The account has not been connected yet.',
  )
  await s.connect()
  const { servers } = await s.servers.resolve('default', ['files'])
  assert.deepEqual(servers[0]!.headers, { authorization: 'Bearer access-1' })
  assert.equal((await s.call('POST', '/api/mcp/catalog/files/test')).status, 200)
  assert.equal((await s.read('whoever')).status, 200)
  const oauth = { grant: 'authorization_code', connection: 'user' }
  assert.equal((await s.call('PUT', '/api/mcp/catalog/files', { ...s.entry, oauth })).status, 200)
  assert.match((await s.servers.resolve('default', ['files'])).unavailable[0]!.message, /profiles name it in `apps`/)
})

test('an answer that is not the one that was asked for connects nothing', async (t) => {
  const s = await stageWithOAuth(t)
  const tried = async (more: Record<string, string>) => {
    const { body } = await s.begin({ endUserId: 'ann' })
    const page = await s.browse(s.issuer.agree(String(body['url']), more))
    return [page.status, (await s.state())!['state'], /<p>(.*)<\/p>/.exec(page.text)?.[1]]
  }
  for (const iss of ['https://evil.test', '']) {
    const refused = 'The authorization server of the entry is not the one that the answer comes from.'
    assert.deepEqual(await tried({ iss }), [400, 'failed', refused], `iss '${iss}'`)
  }
  const denied = 'The authorization server of the entry answered access_denied.'
  assert.deepEqual(await tried({ code: '', error: 'access_denied' }), [400, 'failed', denied])
  assert.deepEqual(await tried({ code: '', error: '<script>' }), [
    400,
    'failed',
    'The authorization server of the entry answered with an error.',
  ])
  assert.equal(s.issuer.asked.length, 0, 'none of these was exchanged')
  assert.match(String((await tried({ code: 'stolen' }))[2]), /answered 400 and invalid_grant/)
  // The state of another attempt, a made-up state, and none.
  const { body } = await s.begin({ endUserId: 'ann' })
  const back = new URL(s.issuer.agree(String(body['url'])), publicUrl)
  const state = back.searchParams.get('state')!
  for (const other of [
    `${state.slice(0, -2)}xx`,
    `${Buffer.from('globex').toString('base64url')}.${state.split('.')[1]!}`,
    'x',
    '\0',
  ]) {
    back.searchParams.set('state', other)
    assert.equal((await s.browse(back.pathname + back.search)).status, 400, other)
  }
  assert.equal((await s.browse('/api/apps/callback')).status, 400)
  back.searchParams.set('state', state)
  await s.database.batch('default', [{ text: `UPDATE app_authorizations SET expires_at = now()` }])
  assert.equal((await s.browse(back.pathname + back.search)).status, 400, 'its time is over')
})

test('an account that an app does not take is no other person’s failure, and none of the entry', async (t) => {
  const s = await stageWithOAuth(t)
  s.issuer.more = { expires_in: undefined, refresh_token: undefined }
  await s.connect({ endUserId: 'ann' })
  await s.connect({ endUserId: 'bob' })
  const { before } = s.server
  const asked = Promise.withResolvers<void>()
  const gate = Promise.withResolvers<void>()
  s.server.before = (request, response, body) => {
    if (request.headers.authorization !== 'Bearer access-1') return before(request, response, body)
    asked.resolve()
    void gate.promise.then(() => response.writeHead(401).end())
    return true
  }
  const tools = (endUserId: string) => s.call('GET', `/api/apps/files/tools?endUserId=${endUserId}`)
  const ann = tools('ann')
  await asked.promise
  const bob = tools('bob')
  gate.resolve()
  assert.equal((await ann).status, 409)
  assert.equal((await bob).status, 200)
  const states = itemsOf(await s.call('GET', '/api/apps/files/connections')).map((one) => [
    one['endUserId'],
    one['state'],
  ])
  assert.deepEqual(states.toSorted(), [
    ['ann', 'expired'],
    ['bob', 'active'],
  ])
  const entry = (await s.call('GET', '/api/mcp/catalog/files')).body as { health: Record<string, unknown> }
  assert.equal('lastFailure' in entry.health, false)
})

test('an authorization server that answers with more than anybody needs has nothing kept of it', async (t) => {
  const s = await stageWithOAuth(t)
  const long = 'x'.repeat(100_000)
  for (const [clients, metadata] of [
    [{ client_secret: long }, {}],
    [{}, { token_endpoint: `${s.issuer.url}/token?${long}` }],
  ]) {
    Object.assign(s.issuer, { clients, metadata })
    const begun = await s.begin({ endUserId: 'ann' })
    assert.deepEqual([...failureOf(begun), /more than is kept/.test(sentenceOf(begun))], [400, 'connect_refused', true])
  }
})

test('people are sent on to pages that the operator allows, and to no other', async (t) => {
  const s = await stageWithOAuth(t)
  for (const returnUrl of [
    'https://evil.test/',
    'javascript:alert(1)',
    'https://shop.test.evil.test/',
    '//shop.test',
    'x',
  ]) {
    const refused = await s.begin({ endUserId: 'ann', returnUrl })
    assert.deepEqual(failureOf(refused), [400, 'invalid_request'], returnUrl)
  }
  const { body } = await s.begin({ endUserId: 'ann', returnUrl: 'https://shop.test/done?x=1' })
  const page = await s.browse(`${s.issuer.agree(String(body['url']))}&returnUrl=https://evil.test/`)
  const to = `https://shop.test/done?x=1&connection=${String(body['connectionId'])}&state=active`
  assert.deepEqual([page.status, page.headers['location']], [303, to])
})

test('what a server says of who gives tokens is believed of itself alone, and only of what may be asked', async (t) => {
  const s = await stageWithOAuth(t)
  const begun = async () => {
    const answer = await s.begin({ endUserId: 'ann' })
    return [answer.status, answer.body['error'], sentenceOf(answer)]
  }
  const own = s.resource.resource
  s.resource.resource = 'https://bank.test/mcp'
  assert.match(String((await begun())[2]), /named by a server that speaks for another one/)
  s.resource.resource = own
  const { port } = new URL(s.issuer.url)
  for (const [metadata, status, why] of [
    [{ issuer: 'https://bank.test' }, 400, /says that it is another one/],
    [{ code_challenge_methods_supported: ['plain'] }, 400, /does not support PKCE/],
    [{ code_challenge_methods_supported: undefined }, 400, /does not support PKCE/],
    [{ authorization_endpoint: 'javascript:alert(1)' }, 502, /does not answer as one/],
    [{ authorization_endpoint: 'http://pages.test/authorize' }, 400, /not asked without TLS/],
    [{ registration_endpoint: `http://localhost:${port}/register` }, 400, /not asked without TLS/],
    [{ registration_endpoint: `https://localhost:${port}/register` }, 502, /an address that may not be called/],
    [{ registration_endpoint: undefined }, 400, /registers no clients by itself/],
  ] as const) {
    s.issuer.metadata = metadata
    const [got, , sentence] = await begun()
    assert.match(String(sentence), why, JSON.stringify(metadata))
    assert.equal(got, status, JSON.stringify(metadata))
  }
  assert.equal(s.issuer.registered.length, 0)
  s.issuer.metadata = { token_endpoint: `http://localhost:${port}/token` }
  const { body } = await s.begin({ endUserId: 'ann' })
  const page = await s.browse(s.issuer.agree(String(body['url'])))
  assert.deepEqual([page.status, /not asked without TLS/.test(page.text)], [400, true])
})

test('a client that the tenant has registered itself is used with its secret', async (t) => {
  const s = await stage(t)
  const secret = { name: 'client', value: 'p@ss:word' }
  await s.call('POST', '/api/secrets', secret)
  const own = await stageWithOAuth(
    t,
    { clientId: 'ours', clientSecret: 'secret://client', connection: 'user' },
    { dsn: s.dsn },
  )
  await own.connect({ endUserId: 'ann' })
  assert.equal(own.issuer.registered.length, 0)
  const basic = `Basic ${Buffer.from('ours:p%40ss%3Aword').toString('base64')}`
  assert.deepEqual([own.issuer.asked[0]!.authorization, own.issuer.asked[0]!.form['client_secret']], [basic, undefined])
})

test('an entry that leads elsewhere by now sends nobody’s token there; one that is gone is not active', async (t) => {
  const s = await stageWithOAuth(t)
  await s.connect({ endUserId: 'ann' })
  assert.equal((await s.read('ann')).status, 200)
  const strange: unknown[] = []
  const { before } = s.server
  s.server.before = (request, ...rest) => {
    if (request.url!.includes('other')) strange.push(request.headers.authorization)
    return before(request, ...rest)
  }
  assert.equal(
    (await s.call('PUT', '/api/mcp/catalog/files', { ...s.entry, url: `${s.server.url}?other` })).status,
    200,
  )
  const moved = await s.read('ann')
  assert.deepEqual(failureOf(moved), [409, 'app_not_connected'], moved.text)
  assert.deepEqual(
    strange.filter((one) => one !== undefined),
    [],
  )
  await s.call('PUT', '/api/mcp/catalog/files', { ...s.entry, active: false })
  assert.deepEqual(failureOf(await s.read('ann')), [403, 'toolkit_not_active'])
  assert.deepEqual(failureOf(await s.begin({ endUserId: 'ann' })), [403, 'toolkit_not_active'])
  assert.deepEqual(itemsOf(await s.call('GET', '/api/apps')), [])
  assert.equal(itemsOf(await s.call('GET', '/api/apps/files/connections')).length, 1, 'they are still to be seen')
})

test('without a public URL nothing is entered that would have to be come back from', async (t) => {
  const s = await stage(t, { variables: { AGENT_ORC_PUBLIC_URL: '' } })
  const entry = { name: 'files', url: 'https://files.test/mcp', oauth: { grant: 'authorization_code' } }
  const refused = await s.call('POST', '/api/mcp/catalog', entry)
  assert.deepEqual(failureOf(refused), [400, 'invalid_request'])
  assert.match(sentenceOf(refused), /AGENT_ORC_PUBLIC_URL/)
  const settings = { 'mcp-catalog': { servers: { files: { url: entry.url, oauth: entry.oauth, tenants: '*' } } } }
  await assert.rejects(stage(t, { variables: { AGENT_ORC_PUBLIC_URL: '' }, settings }), /AGENT_ORC_PUBLIC_URL/)
  await assert.rejects(stage(t, { variables: { AGENT_ORC_PUBLIC_URL: 'http://agents.test' } }), /an https URL/)
})

test('whoever comes back with a state that nobody gave waits for no work of the tenant that it names', async (t) => {
  const s = await stage(t)
  const { promise: over, resolve: end } = Promise.withResolvers<void>()
  const busy = Promise.allSettled(Array.from({ length: 20 }, () => s.database.tenant('default', () => over)))
  const state = `${Buffer.from('default').toString('base64url')}.${'A'.repeat(43)}`
  const page = await s.browse(`/api/apps/callback?state=${state}&code=c`)
  end()
  await busy
  assert.equal(page.status, 400, page.text)
})
