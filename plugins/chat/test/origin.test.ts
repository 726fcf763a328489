import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Type } from '@sinclair/typebox'
import { access, AppError, definePlugin, judgeOrigins } from '#kernel'
import { testKernel } from '#testing'
import { readableWhenAway } from '../admission.ts'
import { gateway, publish, sql } from './gateway.ts'

const payload = { message: 'Hi' }
const allowed = 'https://app.example.com'
const foreign = [
  'null',
  '',
  'https://app.example.com.evil.test',
  'https://evil.test/https://app.example.com',
  'https://app.example.com@evil.test',
  'https://user:pass@app.example.com',
  'https://app.example.com:444',
  'https://app.example.com:443',
  'https://app.example.com/',
  'https://APP.example.com',
  'http://app.example.com',
  'https://sub.app.example.com',
  'https://app.example.com, https://evil.test',
  '*',
]

test('a request whose Origin is not exactly an allowed one answers 403 origin_not_allowed', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database, { origins: [allowed, 'http://localhost:3000'] })
  for (const origin of foreign) {
    for (const path of ['', '/stream']) {
      const reply = await app.inject({
        method: 'POST',
        url: agent.url + path,
        headers: { ...agent.auth, origin },
        payload,
      })
      assert.deepEqual([reply.statusCode, reply.json().error], [403, 'origin_not_allowed'], `'${origin}'`)
      assert.equal(reply.headers['access-control-allow-origin'], undefined)
    }
  }
  assert.equal(dispatch.started.length, 0)
  const none = await publish(database, { slug: 'none' })
  const reply = await app.inject({ method: 'POST', url: none.url, headers: { ...none.auth, origin: allowed }, payload })
  assert.equal(reply.statusCode, 403)
})

test('an allowed origin may read the reply, its ids and its limits; without Origin nothing is checked', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database, { origins: [allowed] })
  for (const path of ['', '/stream']) {
    const url = agent.url + path
    const reply = await app.inject({ method: 'POST', url, headers: { ...agent.auth, origin: allowed }, payload })
    assert.equal(reply.statusCode, 200)
    assert.equal(reply.headers['access-control-allow-origin'], allowed)
    assert.equal(reply.headers['vary'], 'Origin')
    assert.match(String(reply.headers['access-control-expose-headers']), /x-public-run-id.*ratelimit/)
    assert.equal(reply.headers['access-control-allow-credentials'], undefined)
    const plain = await app.inject({ method: 'POST', url, headers: agent.auth, payload })
    assert.equal(plain.statusCode, 200)
    assert.equal(plain.headers['access-control-allow-origin'], undefined)
    assert.equal(plain.headers['vary'], 'Origin')
  }
})

test('errors too can be read from an allowed origin, the 401 included', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database, { origins: [allowed] })
  const wrong = { authorization: 'Bearer ao_test_wrong' }
  const refused = await app.inject({ method: 'POST', url: agent.url, headers: { ...wrong, origin: allowed }, payload })
  assert.equal(refused.statusCode, 401)
  assert.equal(refused.headers['access-control-allow-origin'], allowed)
  const hidden = await app.inject({ method: 'POST', url: agent.url, headers: { ...wrong, origin: 'null' }, payload })
  assert.equal(hidden.statusCode, 401)
  assert.equal(hidden.headers['access-control-allow-origin'], undefined)
  const invalid = await app.inject({
    method: 'POST',
    url: agent.url,
    headers: { ...agent.auth, origin: allowed },
    payload: {},
  })
  assert.equal(invalid.statusCode, 400)
  assert.equal(invalid.headers['access-control-allow-origin'], allowed)
  const limited = await publish(database, { slug: 'limited', origins: [allowed], rpm: 1 })
  const headers = { ...limited.auth, origin: allowed }
  const post = () => app.inject({ method: 'POST', url: limited.url, headers, payload })
  await post()
  const gone = app.inject({ url: `${limited.url}/runs/prun_${'0'.repeat(33)}`, headers })
  for (const [reply, status] of [
    [await post(), 429],
    [await gone, 404],
  ] as const) {
    assert.equal(reply.statusCode, status)
    assert.equal(reply.headers['access-control-allow-origin'], allowed)
    assert.match(
      String(reply.headers['access-control-expose-headers']),
      /x-request-id.*retry-after.*idempotency-replayed/,
    )
    assert.equal(reply.headers['vary'], 'Origin')
  }
})

test('a preflight needs no key: allowed origins get 204, all others and unknown agents 403', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database, { origins: [allowed] })
  const preflight = (url: string, origin: string) =>
    app.inject({ method: 'OPTIONS', url, headers: { origin, 'access-control-request-method': 'POST' } })
  for (const path of ['', '/stream', '/runs/prun_x', '/runs/prun_x/stream', '/conversations/conv_x']) {
    const reply = await preflight(agent.url + path, allowed)
    assert.equal(reply.statusCode, 204)
    assert.equal(reply.headers['access-control-allow-origin'], allowed)
    assert.match(String(reply.headers['access-control-allow-methods']), /GET.*POST.*DELETE/)
    assert.match(
      String(reply.headers['access-control-allow-headers']),
      /authorization.*content-type.*last-event-id.*idempotency-key/,
    )
    assert.equal(reply.headers['access-control-max-age'], '600')
    assert.equal(reply.headers['vary'], 'Origin')
  }
  for (const origin of foreign.filter((o) => o !== ''))
    assert.equal((await preflight(agent.url, origin)).statusCode, 403)
  for (const url of [
    '/v1/chat/acme/unknown',
    '/v1/chat/nobody/helper',
    '/v1/chat/acme%01/helper',
    '/v1/chat/acme/x%01',
  ]) {
    assert.equal((await preflight(url, allowed)).statusCode, 403, url)
  }
  const plain = await app.inject({ method: 'OPTIONS', url: agent.url })
  assert.deepEqual([plain.statusCode, plain.headers['allow']], [204, 'GET, POST, DELETE, OPTIONS'])
})

test('a script of any origin can read that the gateway is away, and nothing else', async (t) => {
  const away = definePlugin({
    name: 'away',
    async setup(ctx) {
      ctx.routes('gateway', async (app) => {
        judgeOrigins(app)
        app.addHook('onSend', async (request, reply) => readableWhenAway(request, reply))
        const schema = { params: Type.Object({ status: Type.Integer() }) }
        app.get('/:status', { ...access('public'), schema }, async ({ params: { status } }) => {
          throw new AppError('unavailable', status, { headers: { 'retry-after': '1' } })
        })
      })
      return {}
    },
  })
  const { listeners } = await testKernel(t, [away], { listeners: ['gateway'] })
  const readable = async (status: number, origin?: string): Promise<unknown> => {
    const headers = origin === undefined ? {} : { origin }
    const reply = await listeners['gateway']!.inject({ url: `/${status}`, headers })
    assert.equal(reply.statusCode, status)
    return reply.headers['access-control-allow-origin']
  }
  assert.equal(await readable(503, allowed), allowed)
  assert.equal(await readable(503), undefined)
  assert.equal(await readable(500, allowed), undefined)
  assert.equal(await readable(401, allowed), undefined)
})

test('a preflight waits for no work of the tenant that it names', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database, { origins: [allowed] })
  const { promise: over, resolve: end } = Promise.withResolvers<void>()
  const busy = Promise.allSettled(Array.from({ length: 20 }, () => database.tenant(agent.tenant, () => over)))
  const headers = { origin: allowed, 'access-control-request-method': 'POST' }
  const preflight = await app.inject({ method: 'OPTIONS', url: agent.url, headers })
  const keyless = await app.inject({ method: 'POST', url: agent.url, headers: { origin: allowed }, payload })
  end()
  await busy
  assert.equal(preflight.statusCode, 204)
  assert.deepEqual([keyless.statusCode, keyless.headers['access-control-allow-origin']], [401, allowed])
})

test('who names tenants that nobody knows, or foreign origins, is looked up for so often in a minute and no more', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database, { origins: [allowed] })
  const statements = t.mock.method(database, 'unit').mock
  const ask = async (url: string, remoteAddress: string, method: 'OPTIONS' | 'POST' = 'OPTIONS', origin = allowed) => {
    const body = method === 'POST' ? { payload } : {}
    const reply = await app.inject({ method, url, remoteAddress, headers: { origin }, ...body })
    return [reply.statusCode, reply.headers['access-control-allow-origin']]
  }
  t.mock.timers.enable({ apis: ['Date'], now: 60_000 })
  const stranger = '192.0.2.1'
  const answers = await Promise.all(
    Array.from({ length: 400 }, (_, i) =>
      ask(`/v1/chat/t${i}/a`, `::ffff:${stranger}`, i % 2 === 0 ? 'OPTIONS' : 'POST'),
    ),
  )
  const statuses = answers.map(([status]) => status)
  assert.equal(statuses.filter((status) => status === 429).length, 100)
  assert.equal(statements.callCount(), 300)
  assert.deepEqual(await ask(agent.url, '192.0.2.2'), [204, allowed], 'another address goes on')
  assert.deepEqual(await ask(agent.url, stranger), [204, allowed], 'what is remembered costs nothing')
  t.mock.timers.tick(1_000)
  assert.deepEqual(await ask(agent.url, stranger), [204, allowed], 'what was allowed lately, for others of the address')
  assert.deepEqual(await ask('/v1/chat/new/a', stranger), [429, allowed])
  t.mock.timers.tick(59_000)
  assert.deepEqual(await ask(agent.url, stranger), [204, allowed], 'in the next minute')
})

test('a flood of preflights for one agent is one look-up a second, and sees what has changed a second later', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database, { origins: [allowed] })
  const statements = t.mock.method(database, 'unit').mock
  const flood = async (origin: string) => {
    const headers = { origin }
    const asked = Array.from({ length: 50 }, () => app.inject({ method: 'OPTIONS', url: agent.url, headers }))
    return new Set((await Promise.all(asked)).map(({ statusCode }) => statusCode))
  }
  t.mock.timers.enable({ apis: ['Date'] })
  assert.deepEqual(await flood(allowed), new Set([204]))
  assert.deepEqual(await flood('https://evil.test'), new Set([403]))
  assert.equal(statements.callCount(), 1)
  await sql(database, agent.tenant, `UPDATE published_agents SET allowed_origins = '{}'`)
  t.mock.timers.tick(1_000)
  assert.deepEqual(await flood(allowed), new Set([403]))
  assert.equal(statements.callCount(), 2)
})
