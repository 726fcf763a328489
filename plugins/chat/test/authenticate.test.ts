import assert from 'node:assert/strict'
import { request } from 'node:http'
import { test } from 'node:test'
import type { App } from '#kernel'
import { overLimit } from '#contracts/limits'
import { addKey, gateway, publish, sql, until } from './gateway.ts'
import { finish } from './scripted-dispatch.ts'

const payload = { message: 'Hi' }

test('a missing, malformed, unknown, revoked or misplaced key answers the same 401 unauthorized on every route', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database)
  const sibling = await publish(database, { slug: 'sibling' })
  const stranger = await publish(database, { tenant: 'globex' })
  const revoked = await addKey(database, 'acme', agent.id)
  await sql(database, 'acme', 'UPDATE published_agent_keys SET revoked_at = now() WHERE id = $1', `key_${revoked}`)
  const headers = [
    undefined,
    '',
    'Bearer',
    'Bearer ',
    `Basic ${agent.key}`,
    agent.key,
    'Bearer ao_test_unknown',
    'Bearer sk-not-ours',
    `Bearer "${agent.key}"`,
    `Bearer ${agent.key} x`,
    `Bearer ${agent.key}, Bearer ${agent.key}`,
    `Bearer ${revoked}`,
    `Bearer ${sibling.key}`,
    `Bearer ${stranger.key}`,
  ]
  const routes = [
    { method: 'POST', url: agent.url, payload },
    { method: 'POST', url: `${agent.url}/stream`, payload },
    { method: 'GET', url: `${agent.url}/runs/prun_0123456789abcdefghjkmnpqr` },
    { method: 'GET', url: `${agent.url}/runs/prun_0123456789abcdefghjkmnpqr/stream` },
    { method: 'DELETE', url: `${agent.url}/runs/prun_0123456789abcdefghjkmnpqr` },
    { method: 'GET', url: `${agent.url}/conversations/conv_0123456789abcdefghjkmnpqr` },
    // An unknown tenant, an unknown agent, and names that cannot exist.
    { method: 'POST', url: '/v1/chat/nobody/helper', payload },
    { method: 'POST', url: '/v1/chat/acme%01/helper', payload },
    { method: 'POST', url: "/v1/chat/acme'--/helper", payload },
  ] as const
  const bodies = new Set<string>()
  for (const route of routes) {
    for (const authorization of headers) {
      const reply = await app.inject({ ...route, headers: authorization === undefined ? {} : { authorization } })
      assert.equal(reply.statusCode, 401, `${route.method} ${route.url} with ${authorization}`)
      assert.equal(reply.headers['www-authenticate'], 'Bearer')
      const { request_id: _, ...body } = reply.json()
      bodies.add(JSON.stringify(body))
    }
  }
  assert.equal(bodies.size, 1)
  assert.equal(JSON.parse([...bodies][0]!).error, 'unauthorized')
  for (const url of ['/v1/chat/acme/unknown', '/v1/chat/globex/helper', '/v1/chat/acme/sibling']) {
    const reply = await app.inject({ method: 'POST', url, headers: agent.auth, payload })
    assert.equal(reply.statusCode, 401, url)
  }
})

test('a key is checked before its request is read', async (t) => {
  const { app } = await gateway(t)
  const reply = await app.inject({
    method: 'POST',
    url: '/v1/chat/acme/helper',
    headers: { 'content-type': 'application/json' },
    payload: '{"message":',
  })
  assert.equal(reply.statusCode, 401)
})

test('a key that was revoked or has expired is refused on the very next request', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database)
  const chat = () => app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  for (let i = 0; i < 20; i++) {
    const field = i % 2 ? 'revoked_at' : 'expires_at'
    assert.equal((await chat()).statusCode, 200)
    await sql(database, 'acme', `UPDATE published_agent_keys SET ${field} = now()`)
    assert.equal((await chat()).statusCode, 401)
    await sql(database, 'acme', `UPDATE published_agent_keys SET ${field} = NULL`)
  }
})

test('a key with networks works from these only, also while it is remembered, and a page can read why', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const origin = 'https://shop.example'
  const agent = await publish(database, { origins: [origin] })
  await sql(database, 'acme', `UPDATE published_agent_keys SET allowed_addresses = '{10.1.0.0/16, 2001:db8::/32}'`)
  const ask = (remoteAddress: string, method: 'POST' | 'GET' = 'POST') => {
    const asked =
      method === 'POST' ? { url: agent.url, payload } : { url: `${agent.url}/runs/prun_0123456789abcdefghjkmnpqr` }
    return app.inject({ method, ...asked, remoteAddress, headers: { ...agent.auth, origin } })
  }
  const inside = ['10.1.2.3', '::ffff:10.1.2.3', '2001:db8::1']
  for (const address of [...inside, ...inside]) assert.equal((await ask(address)).statusCode, 200, address)
  const remembered = dispatch.started.splice(0).filter(({ chat }) => chat?.admission !== undefined)
  assert.equal(remembered.length, 5, 'all but the first')
  for (const method of ['POST', 'GET'] as const) {
    for (const address of ['10.2.0.1', '::ffff:10.2.0.1', '2001:db9::1', '127.0.0.1']) {
      const reply = await ask(address, method)
      assert.equal(reply.statusCode, 403, `${method} ${address}`)
      assert.equal(reply.json().error, 'address_not_allowed')
      assert.equal(reply.headers['access-control-allow-origin'], origin)
    }
  }
  assert.deepEqual(dispatch.started, [])
  // What is refused from elsewhere goes on working from inside.
  assert.equal((await ask('10.1.2.3')).statusCode, 200)
})

test('a known key is looked at by the start of its run alone, and is refused by nothing that is only remembered', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database, { rpm: 3 })
  const chat = (body: object = payload, headers: object = {}) =>
    app.inject({ method: 'POST', url: agent.url, headers: { ...agent.auth, ...headers }, payload: body })
  const admissions = () => dispatch.started.splice(0).map(({ chat }) => chat?.admission?.keyId)
  const key = { revoke: 'SET revoked_at = now()', restore: 'SET revoked_at = NULL' }
  const change = (set: string) => sql(database, 'acme', `UPDATE published_agent_keys ${set}`)

  assert.equal((await chat()).statusCode, 200)
  assert.equal((await chat()).statusCode, 200)
  assert.deepEqual(admissions(), [undefined, `key_${agent.key}`])

  // A repeat may join what its first request began, so its key is read.
  assert.equal((await chat(payload, { 'idempotency-key': 'k' })).statusCode, 200)
  assert.deepEqual(admissions(), [undefined])

  await change(key.revoke)
  assert.equal((await chat({ nonsense: true })).statusCode, 401, 'of an invalid request')
  await change(key.restore)
  assert.equal((await chat()).statusCode, 429)
  await change(key.revoke)
  assert.equal((await chat()).statusCode, 401, 'of one over its limit')
  assert.deepEqual(admissions(), [])
})

test('who goes on at a limit of its tenant is looked up once a second, not for each refusal', async (t) => {
  const chatsOf = { left: 1 }
  const guard = (app: App): void => {
    app.addHook('onRequest', async () => {
      if (chatsOf.left-- <= 0) throw overLimit('chatsPerMinute', 1)
    })
  }
  const { app, database } = await gateway(t, { limits: { guard } })
  const agent = await publish(database)
  const chat = async () =>
    (await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })).statusCode
  t.mock.timers.enable({ apis: ['Date'] })
  assert.equal(await chat(), 200)
  await sql(database, 'acme', 'UPDATE published_agent_keys SET revoked_at = now()')
  t.mock.timers.tick(999)
  assert.equal(await chat(), 429, 'it was looked up within this second')
  t.mock.timers.tick(1)
  assert.equal(await chat(), 401)
})

test('a change of the agent is there for the very next chat', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const chat = () => app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  assert.equal((await chat()).statusCode, 200)
  await sql(database, 'acme', `UPDATE published_agents SET webhook_url = 'https://new.example/hook'`)
  assert.equal((await chat()).statusCode, 200)
  assert.deepEqual(
    dispatch.started.map(({ webhook }) => webhook?.url),
    [undefined, undefined, 'https://new.example/hook'],
    'the start from memory began nothing',
  )
  assert.equal(dispatch.runs.size, 2)
})

test('the time and the rate that an agent allows are those of its last change, for the very next chat', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database, { rpm: 2, syncSeconds: 600 })
  const chat = () => app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  assert.equal((await chat()).statusCode, 200)
  dispatch.script = () => {}
  await sql(database, 'acme', 'UPDATE published_agents SET sync_max_duration_seconds = 1')
  const late = await chat()
  assert.deepEqual([late.statusCode, late.json().error], [504, 'sync_timeout'], 'no longer ten minutes')

  assert.equal((await chat()).statusCode, 429)
  await sql(database, 'acme', 'UPDATE published_agents SET rate_limit_rpm = 3, sync_max_duration_seconds = 600')
  dispatch.script = (_task, run) => run().emit(finish('Here'))
  const next = await chat()
  assert.deepEqual([next.statusCode, next.headers['ratelimit']], [200, '"key";r=0;t=60'])
})

test('what begins no run reads its key: with a key that was revoked a moment ago nothing is uploaded', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database)
  const post = (path: string, body: object | string, type: string) =>
    app.inject({
      method: 'POST',
      url: agent.url + path,
      headers: { ...agent.auth, 'content-type': type },
      payload: body,
    })
  const upload = async (): Promise<unknown[]> => {
    const reply = await post('/attachments', 'a file', 'text/plain')
    return [reply.statusCode, reply.json().error]
  }
  assert.equal((await post('', payload, 'application/json')).statusCode, 200)
  assert.deepEqual(await upload(), [503, 'uploads_unavailable'], 'this gateway has no store')
  await sql(database, 'acme', 'UPDATE published_agents SET enabled = false')
  assert.deepEqual(await upload(), [404, 'not_published'])
  await sql(database, 'acme', 'UPDATE published_agent_keys SET revoked_at = now()')
  assert.deepEqual(await upload(), [401, 'unauthorized'])
})

test('a key of a deleted tenant is refused on the very next request', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database)
  const chat = () => app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  assert.equal((await chat()).statusCode, 200)
  await database.systemBatch([{ text: `UPDATE tenants SET deleted_at = now() WHERE id = 'acme'` }])
  assert.equal((await chat()).statusCode, 401)
})

test('a valid key of an agent that is disabled or unpublished answers 404 not_published', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database)
  const chat = () => app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  await sql(database, 'acme', 'UPDATE published_agents SET enabled = false')
  assert.deepEqual([(await chat()).statusCode, (await chat()).json().error], [404, 'not_published'])
  await sql(database, 'acme', 'UPDATE published_agents SET enabled = true')
  assert.equal((await chat()).statusCode, 200)
  await sql(database, 'acme', 'UPDATE published_agents SET unpublished_at = now()')
  assert.deepEqual([(await chat()).statusCode, (await chat()).json().error], [404, 'not_published'])
  await sql(database, 'acme', 'UPDATE published_agents SET unpublished_at = NULL')
  await sql(database, 'acme', `UPDATE tenants SET deleted_at = now() WHERE id = 'acme'`)
  assert.equal((await chat()).statusCode, 401)
})

test('a key names its agent in any letter case of the scheme', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database)
  const headers = { authorization: `bEaReR ${agent.key}` }
  assert.equal((await app.inject({ method: 'POST', url: agent.url, headers, payload })).statusCode, 200)
})

test('a request that carries X-Tenant-ID is still of the tenant of its URL', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  dispatch.script = (_task, run) => run().emit(finish('mine'))
  const headers = { ...agent.auth, 'x-tenant-id': 'globex', 'X-TENANT-ID': 'globex' }
  assert.equal((await app.inject({ method: 'POST', url: agent.url, headers, payload })).statusCode, 200)
  assert.equal(dispatch.newest().tenantId, 'acme')
})

test('the last use of a key is on record, a second later at most', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database)
  await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  await until(async () => {
    const [row] = await sql<{ used: boolean }>(
      database,
      'acme',
      'SELECT last_used_at IS NOT NULL AS used FROM published_agent_keys',
    )
    return row!.used
  })
})

test('a look-up that fails is logged without the key, and is no 401', async (t) => {
  const { app, kernel, database } = await gateway(t)
  const agent = await publish(database)
  await sql(database, 'acme', 'ALTER TABLE published_agent_keys RENAME TO hidden')
  const reply = await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  assert.equal(reply.statusCode, 500)
  assert.equal(reply.json().error, 'internal')
  assert.ok(kernel.logs.some((line) => line['msg'] === 'auth.lookup_failed'))
  assert.ok(!JSON.stringify(kernel.logs).includes(agent.key))
})

test('two Authorization headers never authenticate, whichever is right', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database)
  const wrong = 'Bearer ao_test_wrong'
  for (const pair of [
    [`Bearer ${agent.key}`, wrong],
    [wrong, `Bearer ${agent.key}`],
    [`Bearer ${agent.key}`, `Bearer ${agent.key}`],
  ]) {
    await app.listen({ port: 0, host: '127.0.0.1' }).catch(() => {})
    const { port } = app.server.address() as { port: number }
    const status = await new Promise<number | undefined>((resolve, reject) => {
      const headers = [
        'host',
        'localhost',
        'authorization',
        pair[0]!,
        'authorization',
        pair[1]!,
        'content-type',
        'application/json',
      ]
      const sent = request(
        { port, host: '127.0.0.1', method: 'POST', path: agent.url, headers, agent: false },
        (answer) => {
          answer.resume()
          resolve(answer.statusCode)
        },
      )
      sent.on('error', reject).end(JSON.stringify(payload))
    })
    assert.equal(status, 401)
  }
})

test('who tries too many wrong keys hears 429, which a page may read, and locks nobody out who is known', async (t) => {
  const { app, database } = await gateway(t, { config: { wrongKeysPerMinute: 3 } })
  const agent = await publish(database)
  const other = await addKey(database, 'acme', agent.id)
  const ask = (key: string, url = agent.url, method: 'GET' | 'POST' = 'POST') =>
    app.inject({
      method,
      url,
      headers: { authorization: `Bearer ${key}`, origin: 'https://page.example' },
      ...(method === 'POST' ? { payload } : {}),
    })
  await sql(database, 'acme', `UPDATE published_agents SET allowed_origins = '{https://page.example}'`)
  assert.equal((await ask(agent.key)).statusCode, 200)
  for (const key of ['ao_test_x', 'ao_test_y', 'sk-not-ours']) assert.equal((await ask(key)).statusCode, 401)
  for (const key of ['ao_test_z', 'sk-not-ours', other]) {
    const reply = await ask(key)
    assert.deepEqual([reply.statusCode, reply.json().error], [429, 'too_many_wrong_keys'])
    assert.equal(reply.headers['access-control-allow-origin'], 'https://page.example')
    assert.ok(Number(reply.headers['retry-after']) >= 1)
  }
  assert.equal((await ask(agent.key)).statusCode, 200, 'a key that worked before goes on, from memory')
  const unknown = `${agent.url}/conversations/conv_0123456789abcdefghjkmnpqr`
  assert.equal((await ask(agent.key, unknown, 'GET')).statusCode, 404, 'and where it is read each time')
  await sql(database, 'acme', 'UPDATE published_agent_keys SET revoked_at = now()')
  assert.equal((await ask(agent.key)).statusCode, 401, 'revoked, it is refused as such')
  assert.equal((await ask(agent.key)).statusCode, 429, 'and then it is a wrong key like others')
})

test('wrong keys that come at once are looked up until there were too many, and no more', async (t) => {
  const { app, database } = await gateway(t, { config: { wrongKeysPerMinute: 3 } })
  const statements = t.mock.method(database, 'unit').mock
  const replies = await Promise.all(
    Array.from({ length: 60 }, (_, i) =>
      app.inject({
        method: 'POST',
        url: `/v1/chat/t${i}/a`,
        headers: { authorization: `Bearer ao_test_${i}` },
        payload,
      }),
    ),
  )
  const looked = statements.callCount()
  assert.ok(looked >= 3 && looked <= 10, `${looked} were looked up`)
  assert.equal(replies.filter(({ statusCode }) => statusCode === 429).length, 60 - looked)
})
