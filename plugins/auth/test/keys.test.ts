import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import type { FastifyRequest } from 'fastify'
import { AppError, definePlugin } from '#kernel'
import type { TenantRole, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { defaultLimits, overLimit } from '#contracts/limits'
import { databasePlugin, freshDatabase, testKernel } from '#testing'
import { apiKeyRoutes } from '../keys.routes.ts'
import { createApiKeyService, issueKey, type KeyServiceOptions } from '../keys.service.ts'
import { createKeyLookup } from '../keys.store.ts'

/** The test chooses the caller. The guard's own tests show how a key becomes a caller. */
const openGuard = (recorded: string[]) => ({
  record: async (_request: unknown, targets: readonly string[]) => void recorded.push(...targets),
  callerOf: ({ headers }: Pick<FastifyRequest, 'headers'>) => ({
    tenantId: String(headers['tenant']),
    role: headers['role'] as TenantRole,
    keyId: String(headers['key']),
  }),
})

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

interface SeededFields {
  readonly expiresAt?: string
  readonly addresses?: string[]
  readonly createdBy?: string
  readonly replaces?: string
}

type Bounds = Partial<Pick<KeyServiceOptions, 'limits' | 'maxLifetimeMs'>>
const keysPerMember = (max: number): Bounds => ({ limits: { of: () => ({ ...defaultLimits, keysPerMember: max }) } })

async function conductor(t: TestContext, tokens = countingTokens(), bounds: Bounds = {}) {
  const found: Database[] = []
  const recorded: string[] = []
  const mounted = definePlugin({
    name: 'mounted',
    requires: { database: Database },
    async setup({ deps: { database }, routes }) {
      found.push(database)
      const options = { database, tokens, limits: undefined, maxLifetimeMs: undefined, ...bounds }
      routes('conductor', async (app) => apiKeyRoutes(app, openGuard(recorded), createApiKeyService(options)))
      return {}
    },
  })
  const kernel = await testKernel(t, [await databasePlugin(await freshDatabase(t)), mounted])
  const call = (method: 'GET' | 'POST' | 'DELETE', url: string, who: Who = {}, body?: object) =>
    kernel.listeners['conductor']!.inject({
      method,
      url,
      headers: { tenant: 'acme', role: 'owner', key: 'bootstrap', ...who },
      ...(body ? { body } : {}),
    })
  const mint = async (who: Who, body: object = { label: 'l' }): Promise<string> =>
    (await call('POST', '/api/api-keys', who, body)).json().id
  const ids = async (who: Who): Promise<string[]> =>
    (await call('GET', '/api/api-keys', who)).json<{ id: string }[]>().map((k) => k.id)
  const database = found[0]!
  /** Inserts a key, by default one that no other key issued, like a key from a command. */
  const seed = async (id: string, role: TenantRole, fields: SeededFields = {}) => {
    const { expiresAt = null, addresses = null, createdBy = 'test', replaces = null } = fields
    const insert = {
      text: `INSERT INTO tenant_api_keys (tenant_id, id, label, role, key_hash, created_by, expires_at, allowed_addresses, replaces)
             VALUES ('acme', $1, 'l', $2, decode(md5($1), 'hex'), $3, $4, $5::cidr[], $6)`,
      values: [id, role, createdBy, expiresAt, addresses, replaces],
    }
    await database.batch('acme', [insert])
    return { role, key: id } as const
  }
  /** The ids of the keys of acme that are not revoked. */
  const standing = async (): Promise<string[]> => {
    const select = { text: 'SELECT id FROM tenant_api_keys WHERE revoked_at IS NULL ORDER BY id' }
    const [rows] = await database.batch<[{ id: string }[]]>('acme', [select])
    return rows.map(({ id }) => id)
  }
  /** The ids of the keys of acme that work. */
  const live = async (): Promise<string[]> => {
    const select = {
      text: `SELECT id FROM tenant_api_keys
             WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) ORDER BY id COLLATE "C"`,
    }
    const [rows] = await database.batch<[{ id: string }[]]>('acme', [select])
    return rows.map(({ id }) => id)
  }
  return { call, mint, ids, database, tokens, seed, standing, live, recorded }
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
    createdBy: 'bootstrap',
    replaces: null,
    lastUsedAt: null,
    expiresAt: '2099-01-02T02:04:05.000Z',
    allowedAddresses: null,
    mcpServers: [],
    mcpToolPermissions: {},
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
  const { call, seed } = await conductor(t)
  const levels = ['member', 'admin', 'owner'] as const
  for (const [i, role] of levels.entries()) {
    const who = await seed(`tak_${role}`, role)
    const inherited = await call('POST', '/api/api-keys', who, { label: 'l' })
    assert.equal(inherited.json().role, role)
    for (const [j, wanted] of levels.entries()) {
      const reply = await call('POST', '/api/api-keys', who, { label: 'l', role: wanted })
      assert.equal(reply.statusCode, j <= i ? 201 : 403, `${role} grants ${wanted}`)
      assert.equal(j <= i ? reply.json().role : reply.json().error, j <= i ? wanted : 'forbidden')
    }
  }
})

test('admins and owners see every key of the tenant, members only those they created', async (t) => {
  const { mint, ids, seed } = await conductor(t)
  const member = await seed('tak_m', 'member')
  const [theirs, mine] = [await mint(await seed('tak_a', 'admin')), await mint(member)]
  await mint({ tenant: 'globex' })
  for (const role of ['admin', 'owner'] as const) {
    assert.deepEqual(await ids({ role, key: 'tak_x' }), [mine, theirs, 'tak_a', 'tak_m'])
  }
  assert.deepEqual(await ids(member), [mine])
})

test('revoke answers 204, again and again, and members revoke only their own', async (t) => {
  const { call, mint, ids, seed } = await conductor(t)
  const member = await seed('tak_m', 'member')
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
  assert.equal((await ids({})).length, 3)
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
    { label: 'l', allowedAddresses: [] },
    { label: 'l', allowedAddresses: ['10.0.0.0/33'] },
    { label: 'l', allowedAddresses: ['example.com'] },
    { label: 'l', allowedAddresses: ['10.0.0.7/8'] },
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

// The rights that a key passes on to the keys that it issues. ADR 50.

test('a key is revoked with all that it minted, at any depth, and the others stay', async (t) => {
  const { call, mint, seed, standing, recorded } = await conductor(t)
  const owner = await seed('tak_o', 'owner')
  const child = await mint(owner)
  const grandchild = await mint({ key: child })
  const beside = await mint(await seed('tak_p', 'owner'))
  assert.equal((await call('DELETE', `/api/api-keys/${owner.key}`, { key: 'tak_p' })).statusCode, 204)
  assert.deepEqual(await standing(), ['tak_p', beside].toSorted())
  assert.deepEqual(recorded.toSorted(), [child, grandchild].toSorted(), 'what went with it is on record')
})

test('a key that is revoked mints nothing, also when both are asked for at once', async (t) => {
  const { call, seed, standing } = await conductor(t)
  await seed('tak_boss', 'owner')
  for (let i = 0; i < 10; i++) {
    const owner = await seed(`tak_${i}`, 'owner')
    const minting = Array.from({ length: 5 }, () => call('POST', '/api/api-keys', owner, { label: 'l' }))
    const [revoked, ...minted] = await Promise.all([call('DELETE', `/api/api-keys/tak_${i}`), ...minting])
    assert.equal(revoked!.statusCode, 204)
    for (const { statusCode } of minted) assert.ok([201, 401].includes(statusCode), String(statusCode))
    assert.deepEqual(await standing(), ['tak_boss'])
  }
})

test('a key expires with the one that minted it at the latest, and later is refused in a sentence', async (t) => {
  const { call, seed } = await conductor(t)
  const expiresAt = '2098-01-01T00:00:00.000Z'
  const owner = await seed('tak_o', 'owner', { expiresAt })
  const issue = (body: object) => call('POST', '/api/api-keys', owner, { label: 'l', ...body })
  assert.equal((await issue({})).json().expiresAt, expiresAt)
  assert.equal((await issue({ expiresAt })).json().expiresAt, expiresAt)
  assert.equal((await issue({ expiresAt: '2097-01-01T00:00:00Z' })).json().expiresAt, '2097-01-01T00:00:00.000Z')
  const late = await issue({ expiresAt: '2098-01-01T00:00:01Z' })
  assert.equal(late.statusCode, 400)
  assert.equal(
    late.json().message,
    `body/expiresAt must not be after ${expiresAt}, when the key that issues it expires`,
  )
})

test('with a longest lifetime no key lives longer, whoever mints it', async (t) => {
  const day = 86_400_000
  const { call, seed } = await conductor(t, countingTokens(), { maxLifetimeMs: day })
  const before = Date.now()
  for (const who of [{}, await seed('tak_o', 'owner')]) {
    const { expiresAt } = (await call('POST', '/api/api-keys', who, { label: 'l' })).json()
    assert.ok(Date.parse(expiresAt) >= before + day && Date.parse(expiresAt) <= Date.now() + day, expiresAt)
    const longer = new Date(before + 2 * day).toISOString()
    const refused = await call('POST', '/api/api-keys', who, { label: 'l', expiresAt: longer })
    assert.match(refused.json().message, /because keys of this server live no longer/)
  }
})

test('a longest lifetime holds for a key that replaces one, and for the first key of a tenant', async (t) => {
  const day = 86_400_000
  const { call, seed, database, tokens } = await conductor(t, countingTokens(), { maxLifetimeMs: day })
  const before = Date.now()
  const inADay = (expiresAt: string | null): void =>
    assert.ok(
      Date.parse(expiresAt!) >= before + day && Date.parse(expiresAt!) <= Date.now() + day,
      expiresAt ?? 'never',
    )
  const rotate = async (id: string, role: TenantRole, fields?: SeededFields) =>
    (await call('POST', `/api/api-keys/${id}/rotate`, await seed(id, role, fields), { graceSeconds: 604_800 })).json()
  const { expiresAt } = await rotate('tak_o', 'owner')
  inADay(expiresAt)
  const old = (await call('GET', '/api/api-keys')).json().find((key: { id: string }) => key.id === 'tak_o')
  assert.equal(old.expiresAt, expiresAt, 'the replaced key works no longer than the new one')
  const soon = new Date(before + day / 2).toISOString()
  assert.equal((await rotate('tak_m', 'member', { expiresAt: soon })).expiresAt, soon)

  const service = (maxLifetimeMs: number | undefined) =>
    createApiKeyService({ database, tokens, limits: undefined, maxLifetimeMs })
  inADay((await service(day).issueOwner('globex', 'tak_operator')).expiresAt)
  assert.equal((await service(undefined).issueOwner('globex', 'tak_operator')).expiresAt, null)
})

test('a key may be used from the addresses of the one that minted it, or from fewer', async (t) => {
  const { call, seed } = await conductor(t)
  const owner = await seed('tak_o', 'owner', { addresses: ['10.0.0.0/8', '2001:db8::/32'] })
  const issue = (...allowedAddresses: string[]) =>
    call('POST', '/api/api-keys', owner, { label: 'l', ...(allowedAddresses.length > 0 ? { allowedAddresses } : {}) })
  assert.deepEqual((await issue()).json().allowedAddresses, ['10.0.0.0/8', '2001:db8::/32'])
  const within = ['10.1.0.0/16', '10.0.0.7', '2001:db8:1::/48']
  assert.deepEqual((await issue(...within)).json().allowedAddresses, ['10.1.0.0/16', '10.0.0.7/32', '2001:db8:1::/48'])
  for (const wider of ['0.0.0.0/0', '11.0.0.1', '10.0.0.0/7', '2001:db9::/32', '::/0']) {
    const reply = await issue('10.0.0.7', wider)
    assert.equal(reply.statusCode, 400, wider)
    assert.match(reply.json().message, /^body\/allowedAddresses\/1 must be within .* 10\.0\.0\.0\/8, 2001:db8::\/32$/)
  }
  assert.match((await issue('10.1.2.3/16')).json().message, /must be the network itself: 10\.1\.0\.0\/16$/)
})

test('a member mints so many live keys, with those that they mint; a revoked one makes room', async (t) => {
  const { call, mint, seed } = await conductor(t, countingTokens(), keysPerMember(3))
  const member = await seed('tak_m', 'member')
  const first = await mint(member)
  await mint({ role: 'member', key: first })
  const third = await mint({ role: 'member', key: first })
  for (const key of ['tak_m', first, third]) {
    const reply = await call('POST', '/api/api-keys', { role: 'member', key }, { label: 'l' })
    const { error, limit, max, message } = reply.json()
    assert.deepEqual([reply.statusCode, error, limit, max], [409, 'limit_exceeded', 'keysPerMember', 3])
    assert.match(message, /^The limit keysPerMember of this tenant is 3/)
  }
  assert.equal((await call('POST', '/api/api-keys', await seed('tak_n', 'member'), { label: 'l' })).statusCode, 201)
  assert.equal((await call('POST', '/api/api-keys', await seed('tak_a', 'admin'), { label: 'l' })).statusCode, 201)
  assert.equal((await call('DELETE', `/api/api-keys/${third}`, { role: 'admin', key: 'tak_a' })).statusCode, 204)
  assert.equal((await call('POST', '/api/api-keys', member, { label: 'l' })).statusCode, 201)
  assert.equal((await call('POST', '/api/api-keys', member, { label: 'l' })).statusCode, 409)
})

test('many at once mint no more than that either', async (t) => {
  const { call, seed } = await conductor(t, countingTokens(), keysPerMember(3))
  const member = await seed('tak_m', 'member')
  const replies = await Promise.all(
    Array.from({ length: 8 }, () => call('POST', '/api/api-keys', member, { label: 'l' })),
  )
  assert.equal(replies.filter(({ statusCode }) => statusCode === 201).length, 3)
})

test("an admin revokes any key but an owner's", async (t) => {
  const { call, mint, seed, standing } = await conductor(t)
  const [owner, admin] = [await seed('tak_o', 'owner'), await seed('tak_a', 'admin')]
  const minted = await mint(owner)
  for (const id of ['tak_o', minted]) {
    const reply = await call('DELETE', `/api/api-keys/${id}`, admin)
    assert.deepEqual([reply.statusCode, reply.json().error], [403, 'forbidden'])
    assert.equal(reply.json().message, "Only owners may revoke an owner's key.")
  }
  const lower = (await call('POST', '/api/api-keys', owner, { label: 'l', role: 'admin' })).json().id
  assert.equal((await call('DELETE', `/api/api-keys/${lower}`, admin)).statusCode, 204)
  assert.equal((await call('DELETE', `/api/api-keys/tak_o`, owner)).statusCode, 204)
  assert.deepEqual(await standing(), ['tak_a'])
})

// How a key is replaced. ADR 55.

test('a key replaces itself by one like it, and is over at once, or when its grace ends', async (t) => {
  const { call, seed, live } = await conductor(t)
  const expiresAt = '2098-01-01T00:00:00.000Z'
  const fields = { expiresAt, addresses: ['10.0.0.0/8'] }
  const rotate = async (id: string, body?: object) =>
    (await call('POST', `/api/api-keys/${id}/rotate`, await seed(id, 'member', fields), body)).json()
  const { id, createdAt, token, ...rest } = await rotate('tak_now')
  assert.match(createdAt, /Z$/)
  assert.match(token, /^ao_test_/)
  assert.deepEqual(rest, {
    label: 'l',
    role: 'member',
    createdBy: 'test',
    replaces: 'tak_now',
    lastUsedAt: null,
    expiresAt,
    allowedAddresses: ['10.0.0.0/8'],
    mcpServers: [],
    mcpToolPermissions: {},
    revokedAt: null,
  })
  assert.deepEqual(await live(), [id])
  const later = await rotate('tak_later', { graceSeconds: 3600 })
  assert.deepEqual(await live(), [id, later.id, 'tak_later'].toSorted())
  const old = (await call('GET', '/api/api-keys')).json().find((key: { id: string }) => key.id === 'tak_later')
  assert.ok(old.expiresAt < expiresAt && old.revokedAt === null, old.expiresAt)
})

test('a key replaces those below it, and nobody else replaces a key', async (t) => {
  const { call, mint, seed } = await conductor(t)
  const [owner, admin] = [await seed('tak_o', 'owner'), await seed('tak_a', 'admin')]
  const child = await mint(owner)
  const grandchild = await mint({ key: child })
  const foreign = await mint({ tenant: 'globex' })
  const rotate = (id: string, who: Who) => call('POST', `/api/api-keys/${id}/rotate`, who)
  assert.equal((await rotate(grandchild, owner)).statusCode, 201)
  for (const [id, who, status, error] of [
    ['tak_o', admin, 403, 'forbidden'],
    [child, admin, 403, 'forbidden'],
    ['tak_a', owner, 403, 'forbidden'],
    ['tak_o', { role: 'owner', key: child }, 403, 'forbidden'],
    ['tak_a', await seed('tak_m', 'member'), 404, 'not_found'],
    [foreign, owner, 404, 'not_found'],
    ['tak_nothing', owner, 404, 'not_found'],
    ['%00', owner, 404, 'not_found'],
  ] as const) {
    const reply = await rotate(id, who)
    assert.deepEqual([reply.statusCode, reply.json().error], [status, error], id)
  }
  assert.equal((await rotate(await mint({}), {})).statusCode, 201, 'the bootstrap key has a line as well')
})

test('of one place there are two keys at most, and a key is replaced once, also by many at once', async (t) => {
  const { call, seed, live } = await conductor(t)
  const body = { graceSeconds: 60 }
  const rotate = (id: string, key = id) => call('POST', `/api/api-keys/${id}/rotate`, { role: 'admin', key }, body)
  await seed('tak_1', 'admin')
  const replies = await Promise.all(Array.from({ length: 5 }, () => rotate('tak_1')))
  assert.deepEqual(replies.map(({ statusCode }) => statusCode).toSorted(), [201, 409, 409, 409, 409])
  const second = replies.find(({ statusCode }) => statusCode === 201)!.json().id
  assert.deepEqual(await live(), ['tak_1', second].toSorted())
  const third = (await rotate(second)).json().id
  assert.deepEqual(await live(), [second, third].toSorted())
  assert.equal((await call('DELETE', `/api/api-keys/${third}`)).statusCode, 204)
  assert.equal((await rotate(third)).statusCode, 409)
})

test('what a key minted is its successor’s, which is revoked with it, and with all of them', async (t) => {
  for (const revoked of ['old', 'new'] as const) {
    const { call, mint, ids, seed, live, recorded } = await conductor(t)
    const old = await seed('tak_old', 'member')
    const child = await mint(old)
    const rotated = await call('POST', '/api/api-keys/tak_old/rotate', old, { graceSeconds: 60 })
    const successor = rotated.json().id
    assert.deepEqual(recorded.splice(0), [successor])
    assert.deepEqual(await ids({ role: 'member', key: successor }), [child])
    const late = await mint(old)
    assert.equal((await live()).length, 4)
    await call('DELETE', `/api/api-keys/${revoked === 'old' ? 'tak_old' : successor}`)
    assert.deepEqual(await live(), [])
    assert.equal(recorded.length, 3, `${child} ${late}`)
  }
})

test('a member who has as many keys as it may replaces one, and may have no more afterwards', async (t) => {
  const { call, mint, seed } = await conductor(t, countingTokens(), keysPerMember(1))
  const member = await seed('tak_m', 'member')
  let child = await mint(member)
  for (const graceSeconds of [0, 60]) {
    const rotated = await call('POST', `/api/api-keys/${child}/rotate`, member, { graceSeconds })
    assert.equal(rotated.statusCode, 201)
    child = rotated.json().id
    for (const key of ['tak_m', child]) {
      assert.equal((await call('POST', '/api/api-keys', { role: 'member', key }, { label: 'l' })).statusCode, 409)
    }
  }
})

const asMember = (key: string) => ({ role: 'member', key }) as const

test('what a replaced key mints in its grace is minted by its successor, within the bounds of both', async (t) => {
  const { call, ids, seed } = await conductor(t)
  const old = await seed('tak_old', 'member', { expiresAt: '2098-01-01T00:00:00.000Z', addresses: ['10.0.0.0/8'] })
  const successor = (await call('POST', '/api/api-keys/tak_old/rotate', old, { graceSeconds: 3600 })).json()
  const late = (await call('POST', '/api/api-keys', old, { label: 'l' })).json()
  const keys = (await call('GET', '/api/api-keys')).json<{ id: string; expiresAt: string }[]>()
  const graceEnds = keys.find(({ id }) => id === 'tak_old')!.expiresAt
  assert.deepEqual(
    [late.createdBy, late.role, late.allowedAddresses, late.expiresAt],
    [successor.id, 'member', ['10.0.0.0/8'], graceEnds],
  )
  for (const beyond of [{ allowedAddresses: ['11.0.0.1'] }, { expiresAt: successor.expiresAt }]) {
    assert.equal((await call('POST', '/api/api-keys', old, { label: 'l', ...beyond })).statusCode, 400)
  }
  assert.equal((await call('POST', '/api/api-keys', old, { label: 'l', role: 'admin' })).statusCode, 403)
  // Both tokens are of one holder, who can still end what either of them minted.
  assert.deepEqual(await ids(asMember(successor.id)), [late.id])
  assert.deepEqual(await ids(old), [late.id])
  const next = await call('POST', `/api/api-keys/${late.id}/rotate`, old)
  assert.equal(next.statusCode, 201)
  assert.equal((await call('DELETE', `/api/api-keys/${next.json().id}`, old)).statusCode, 204)
})

test('a member has no more keys for replacing its own, in the grace and after it', async (t) => {
  const { call, ids, seed, live } = await conductor(t, countingTokens(), keysPerMember(3))
  await seed('tak_1', 'member')
  const issue = (key: string) => call('POST', '/api/api-keys', asMember(key), { label: 'l' })
  const rotate = async (key: string): Promise<string> =>
    (await call('POST', `/api/api-keys/${key}/rotate`, asMember(key), { graceSeconds: 604_800 })).json().id
  const second = await rotate('tak_1')
  const replies = await Promise.all(Array.from({ length: 8 }, (_, i) => issue(i % 2 === 0 ? 'tak_1' : second)))
  const minted = replies.filter(({ statusCode }) => statusCode === 201).map((reply) => String(reply.json().id))
  assert.equal(minted.length, 3)
  // Ends the first one.
  const third = await rotate(second)
  for (const key of [second, third, ...minted]) assert.equal((await issue(key)).statusCode, 409, key)
  assert.deepEqual((await ids(asMember(third))).toSorted(), minted.toSorted())
  assert.equal((await call('DELETE', `/api/api-keys/${third}`)).statusCode, 204)
  assert.deepEqual(await live(), [])
})

test('keys that are stored under a replaced key count for its successor, which takes them over when it is replaced', async (t) => {
  const { call, ids, seed } = await conductor(t, countingTokens(), keysPerMember(3))
  const issue = async (key: string) => (await call('POST', '/api/api-keys', asMember(key), { label: 'l' })).statusCode
  // As earlier releases left them: one place whose first key is in its grace, and one whose first key is over.
  for (const [place, fields] of [
    ['grace', { expiresAt: new Date(Date.now() + 3_600_000).toISOString() }],
    ['over', { expiresAt: '2020-01-01T00:00:00Z' }],
  ] as const) {
    const [first, second] = [`tak_${place}1`, `tak_${place}2`]
    const children = [`tak_${place}x`, `tak_${place}y`]
    await seed(first, 'member', fields)
    await seed(second, 'member', { replaces: first })
    for (const child of children) await seed(child, 'member', { createdBy: first })
    assert.equal(await issue(children[0]!), 201)
    for (const key of [second, ...children]) assert.equal(await issue(key), 409, key)
    const rotated = (await call('POST', `/api/api-keys/${second}/rotate`, asMember(second))).json().id
    assert.deepEqual((await ids(asMember(rotated))).toSorted(), children)
    for (const key of [rotated, ...children]) assert.equal(await issue(key), 409, key)
    assert.equal((await call('DELETE', `/api/api-keys/${children[1]}`, asMember(rotated))).statusCode, 204)
    assert.equal(await issue(rotated), 201)
  }
})

test('a grace that is none is 400', async (t) => {
  const { call, seed } = await conductor(t)
  const owner = await seed('tak_o', 'owner')
  for (const body of [{ graceSeconds: -1 }, { graceSeconds: 604_801 }, { graceSeconds: '60' }, { grace: 1 }, []]) {
    const reply = await call('POST', '/api/api-keys/tak_o/rotate', owner, body)
    assert.deepEqual([reply.statusCode, reply.json().error], [400, 'invalid_request'], JSON.stringify(body))
  }
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

const here = '203.0.113.7'
const caller = { tenantId: 'acme', role: 'admin', keyId: 'tak_1', here: true }

test('a key is found by its hash before its tenant is known', async (t) => {
  const { lookup } = await stored(t)
  assert.deepEqual(await lookup.find(hash, here), caller)
  assert.equal(await lookup.find(Buffer.alloc(32, 8), here), undefined)
  await lookup.settled()
})

test('a revoked or expired key, or one of a deleted tenant, is unknown on the very next look-up', async (t) => {
  const { database, set, lookup } = await stored(t)
  for (const [off, on] of [
    ['revoked_at = now()', 'revoked_at = NULL'],
    ["expires_at = now() - interval '1 second'", "expires_at = now() + interval '1 hour'"],
  ] as const) {
    await set(off)
    assert.equal(await lookup.find(hash, here), undefined, off)
    await set(on)
    assert.deepEqual(await lookup.find(hash, here), caller, on)
  }
  assert.deepEqual(await lookup.alive('acme', ['tak_1', 'tak_2']), ['tak_1'])
  assert.deepEqual(await lookup.alive('globex', ['tak_1', 'tak_2']), ['tak_2'])
  await database.systemBatch([{ text: `UPDATE tenants SET deleted_at = now() WHERE id = 'acme'` }])
  assert.equal(await lookup.find(hash, here), undefined)
  assert.deepEqual(await lookup.alive('acme', ['tak_1']), [])
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
  await Promise.all([lookup.find(hash, here), lookup.find(hash, here)])
  const first = await lastUse()
  assert.equal(first.fresh, true)
  await set(`last_used_at = now() - interval '40 seconds'`)
  await lookup.find(hash, here)
  assert.equal((await lastUse()).fresh, false)
  await set(`last_used_at = now() - interval '61 seconds'`)
  await lookup.find(hash, here)
  assert.equal((await lastUse()).fresh, true)
})

test('a key used within the last minute costs no write', async () => {
  const database = {
    systemBatch: async () => [[{ tenant_id: 'acme', id: 'tak_1', role: 'admin', here: true, stale: false }]],
    batch: () => assert.fail('nothing to write'),
  } as unknown as Database
  const lookup = createKeyLookup(database, { warn: assert.fail })
  assert.deepEqual(await lookup.find(hash, here), caller)
  await lookup.settled()
})

test('a last use that cannot be recorded is logged and costs the request nothing', async () => {
  const logged: unknown[] = []
  const database = {
    systemBatch: async () => [[{ tenant_id: 'acme', id: 'tak_1', role: 'admin', here: true, stale: true }]],
    batch: () => Promise.reject(new Error('gone')),
  } as unknown as Database
  const lookup = createKeyLookup(database, { warn: (...args: unknown[]) => void logged.push(args) })
  assert.deepEqual(await lookup.find(hash, here), caller)
  await lookup.settled()
  assert.equal(logged.length, 1)
})

test('a key with addresses is found everywhere, and is for use from those alone', async (t) => {
  const { lookup, set } = await stored(t)
  await set(`allowed_addresses = '{10.0.0.0/8, 2001:db8::/32}'`)
  const from = async (address: string) => (await lookup.find(hash, address))?.here
  for (const address of ['10.0.0.1', '10.255.255.255', '2001:db8:ffff::1'])
    assert.equal(await from(address), true, address)
  // A socket of the machine has no address.
  for (const address of ['11.0.0.1', '203.0.113.7', '::1', '2001:db9::1', ''])
    assert.equal(await from(address), false, address)
  await lookup.settled()
})

test('a new key and a replacement count with all that their rows hold, and a full tenant gets a replacement only', async (t) => {
  const added: [string, number][] = []
  const few: (string | undefined)[] = []
  let full = false
  const stored = {
    add: (tenantId: string, bytes: number) => void added.push([tenantId, bytes]),
    isFull: () => full,
    admit: (_tenantId: string, name?: string) => {
      few.push(name)
      if (full && !name) throw overLimit('storedBytes', 1)
    },
  }
  const { call } = await conductor(t, countingTokens(), { limits: { of: () => defaultLimits, stored } })
  const mcpToolPermissions = { github: Array.from({ length: 500 }, (_, i) => `a_tool_of_some_length_${i}`) }
  const issued = await call('POST', '/api/api-keys', {}, { label: 'é', mcpToolPermissions })
  const key = issued.json<{ id: string }>().id
  const rotate = (id: string) => call('POST', `/api/api-keys/${id}/rotate`)
  const rotated = await rotate(key)
  assert.deepEqual([issued.statusCode, rotated.statusCode], [201, 201])
  const least = JSON.stringify(mcpToolPermissions).length
  assert.equal(added.length, 2)
  for (const [tenantId, bytes] of added) {
    assert.equal(tenantId, 'acme')
    assert.ok(bytes > least && bytes < least + 1_000, `${bytes} for ${least}`)
  }
  full = true
  const another = await call('POST', '/api/api-keys', {}, { label: 'more' })
  assert.deepEqual([another.statusCode, another.json<{ error: string }>().error], [409, 'limit_exceeded'])
  const asked = few.length
  assert.equal((await rotate(`${key.slice(0, -4)}none`)).statusCode, 404)
  assert.equal(few.length, asked, 'whoever replaces no key takes no place of those who do')
  assert.equal((await rotate(rotated.json<{ id: string }>().id)).statusCode, 201)
  assert.deepEqual(few.slice(asked), ['owner'])
  assert.equal(added.length, 3)
})
