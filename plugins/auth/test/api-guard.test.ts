import assert from 'node:assert/strict'
import { connect } from 'node:net'
import { test, type TestContext } from 'node:test'
import { access, type App, AppError, definePlugin, type Entry, type Plugin, unavailable } from '#kernel'
import { ApiGuard, roles, type TenantRole, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { type ReadinessCheck, ReadinessChecks } from '#contracts/health'
import { type GuardedRequests, overLimit, TenantLimits } from '#contracts/limits'
import { Signers } from '#contracts/signing'
import { fake, testKernel } from '#testing'
import auth from '../index.ts'

/** The plugin without the signed plane, which another test covers. */
const kernelOf = (t: TestContext, plugins: readonly (Entry | Plugin)[], listen = false) =>
  testKernel(t, [...plugins, fake(Signers, {})], { listen, listeners: ['conductor'] })

const hashOf = (token: string): Buffer => Buffer.from(`hash of ${token}`)
const tokens: Tokens = {
  mint: () => 'ao_dev_new',
  wellFormed: (token) => token.startsWith('ao_dev_'),
  hash: (domain, token) => hashOf(`${domain} ${token}`),
}

/** Answers the look-ups as the tables would, and counts round trips. */
function fakeDatabase(keys: Record<string, TenantRole>, owned = false) {
  const calls: { text: string; settings: unknown }[] = []
  const database = {
    async systemBatch(statements: readonly { text: string; values: readonly [Buffer] }[], settings: unknown) {
      const { text, values } = statements[0]!
      calls.push({ text, settings })
      const [wanted] = values
      const found = Object.keys(keys).find((token) => wanted.equals(hashOf(`ao:tenant-key:v1 ${token}`)))
      return [
        found === undefined
          ? []
          : [{ tenant_id: 'acme', id: `tak_${keys[found]}`, role: keys[found], here: true, stale: false }],
      ]
    },
    /** Answers whether the tenant of the bootstrap key has an owner key. */
    async unit(tenantId: string, { text }: { text: string }) {
      calls.push({ text, settings: undefined })
      if (tenantId === 'deleted') return []
      return [{ owned: tenantId === 'globex' && owned }]
    },
  }
  return { calls, database: database as unknown as Database }
}

const routes = (levels: readonly string[] = roles) =>
  definePlugin({
    name: 'routes',
    requires: { guard: ApiGuard },
    async setup({ deps, routes }) {
      routes('conductor', async (app) => {
        deps.guard.protect(app)
        for (const level of levels) app.get(`/${level}`, access(level), async (request) => deps.guard.callerOf(request))
        app.post('/write', access('admin'), async () => 'written')
      })
      routes('conductor', async (app) => {
        app.get('/open', access('public'), async () => 'open')
        app.get('/forgotten', access('public'), async (request) => deps.guard.callerOf(request))
      })
      return {}
    },
  })

const keys = { ao_dev_m: 'member', ao_dev_a: 'admin', ao_dev_o: 'owner' } as const

const first = 'bootstrap-of-the-test-0123456789'

async function conductor(
  t: TestContext,
  config: Record<string, unknown> = {},
  listen = false,
  owned = false,
  more: readonly Plugin[] = [],
) {
  const { calls, database } = fakeDatabase(keys, owned)
  const guard: Entry = { name: 'auth', plugin: auth, config }
  let checks: ReadonlyMap<string, ReadinessCheck> = new Map()
  const probe = definePlugin({
    name: 'probe',
    requires: { checks: ReadinessChecks },
    setup: async ({ deps }) => ((checks = deps.checks), {}),
  })
  const kernel = await kernelOf(
    t,
    [guard, probe, routes(), fake(Tokens, tokens), fake(Database, database), ...more],
    listen,
  )
  const get = (url: string, authorization?: string, headers: Record<string, string> = {}) =>
    kernel.listeners['conductor']!.inject({ url, headers: { ...headers, ...(authorization ? { authorization } : {}) } })
  return { kernel, get, calls, checks }
}

test('a bearer key acts in its own tenant with its own role', async (t) => {
  const { get } = await conductor(t)
  assert.deepEqual((await get('/member', 'Bearer ao_dev_a')).json(), {
    tenantId: 'acme',
    role: 'admin',
    keyId: 'tak_admin',
  })
  assert.equal((await get('/member', 'bearer  ao_dev_a')).statusCode, 200)
})

test('each role reaches exactly the routes of its level and below', async (t) => {
  const { get } = await conductor(t)
  for (const [token, role] of Object.entries(keys)) {
    for (const level of roles) {
      const allowed = roles.indexOf(role) >= roles.indexOf(level)
      const reply = await get(`/${level}`, `Bearer ${token}`)
      assert.equal(reply.statusCode, allowed ? 200 : 403, `${role} on ${level}`)
      if (!allowed) assert.equal(reply.json().error, 'forbidden')
    }
  }
})

test('no key, an unknown key and a malformed header are all the same 401', async (t) => {
  const { get, calls } = await conductor(t)
  const bad = [
    undefined,
    '',
    'Bearer',
    'Bearer ',
    'Basic ao_dev_m',
    'ao_dev_m',
    'Bearer "ao_dev_m"',
    "Bearer 'ao_dev_m'",
    'Bearer ao_dev_m,',
    'Bearer ao_dev_m, Bearer ao_dev_m',
    'Bearer ao_dev_m ao_dev_m',
    'Bearer ao_dev_m\0',
    'Bearer\tao_dev_m',
    'Bearer xo_dev_m',
    `Bearer ao_dev_${'m'.repeat(8_000)}`,
  ]
  for (const header of bad) {
    const reply = await get('/member', header)
    assert.equal(reply.statusCode, 401, String(header))
    assert.deepEqual(Object.keys(reply.json()), ['error', 'request_id', 'message'])
    assert.equal(reply.headers['www-authenticate'], 'Bearer')
  }
  // Only a well-formed key costs a look-up.
  assert.equal(calls.length, 1)
})

test('two Authorization headers, or one over the header limit, never authenticate', async (t) => {
  const { kernel } = await conductor(t, {}, true)
  const { hostname, port } = new URL(kernel.urls['conductor']!)
  const status = (head: string) =>
    new Promise<string>((resolve, reject) => {
      const socket = connect(Number(port), hostname, () => socket.write(head))
      socket.on('data', (data) => resolve(String(data).split(' ')[1]!)).on('error', reject)
      t.after(() => socket.destroy())
    })
  const request = (...lines: string[]) => ['GET /member HTTP/1.1', 'Host: localhost', ...lines, '', ''].join('\r\n')
  const good = 'Authorization: Bearer ao_dev_m'
  assert.equal(await status(request(good)), '200')
  assert.equal(await status(request(good, good)), '401')
  assert.equal(await status(request('AUTHORIZATION: Bearer ao_dev_x', good)), '401')
  assert.equal(await status(request(`Authorization: Bearer ${'a'.repeat(4 * 1024 * 1024)}`)), '431')
})

test('every request looks its key up, in one round trip, by the hash under row security', async (t) => {
  const { get, calls } = await conductor(t)
  await get('/member', 'Bearer ao_dev_m')
  await get('/member', 'Bearer ao_dev_m')
  assert.equal(calls.length, 2)
  assert.deepEqual(calls[0]!.settings, { 'app.auth_hash': hashOf('ao:tenant-key:v1 ao_dev_m').toString('hex') })
})

test('a tenant at its limit is refused before its key is looked up, and nobody gets in by that', async (t) => {
  const state = { spent: false, refuses: false }
  const asked: unknown[] = []
  const limits = {
    isSpent: (...of: unknown[]) => (asked.push(of), state.spent),
    guard: (app: App, { tenantOf }: GuardedRequests) =>
      app.addHook('onRequest', async (request) => {
        if (state.refuses && tenantOf(request) === 'acme') throw overLimit('readsPerMinute', 1)
      }),
  }
  const { get, calls } = await conductor(t, {}, false, false, [fake(TenantLimits, limits as unknown as TenantLimits)])
  const status = async (token: string, url = '/member') => (await get(url, `Bearer ${token}`)).statusCode
  Object.assign(state, { spent: true, refuses: true })
  assert.equal(await status('ao_dev_m'), 429)
  assert.equal(calls.length, 1, 'nobody knows yet whose key it is')
  state.spent = false
  state.refuses = false
  assert.equal(await status('ao_dev_m'), 200)
  Object.assign(state, { spent: true, refuses: true })
  assert.equal(await status('ao_dev_m'), 429)
  assert.equal(calls.length, 2, 'no further look-up')
  assert.deepEqual(asked.at(-1), ['acme', 'GET', 'writesPerMinute'])
  assert.equal(await status('ao_dev_x'), 401)
  assert.equal(await status('ao_dev_m', '/open'), 200)
  // The limit has room again between one look and the next: the key is looked up then.
  state.refuses = false
  assert.deepEqual([await status('ao_dev_m'), await status('ao_dev_m', '/admin')], [200, 403])
  assert.equal(calls.length, 5)
})

test('X-Tenant-ID is ignored, in any spelling', async (t) => {
  const { get } = await conductor(t)
  for (const name of ['X-Tenant-ID', 'x-tenant-id', 'X-TENANT-Id']) {
    assert.equal((await get('/member', 'Bearer ao_dev_m', { [name]: 'globex' })).json().tenantId, 'acme')
  }
})

test('a request is authenticated before its body is looked at', async (t) => {
  const { kernel } = await conductor(t)
  const post = (authorization: string) =>
    kernel.listeners['conductor']!.inject({
      method: 'POST',
      url: '/write',
      headers: { authorization, 'content-type': 'application/json' },
      body: '{',
    })
  assert.equal((await post('Bearer ao_dev_x')).statusCode, 401)
  assert.equal((await post('Bearer ao_dev_m')).statusCode, 403)
  assert.equal((await post('Bearer ao_dev_a')).statusCode, 400)
})

test('escapes in the path and HEAD go through the same guard', async (t) => {
  const { kernel } = await conductor(t)
  for (const [method, url] of [
    ['GET', '/%6dember'],
    ['HEAD', '/member'],
  ] as const) {
    assert.equal((await kernel.listeners['conductor']!.inject({ method, url })).statusCode, 401)
  }
})

test('the bootstrap key is owner of the bootstrap tenant, and needs no database', async (t) => {
  const { get } = await conductor(t, { bootstrapKey: first, bootstrapTenant: 'globex' })
  assert.deepEqual((await get('/owner', `Bearer ${first}`)).json(), {
    tenantId: 'globex',
    role: 'owner',
    keyId: 'bootstrap',
  })
  assert.equal((await get('/owner', `Bearer ${first.slice(0, -1)}z`)).statusCode, 401)
  assert.equal((await get('/owner', `Bearer ${first}-and-more`)).statusCode, 401)

  const guard: Entry = { name: 'auth', plugin: auth, config: { bootstrapKey: first } }
  const without = await kernelOf(t, [guard, routes(), fake(Tokens, tokens)])
  const call = (key: string) =>
    without.listeners['conductor']!.inject({ url: '/owner', headers: { authorization: `Bearer ${key}` } })
  assert.equal((await call(first)).json().tenantId, 'default')
  assert.equal((await call('ao_dev_o')).statusCode, 401)
})

test('the bootstrap key is no key once its tenant is gone, and costs one round trip like any other', async (t) => {
  const { get, calls } = await conductor(t, { bootstrapKey: first, bootstrapTenant: 'deleted' })
  assert.equal((await get('/owner', `Bearer ${first}`)).statusCode, 401)
  assert.equal(calls.length, 1)
})

test('the bootstrap key is no key beside the key of an owner, unless the role file says so', async (t) => {
  const config = { bootstrapKey: first, bootstrapTenant: 'globex' }
  const owned = await conductor(t, config, false, true)
  assert.equal((await owned.get('/member', `Bearer ${first}`)).statusCode, 401)
  const always = await conductor(t, { ...config, bootstrap: 'always' }, false, true)
  assert.equal((await always.get('/member', `Bearer ${first}`)).statusCode, 200)
})

test('the use of the bootstrap key is a warning, once a minute, and shown by /readyz', async (t) => {
  const { kernel, get, checks } = await conductor(t, { bootstrapKey: first })
  const check = checks.get('bootstrap-key')!
  assert.equal(await check(), undefined)
  for (let i = 0; i < 3; i++) await get('/member', `Bearer ${first}`)
  const warned = kernel.logs.filter(({ msg }) => String(msg).includes('AGENT_ORC_BOOTSTRAP_KEY'))
  assert.equal(warned.length, 1)
  assert.equal(warned[0]!['level'], 40)
  assert.match(
    String(await check()),
    /^AGENT_ORC_BOOTSTRAP_KEY was last used at .*; issue a key for an owner and unset it$/,
  )
})

test('a bootstrap key that no header could carry, or under 32 characters, refuses the boot', async (t) => {
  for (const bootstrapKey of [`two words ${first}`, 'first-key', 'x'.repeat(31)]) {
    const guard: Entry = { name: 'auth', plugin: auth, config: { bootstrapKey } }
    await assert.rejects(
      kernelOf(t, [guard, fake(Tokens, tokens)]),
      /bootstrapKey.* at least 32 characters/,
      bootstrapKey,
    )
  }
})

test('a key from an address that it is not for is 403, and on routes of operators nothing', async (t) => {
  const database = {
    systemBatch: async (_statements: unknown) => [
      [{ tenant_id: 'acme', id: 'tak_1', role: 'owner', here: false, stale: false }],
    ],
  } as unknown as Database
  const guard: Entry = { name: 'auth', plugin: auth, config: { adminTenant: 'acme' } }
  const all = routes([...roles, 'operator'])
  const kernel = await kernelOf(t, [guard, all, fake(Tokens, tokens), fake(Database, database)])
  const get = (url: string) =>
    kernel.listeners['conductor']!.inject({
      url,
      headers: { authorization: 'Bearer ao_dev_o' },
      remoteAddress: '192.0.2.1',
    })
  const { error, message } = (await get('/member')).json()
  assert.deepEqual([error, message], ['address_not_allowed', 'This key may not be used from the address 192.0.2.1.'])
  assert.equal((await get('/operator')).statusCode, 404)
})

test('a key of another tenant is looked up once on routes of operators, however often it asks there', async (t) => {
  const { calls, database } = fakeDatabase(keys)
  const guard: Entry = { name: 'auth', plugin: auth, config: { adminTenant: 'hq' } }
  const all = routes([...roles, 'operator'])
  const kernel = await kernelOf(t, [guard, all, fake(Tokens, tokens), fake(Database, database)])
  const headers = { authorization: 'Bearer ao_dev_a' }
  for (let n = 0; n < 5; n++) {
    const reply = await kernel.listeners['conductor']!.inject({ url: '/operator', headers })
    assert.deepEqual([reply.statusCode, reply.json().error], [404, 'not_found'])
  }
  assert.equal(calls.length, 1)
})

test('who tries too many wrong keys hears 429, costs no look-up, and locks nobody out who is known', async (t) => {
  const { kernel, calls } = await conductor(t, { wrongKeysPerMinute: 3, trustedProxies: '10.0.0.1' })
  const ask = (key: string | undefined, remoteAddress: string, forwarded?: string) =>
    kernel.listeners['conductor']!.inject({
      url: '/member',
      remoteAddress,
      headers: {
        ...(key === undefined ? {} : { authorization: `Bearer ${key}` }),
        ...(forwarded === undefined ? {} : { 'x-forwarded-for': forwarded }),
      },
    })
  assert.equal((await ask('ao_dev_m', '192.0.2.1')).statusCode, 200)
  for (const key of ['ao_dev_x', 'ao_dev_y', 'no-token']) assert.equal((await ask(key, '192.0.2.1')).statusCode, 401)
  // A request without a key does not count as a failed attempt.
  assert.equal((await ask(undefined, '192.0.2.1')).statusCode, 401)
  const before = calls.length
  for (const key of ['ao_dev_z', 'no-token', 'ao_dev_a']) {
    const reply = await ask(key, '192.0.2.1')
    assert.deepEqual([reply.statusCode, reply.json().error], [429, 'too_many_wrong_keys'])
    assert.match(String(reply.headers['retry-after']), /^([1-9]|[1-5]\d|60)$/)
  }
  assert.equal(calls.length, before, 'nothing was looked up')
  assert.equal((await ask('ao_dev_m', '192.0.2.1')).statusCode, 200, 'a key that worked before goes on')
  assert.equal((await ask('ao_dev_a', '192.0.2.2')).statusCode, 200, 'another address is not touched')
  // The address in a forwarding header counts only if it comes from a trusted proxy.
  assert.equal((await ask('ao_dev_z', '10.0.0.1', '192.0.2.1')).statusCode, 429)
  assert.equal((await ask('ao_dev_z', '10.0.0.1', '192.0.2.3')).statusCode, 401)
  assert.equal((await ask('ao_dev_z', '192.0.2.1', '192.0.2.4')).statusCode, 429)
  // Addresses of one IPv6 network are one client.
  for (const end of [1, 2, 3]) assert.equal((await ask('ao_dev_x', `2001:db8::${end}`)).statusCode, 401)
  assert.equal((await ask('ao_dev_x', '2001:db8::4')).statusCode, 429)
  assert.equal((await ask('ao_dev_x', '2001:db8:0:1::4')).statusCode, 401)
})

test('when the database is away the answer is 503, never a pass', async (t) => {
  const database = { systemBatch: () => Promise.reject(unavailable()) } as unknown as Database
  const kernel = await kernelOf(t, [auth, routes(), fake(Tokens, tokens), fake(Database, database)])
  const reply = await kernel.listeners['conductor']!.inject({
    url: '/member',
    headers: { authorization: 'Bearer ao_dev_m' },
  })
  assert.equal(reply.statusCode, 503)
})

test('without a pepper no key is accepted, and the answer says what is missing; the bootstrap key needs none', async (t) => {
  const unpeppered: Tokens = {
    ...tokens,
    hash() {
      throw new AppError('key_hashing_unavailable', 503)
    },
  }
  const guard: Entry = { name: 'auth', plugin: auth, config: { bootstrapKey: first } }
  const { database } = fakeDatabase(keys)
  const kernel = await kernelOf(t, [guard, routes(), fake(Tokens, unpeppered), fake(Database, database)])
  const get = (key: string) =>
    kernel.listeners['conductor']!.inject({ url: '/member', headers: { authorization: `Bearer ${key}` } })
  const reply = await get('ao_dev_m')
  assert.deepEqual([reply.statusCode, reply.json().error], [503, 'key_hashing_unavailable'])
  assert.equal((await get(first)).statusCode, 200)
})

test('a route of a protected scope without a role refuses the boot', async (t) => {
  for (const level of ['public', 'agent-key', 'service', 'root', 'operators']) {
    await assert.rejects(
      kernelOf(t, [auth, routes([level]), fake(Tokens, tokens)]),
      new RegExp(`GET /${level} is in a protected scope`),
    )
  }
})

test('other scopes are not touched, and a route that was never protected fails loudly', async (t) => {
  const { get } = await conductor(t)
  assert.equal((await get('/open')).body, 'open')
  assert.equal((await get('/forgotten', 'Bearer ao_dev_o')).statusCode, 500)
})
