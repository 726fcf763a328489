import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { AppError, definePlugin } from '#kernel'
import type { Guard, TenantRole, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { databasePlugin, freshDatabase, testKernel } from '#testing'
import { apiKeyRoutes } from '../keys.routes.ts'
import { createApiKeyService, issueKey } from '../keys.service.ts'
import { createKeyLookup } from '../keys.store.ts'

/** Each test says who calls. The guard's own tests show how a key becomes a caller. */
const openGuard: Guard = {
  protect() {},
  callerOf: ({ headers }) => ({
    tenantId: String(headers['tenant']),
    role: headers['role'] as TenantRole,
    keyId: String(headers['key']),
  }),
}

function countingTokens(): Tokens {
  let minted = 0
  return {
    mint: () => `ao_test_${++minted}`,
    wellFormed: () => true,
    hash: (domain, token) => createHash('sha256').update(`${domain} ${token}`).digest(),
  }
}

interface Who {
  readonly tenant?: string
  readonly role?: TenantRole
  readonly key?: string
}

async function conductor(t: TestContext, tokens = countingTokens()) {
  const found: Database[] = []
  const mounted = definePlugin({
    name: 'mounted',
    requires: { database: Database },
    async setup({ deps: { database }, routes }) {
      found.push(database)
      routes('conductor', async (app) => apiKeyRoutes(app, openGuard, createApiKeyService(database, tokens)))
      return {}
    },
  })
  const kernel = await testKernel(t, [await databasePlugin(await freshDatabase(t)), mounted])
  const call = (method: 'GET' | 'POST' | 'DELETE', url: string, who: Who = {}, body?: object) =>
    kernel.listeners['conductor']!.inject({
      method,
      url,
      headers: { tenant: 'acme', role: 'owner', key: 'tak_boss', ...who },
      ...(body ? { body } : {}),
    })
  const mint = async (who: Who, body: object = { label: 'l' }): Promise<string> =>
    (await call('POST', '/api/api-keys', who, body)).json().id
  const ids = async (who: Who): Promise<string[]> =>
    (await call('GET', '/api/api-keys', who)).json<{ id: string }[]>().map((k) => k.id)
  return { call, mint, ids, database: found[0]!, tokens }
}

test('issue answers 201 with the metadata and the token, which is stored only as a hash', async (t) => {
  const { call, database, tokens } = await conductor(t)
  const reply = await call(
    'POST',
    '/api/api-keys',
    {},
    { label: 'CI', role: 'member', expiresAt: '2099-01-02T03:04:05+01:00' },
  )
  assert.equal(reply.statusCode, 201)
  assert.equal(reply.headers['cache-control'], 'no-store')
  const { id, createdAt, ...rest } = reply.json()
  assert.match(id, /^tak_/)
  assert.match(createdAt, /Z$/)
  assert.deepEqual(rest, {
    label: 'CI',
    role: 'member',
    createdBy: 'tak_boss',
    lastUsedAt: null,
    expiresAt: '2099-01-02T02:04:05.000Z',
    revokedAt: null,
    token: 'ao_test_1',
  })
  const select = { text: `SELECT encode(key_hash, 'hex') AS hash, tenant_api_keys::text AS row FROM tenant_api_keys` }
  const [[row]] = await database.batch<[{ hash: string; row: string }[]]>('acme', [select])
  assert.equal(row!.hash, tokens.hash('ao:tenant-key:v1', 'ao_test_1').toString('hex'))
  assert.ok(!row!.row.includes('ao_test_1'))
})

test('lists show metadata of active and revoked keys, and never the token', async (t) => {
  const { call, mint } = await conductor(t)
  const [first, second] = [await mint({}, { label: 'one' }), await mint({}, { label: 'two' })]
  await call('DELETE', `/api/api-keys/${first}`)
  const reply = await call('GET', '/api/api-keys')
  const keys = reply.json<{ id: string; revokedAt: string | null }[]>()
  assert.deepEqual(
    keys.map(({ id, revokedAt }) => [id, revokedAt !== null]),
    [
      [second, false],
      [first, true],
    ],
  )
  assert.ok(!reply.body.includes('ao_test_'))
  const page = await call('GET', '/api/api-keys?limit=1')
  assert.equal(page.json().length, 1)
  assert.equal(page.headers['x-total-count'], '2')
  assert.match(String(page.headers['link']), /offset=1>; rel="next"/)
})

test("a key inherits its minter's role, may have a lower one, and never a higher one", async (t) => {
  const { call } = await conductor(t)
  const levels = ['member', 'admin', 'owner'] as const
  for (const [i, role] of levels.entries()) {
    const inherited = await call('POST', '/api/api-keys', { role }, { label: 'l' })
    assert.equal(inherited.json().role, role)
    for (const [j, wanted] of levels.entries()) {
      const reply = await call('POST', '/api/api-keys', { role }, { label: 'l', role: wanted })
      assert.equal(reply.statusCode, j <= i ? 201 : 403, `${role} grants ${wanted}`)
      assert.equal(j <= i ? reply.json().role : reply.json().error, j <= i ? wanted : 'forbidden')
    }
  }
})

test('admins and owners see every key of the tenant, members only those they created', async (t) => {
  const { mint, ids } = await conductor(t)
  const member = { role: 'member', key: 'tak_m' } as const
  const [theirs, mine] = [await mint({ role: 'admin', key: 'tak_a' }), await mint(member)]
  await mint({ tenant: 'globex' })
  for (const role of ['admin', 'owner'] as const) assert.deepEqual(await ids({ role, key: 'tak_x' }), [mine, theirs])
  assert.deepEqual(await ids(member), [mine])
})

test('revoke answers 204, again and again, and members revoke only their own', async (t) => {
  const { call, mint, ids } = await conductor(t)
  const member = { role: 'member', key: 'tak_m' } as const
  const [theirs, mine] = [await mint({}), await mint(member)]
  assert.equal((await call('DELETE', `/api/api-keys/${theirs}`, member)).statusCode, 404)
  const revokedAt = async (id: string): Promise<string | null> =>
    (await call('GET', '/api/api-keys')).json<{ id: string; revokedAt: string | null }[]>().find((k) => k.id === id)!
      .revokedAt
  assert.equal(await revokedAt(theirs), null)
  assert.equal((await call('DELETE', `/api/api-keys/${mine}`, member)).statusCode, 204)
  const first = await revokedAt(mine)
  assert.notEqual(first, null)
  assert.equal((await call('DELETE', `/api/api-keys/${mine}`, { role: 'admin', key: 'tak_a' })).statusCode, 204)
  assert.equal(await revokedAt(mine), first)
  assert.equal((await ids({})).length, 2)
})

test("another tenant's key answers exactly like one that does not exist", async (t) => {
  const { call, mint } = await conductor(t)
  const foreign = await mint({ tenant: 'globex' })
  for (const id of [foreign, 'tak_nothing', '%00', 'x', "tak_'--"]) {
    const reply = await call('DELETE', `/api/api-keys/${id}`)
    assert.deepEqual(
      [reply.statusCode, reply.json().error, Object.keys(reply.json())],
      [404, 'not_found', ['error', 'request_id', 'message']],
      id,
    )
  }
})

test('a malformed request is 400', async (t) => {
  const { call } = await conductor(t)
  for (const body of [
    {},
    { label: '' },
    { label: 'x'.repeat(201) },
    { label: 'a\0b' },
    { label: 'l', role: 'root' },
    { label: 'l', expiresAt: 'tomorrow' },
    { label: 'l', expiresAt: '2099-01-02' },
    { label: 'l', expiresAt: '2099-13-45T00:00:00Z' },
    { label: 'l', expiresAt: '2020-01-01T00:00:00Z' },
    { label: 'l', scope: 'x' },
  ]) {
    const reply = await call('POST', '/api/api-keys', {}, body)
    assert.equal(reply.statusCode, 400, JSON.stringify(body))
    assert.equal(reply.json().error, 'invalid_request')
  }
})

test('without a pepper, issuing answers with what the hashing says', async (t) => {
  const broken: Tokens = {
    ...countingTokens(),
    hash() {
      throw new AppError('key_hashing_unavailable', 503)
    },
  }
  const { call } = await conductor(t, broken)
  assert.equal((await call('POST', '/api/api-keys', {}, { label: 'l' })).json().error, 'key_hashing_unavailable')
})

test('the first key of an installation needs no caller, but a tenant that exists', async (t) => {
  const { database, tokens } = await conductor(t)
  const request = { tenantId: 'default', role: 'owner', label: 'first', createdBy: 'agent-orc key issue' } as const
  const issued = await issueKey(database, tokens, request)
  assert.equal(issued.role, 'owner')
  assert.equal(issued.createdBy, 'agent-orc key issue')
  await assert.rejects(issueKey(database, tokens, { ...request, tenantId: 'nobody' }), {
    code: 'unknown_tenant',
    message: /'nobody'/,
  })
})

// The look-up by which a caller is authenticated.

const hash = Buffer.alloc(32, 9)

async function stored(t: TestContext) {
  const found: Database[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database },
    setup: async ({ deps }) => (found.push(deps.database), {}),
  })
  await testKernel(t, [await databasePlugin(await freshDatabase(t)), probe])
  const database = found[0]!
  const insert = (tenant: string, id: string, key: Buffer) =>
    database.batch(tenant, [
      {
        text: `INSERT INTO tenant_api_keys (tenant_id, id, label, role, key_hash, created_by) VALUES ($1, $2, 'l', 'admin', $3, 'test')`,
        values: [tenant, id, key],
      },
    ])
  const set = (assignment: string) =>
    database.batch('acme', [{ text: `UPDATE tenant_api_keys SET ${assignment} WHERE id = 'tak_1'` }])
  await insert('acme', 'tak_1', hash)
  await insert('globex', 'tak_2', Buffer.alloc(32, 1))
  return { database, set, lookup: createKeyLookup(database, { warn: assert.fail }) }
}

const caller = { tenantId: 'acme', role: 'admin', keyId: 'tak_1' }

test('a key is found by its hash before its tenant is known', async (t) => {
  const { lookup } = await stored(t)
  assert.deepEqual(await lookup.find(hash), caller)
  assert.equal(await lookup.find(Buffer.alloc(32, 8)), undefined)
  await lookup.settled()
})

test('a revoked or expired key, or one of a deleted tenant, is unknown on the very next look-up', async (t) => {
  const { database, set, lookup } = await stored(t)
  for (const [off, on] of [
    ['revoked_at = now()', 'revoked_at = NULL'],
    ["expires_at = now() - interval '1 second'", "expires_at = now() + interval '1 hour'"],
  ] as const) {
    await set(off)
    assert.equal(await lookup.find(hash), undefined, off)
    await set(on)
    assert.deepEqual(await lookup.find(hash), caller, on)
  }
  assert.deepEqual(await Promise.all(['acme', 'nobody'].map(lookup.tenantLives)), [true, false])
  await database.systemBatch([{ text: `UPDATE tenants SET deleted_at = now() WHERE id = 'acme'` }])
  assert.equal(await lookup.find(hash), undefined)
  assert.equal(await lookup.tenantLives('acme'), false)
  await lookup.settled()
})

test('the policy of the look-up shows one row and lets nothing be written', async (t) => {
  const { database } = await stored(t)
  const seen = { 'app.auth_hash': hash.toString('hex') }
  const all = { text: 'SELECT id FROM tenant_api_keys' }
  assert.deepEqual(await database.systemBatch([all], seen), [[{ id: 'tak_1' }]])
  assert.deepEqual(await database.systemBatch([all]), [[]])
  const write = { text: `UPDATE tenant_api_keys SET role = 'owner' RETURNING id` }
  assert.deepEqual(await database.systemBatch([write], seen), [[]])
  assert.deepEqual(await database.systemBatch([{ text: 'DELETE FROM tenant_api_keys RETURNING id' }], seen), [[]])
})

test('the last use is recorded behind the request, at most once a minute', async (t) => {
  const { database, set, lookup } = await stored(t)
  const lastUse = async () => {
    await lookup.settled()
    const select = {
      text: `SELECT last_used_at AS at, last_used_at > now() - interval '30 seconds' AS fresh FROM tenant_api_keys`,
    }
    const [[row]] = await database.batch<[{ at: string | null; fresh: boolean | null }[]]>('acme', [select])
    return row!
  }
  assert.equal((await lastUse()).at, null)
  await Promise.all([lookup.find(hash), lookup.find(hash)])
  const first = await lastUse()
  assert.equal(first.fresh, true)
  await set(`last_used_at = now() - interval '40 seconds'`)
  await lookup.find(hash)
  assert.equal((await lastUse()).fresh, false)
  await set(`last_used_at = now() - interval '61 seconds'`)
  await lookup.find(hash)
  assert.equal((await lastUse()).fresh, true)
})

test('a key used within the last minute costs no write', async () => {
  const database = {
    systemBatch: async () => [[{ tenant_id: 'acme', id: 'tak_1', role: 'admin', stale: false }]],
    batch: () => assert.fail('nothing to write'),
  } as unknown as Database
  const lookup = createKeyLookup(database, { warn: assert.fail })
  assert.deepEqual(await lookup.find(hash), caller)
  await lookup.settled()
})

test('a last use that cannot be recorded is logged and costs the request nothing', async () => {
  const logged: unknown[] = []
  const database = {
    systemBatch: async () => [[{ tenant_id: 'acme', id: 'tak_1', role: 'admin', stale: true }]],
    batch: () => Promise.reject(new Error('gone')),
  } as unknown as Database
  const lookup = createKeyLookup(database, { warn: (...args: unknown[]) => void logged.push(args) })
  assert.deepEqual(await lookup.find(hash), caller)
  await lookup.settled()
  assert.equal(logged.length, 1)
})
