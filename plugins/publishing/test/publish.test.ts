import assert from 'node:assert/strict'
import { test } from 'node:test'
import { conductor } from './kernel.ts'

test('publish answers 201 with the published agent and the documented defaults', async (t) => {
  const { call, profile } = await conductor(t)
  await profile('My.Agent_2')
  const reply = await call('POST', '/api/profiles/My.Agent_2/publish', {})
  assert.equal(reply.statusCode, 201)
  const { id, ...rest } = reply.json()
  assert.match(id, /^pub_/)
  assert.deepEqual(rest, {
    tenantId: 'acme',
    profileName: 'My.Agent_2',
    slug: 'my-agent-2',
    visibility: 'private',
    authMode: 'api_key',
    allowedOrigins: [],
    rateLimitRpm: 60,
    syncMaxDurationSeconds: 60,
    exposeToolEvents: false,
    enabled: true,
  })
  assert.deepEqual((await call('GET', '/api/profiles/My.Agent_2/published')).json(), reply.json())
  assert.deepEqual((await call('GET', '/api/published')).json(), [reply.json()])
})

test('publish takes every knob, and an absent body', async (t) => {
  const { call, profile } = await conductor(t)
  await profile('p')
  await profile('q')
  const body = {
    slug: 'support-bot',
    allowedOrigins: ['https://example.com', 'http://localhost:3000', 'https://[::1]:8443', 'capacitor://localhost'],
    rateLimitRpm: 100_000,
    syncMaxDurationSeconds: 600,
    exposeToolEvents: true,
  }
  const { id, ...rest } = (await call('POST', '/api/profiles/p/publish', body)).json()
  assert.ok(id)
  assert.deepEqual(rest, {
    tenantId: 'acme',
    profileName: 'p',
    visibility: 'private',
    authMode: 'api_key',
    enabled: true,
    ...body,
  })
  assert.equal((await call('POST', '/api/profiles/q/publish')).statusCode, 201)
})

test('publicUrl appears only when the public host is set', async (t) => {
  const { call, profile } = await conductor(t, { publicHost: 'chat.example.com' })
  await profile('p')
  const reply = await call('POST', '/api/profiles/p/publish', {})
  assert.equal(reply.json().publicUrl, 'https://chat.example.com/v1/chat/acme/p')
  assert.equal((await call('GET', '/api/published')).json()[0].publicUrl, 'https://chat.example.com/v1/chat/acme/p')
})

test('a value out of bounds, a bad slug or a bad origin is 400 and names the field', async (t) => {
  const { call, profile } = await conductor(t)
  await profile('p')
  const bad: [object, string][] = [
    [{ rateLimitRpm: 0 }, 'body/rateLimitRpm'],
    [{ rateLimitRpm: 100_001 }, 'body/rateLimitRpm'],
    [{ rateLimitRpm: '60' }, 'body/rateLimitRpm'],
    [{ syncMaxDurationSeconds: 0 }, 'body/syncMaxDurationSeconds'],
    [{ syncMaxDurationSeconds: 601 }, 'body/syncMaxDurationSeconds'],
    [{ exposeToolEvents: 'yes' }, 'body/exposeToolEvents'],
    [{ visibility: 'public' }, 'body/visibility'],
    ...['', 'Upper', '-a', 'a/b', 'a b', 'ä', 'x'.repeat(64), 'a\n'].map((slug): [object, string] => [
      { slug },
      'body/slug',
    ]),
    ...[
      '*',
      'null',
      'example.com',
      'https://',
      'https://example.com/',
      'https://example.com/path',
      'https://user@example.com',
      'https://*.example.com',
      'https://example.com?x',
      'https://example.com#',
      'https://Example.com',
      'https://example.com:443',
      'http://example.com:80',
      'https://example.com:99999',
      'https://exa mple.com',
      'https://example.com\\@evil.com',
      ' https://example.com',
      'javascript:alert(1)',
      'file:///etc/passwd',
    ].map((origin): [object, string] => [{ allowedOrigins: ['https://ok.example', origin] }, 'body/allowedOrigins/1']),
    [{ allowedOrigins: ['https://a.example', 'https://a.example'] }, 'body/allowedOrigins'],
  ]
  for (const [body, path] of bad) {
    const reply = await call('POST', '/api/profiles/p/publish', body)
    assert.equal(reply.statusCode, 400, JSON.stringify(body))
    assert.equal(reply.json().error, 'invalid_request')
    assert.equal(reply.json().issues[0].path, path, JSON.stringify(body))
  }
  assert.deepEqual((await call('GET', '/api/published')).json(), [])
})

test('an unknown profile is 404', async (t) => {
  const { call } = await conductor(t)
  assert.equal((await call('POST', '/api/profiles/nobody/publish', {})).json().error, 'not_found')
})

test('publishing twice, or under a taken slug, is 409 and says which', async (t) => {
  const { call, profile } = await conductor(t)
  for (const name of ['p', 'q']) await profile(name)
  await call('POST', '/api/profiles/p/publish', { slug: 'bot' })
  const twice = await call('POST', '/api/profiles/p/publish', { slug: 'other' })
  assert.deepEqual([twice.statusCode, twice.json().error], [409, 'conflict'])
  assert.match(twice.json().message, /'p' is already published/)
  const same = await call('POST', '/api/profiles/p/publish', { slug: 'bot' })
  assert.match(same.json().message, /'p' is already published/, 'under the slug it has')
  const taken = await call('POST', '/api/profiles/q/publish', { slug: 'bot' })
  assert.deepEqual([taken.statusCode, taken.json().error], [409, 'conflict'])
  assert.match(taken.json().message, /slug 'bot'/)
  await profile('q', 'globex')
  assert.equal((await call('POST', '/api/profiles/q/publish', { slug: 'bot' }, 'globex')).statusCode, 201)
})

test('of many who publish one slug at once, exactly one succeeds', async (t) => {
  const { call, profile } = await conductor(t)
  const names = Array.from({ length: 8 }, (_, i) => `p${i}`)
  for (const name of names) await profile(name)
  const replies = await Promise.all(names.map((name) => call('POST', `/api/profiles/${name}/publish`, { slug: 'bot' })))
  const statuses = replies.map((reply) => reply.statusCode).toSorted()
  assert.deepEqual(statuses, [201, 409, 409, 409, 409, 409, 409, 409])
})

test('of many who publish one profile at once, exactly one succeeds, and the others hear why', async (t) => {
  const { call, profile } = await conductor(t)
  await profile('p')
  const slugs = ['a', 'a', 'b', 'b', 'c', 'c', 'd', 'd']
  const replies = await Promise.all(slugs.map((slug) => call('POST', '/api/profiles/p/publish', { slug })))
  const lost = replies.filter((reply) => reply.statusCode === 409)
  assert.deepEqual([lost.length, replies.filter((reply) => reply.statusCode === 201).length], [7, 1])
  for (const reply of lost) assert.match(reply.json().message, /'p' is already published/)
  assert.equal((await call('GET', '/api/published')).json().length, 1)
})

test('PATCH changes any subset of the knobs and enabled, and leaves the rest', async (t) => {
  const { call, profile } = await conductor(t)
  await profile('p')
  const published = (await call('POST', '/api/profiles/p/publish', {})).json<object>()
  const patch = async (body: object) => (await call('PATCH', '/api/profiles/p/published', body)).json()
  assert.deepEqual(await patch({}), published)
  assert.deepEqual(await patch({ enabled: false }), { ...published, enabled: false })
  const all = {
    enabled: true,
    allowedOrigins: ['https://a.example'],
    rateLimitRpm: 1,
    syncMaxDurationSeconds: 1,
    exposeToolEvents: true,
  }
  assert.deepEqual(await patch(all), { ...published, ...all })
  assert.deepEqual(await patch({ allowedOrigins: [] }), { ...published, ...all, allowedOrigins: [] })
  assert.deepEqual((await call('GET', '/api/profiles/p/published')).json(), {
    ...published,
    ...all,
    allowedOrigins: [],
  })
})

test('PATCH refuses the slug and bad values', async (t) => {
  const { call, profile } = await conductor(t)
  await profile('p')
  await call('POST', '/api/profiles/p/publish', {})
  for (const slug of ['other', 'p', null]) {
    const reply = await call('PATCH', '/api/profiles/p/published', { slug })
    assert.equal(reply.statusCode, 400)
    assert.match(reply.json().message, /slug cannot be changed/)
  }
  for (const body of [{ rateLimitRpm: 0 }, { allowedOrigins: ['*'] }, { enabled: 1 }, { authMode: 'none' }]) {
    assert.equal((await call('PATCH', '/api/profiles/p/published', body)).statusCode, 400)
  }
})

test('unpublish answers 204, and frees profile and slug at once', async (t) => {
  const { call, profile, database } = await conductor(t)
  for (const name of ['p', 'q']) await profile(name)
  const first = (await call('POST', '/api/profiles/p/publish', { slug: 'bot' })).json()
  assert.equal((await call('DELETE', '/api/profiles/p/published')).statusCode, 204)
  for (const method of ['GET', 'DELETE'] as const) {
    const reply = await call(method, '/api/profiles/p/published')
    assert.deepEqual([reply.statusCode, reply.json().error], [404, 'not_published'])
  }
  assert.equal((await call('POST', '/api/profiles/q/publish', { slug: 'bot' })).statusCode, 201)
  const again = (await call('POST', '/api/profiles/p/publish', {})).json()
  assert.notEqual(again.id, first.id)
  const history = { text: 'SELECT id FROM published_agents WHERE unpublished_at IS NOT NULL' }
  assert.deepEqual(await database.batch('acme', [history]), [[{ id: first.id }]])
})

test('deleting a profile unpublishes it, so that a new one of its name is not public', async (t) => {
  const { call, profile, database } = await conductor(t)
  await profile('p')
  await call('POST', '/api/profiles/p/publish', {})
  await database.batch('acme', [{ text: `DELETE FROM profiles WHERE name = 'p'` }])
  assert.deepEqual((await call('GET', '/api/published')).json(), [])
  await profile('p')
  assert.equal((await call('GET', '/api/profiles/p/published')).statusCode, 404)
})

test('the list is paged', async (t) => {
  const { call, profile } = await conductor(t)
  for (const name of ['a', 'b', 'c']) {
    await profile(name)
    await call('POST', `/api/profiles/${name}/publish`, {})
  }
  const page = await call('GET', '/api/published?limit=2&offset=2')
  assert.deepEqual(
    page.json<{ slug: string }[]>().map((a) => a.slug),
    ['c'],
  )
  assert.equal(page.headers['x-total-count'], '3')
  assert.equal(page.headers['link'], '</api/published?limit=2&offset=0>; rel="prev"')
})
