import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AppError } from '#kernel'
import type { Tokens } from '#contracts/auth'
import { overLimit, TenantLimits } from '#contracts/limits'
import { fake } from '#testing'
import { conductor, countingTokens } from './kernel.ts'

test('a key is answered once with its token, and stored as a hash of the published-key domain', async (t) => {
  const { call, profile, database, tokens } = await conductor(t)
  await profile('p')
  const agent = (await call('POST', '/api/profiles/p/publish', {})).json()
  const reply = await call('POST', '/api/profiles/p/keys', { label: 'web site' })
  assert.equal(reply.statusCode, 201)
  assert.equal(reply.headers['cache-control'], 'no-store')
  const { id, createdAt, ...rest } = reply.json()
  assert.match(id, /^key_/)
  assert.match(createdAt, /Z$/)
  assert.deepEqual(rest, {
    publishedId: agent.id,
    label: 'web site',
    createdBy: 'tak_test',
    lastUsedAt: null,
    expiresAt: null,
    allowedAddresses: null,
    revokedAt: null,
    token: 'ao_test_1',
  })
  const select = {
    text: `SELECT encode(key_hash, 'hex') AS hash, published_agent_keys::text AS row FROM published_agent_keys`,
  }
  const [[row]] = await database.batch<[{ hash: string; row: string }[]]>('acme', [select])
  assert.equal(row!.hash, tokens.hash('ao:pub-key:v1', 'ao_test_1').toString('hex'))
  assert.ok(!row!.row.includes('ao_test_1'))
})

test('lists show active and revoked keys as metadata only', async (t) => {
  const { call, profile } = await conductor(t)
  await profile('p')
  await call('POST', '/api/profiles/p/publish', {})
  const [first, second] = [
    (await call('POST', '/api/profiles/p/keys', { label: 'one' })).json(),
    (await call('POST', '/api/profiles/p/keys', { label: 'two' })).json(),
  ]
  await call('DELETE', `/api/profiles/p/keys/${first.id}`)
  const reply = await call('GET', '/api/profiles/p/keys')
  const keys = reply.json<{ id: string; revokedAt: string | null }[]>()
  assert.deepEqual(Object.keys(keys[0]!), [
    'id',
    'publishedId',
    'label',
    'createdAt',
    'createdBy',
    'lastUsedAt',
    'expiresAt',
    'allowedAddresses',
    'revokedAt',
  ])
  assert.deepEqual(
    keys.map(({ id, revokedAt }) => [id, revokedAt !== null]),
    [
      [second.id, false],
      [first.id, true],
    ],
  )
  const page = await call('GET', '/api/profiles/p/keys?limit=1&offset=1')
  assert.deepEqual([page.json().length, page.headers['x-total-count']], [1, '2'])
})

test('a key has the networks that it is issued for, and so has what replaces it', async (t) => {
  const { call, profile } = await conductor(t)
  await profile('p')
  await call('POST', '/api/profiles/p/publish', {})
  const issue = (allowedAddresses: unknown) => call('POST', '/api/profiles/p/keys', { label: 'l', allowedAddresses })
  const networks = ['10.0.0.0/8', '192.0.2.7/32', '2001:db8::/32']
  const issued = (await issue(['10.0.0.0/8', '192.0.2.7', '2001:db8::/32'])).json()
  assert.deepEqual(issued.allowedAddresses, networks)
  const rotated = (await call('POST', `/api/profiles/p/keys/${issued.id}/rotate`)).json()
  assert.deepEqual(rotated.allowedAddresses, networks)
  const listed = (await call('GET', '/api/profiles/p/keys')).json<{ allowedAddresses: string[] }[]>()
  assert.deepEqual(
    listed.map((key) => key.allowedAddresses),
    [networks, networks],
  )
  for (const [wrong, sentence] of [
    [['10.0.0.1/8'], /allowedAddresses\/0 must be the network itself: 10.0.0.0\/8/],
    [['10.0.0.0/8', 'example.com'], /allowedAddresses\/1 must be an IP address or a network/],
    [['fe80::1%eth0'], /allowedAddresses\/0 must be an IP address or a network/],
    [['::ffff:10.0.0.0/104'], /allowedAddresses\/0 must be written as IPv4/],
    [[], /allowedAddresses/],
  ] as const) {
    const reply = await issue(wrong)
    assert.equal(reply.statusCode, 400)
    assert.match(reply.json().message, sentence)
  }
})

test('revoke answers 204, again and again, and keeps the first time', async (t) => {
  const { call, profile } = await conductor(t)
  await profile('p')
  await call('POST', '/api/profiles/p/publish', {})
  const { id } = (await call('POST', '/api/profiles/p/keys', { label: 'l' })).json()
  const revokedAt = async (): Promise<string> => (await call('GET', '/api/profiles/p/keys')).json()[0].revokedAt
  assert.equal((await call('DELETE', `/api/profiles/p/keys/${id}`)).statusCode, 204)
  const first = await revokedAt()
  assert.match(first, /Z$/)
  assert.equal((await call('DELETE', `/api/profiles/p/keys/${id}`)).statusCode, 204)
  assert.equal(await revokedAt(), first)
})

test('a key expires when it was asked to, or with the key that issues it', async (t) => {
  const { call, profile, latest } = await conductor(t)
  await profile('p')
  await call('POST', '/api/profiles/p/publish', {})
  const issue = async (body: object) =>
    (await call('POST', '/api/profiles/p/keys', { label: 'l', ...body })).json().expiresAt
  assert.equal(await issue({ expiresAt: '2099-01-02T03:04:05+01:00' }), '2099-01-02T02:04:05.000Z')
  assert.equal(await issue({}), null)
  latest.at = new Date('2098-01-01T00:00:00Z')
  assert.equal(await issue({}), '2098-01-01T00:00:00.000Z')
  const listed = (await call('GET', '/api/profiles/p/keys')).json()
  assert.equal(listed[0].expiresAt, '2098-01-01T00:00:00.000Z')
})

test('a key is replaced by one like it, and is over at once, or when its grace ends', async (t) => {
  const { call, profile, latest } = await conductor(t)
  await profile('p')
  await call('POST', '/api/profiles/p/publish', {})
  const { id } = (await call('POST', '/api/profiles/p/keys', { label: 'site' })).json()
  const rotate = (key: string, body?: object) => call('POST', `/api/profiles/p/keys/${key}/rotate`, body)
  const expiries = async (): Promise<Record<string, string | null>> => {
    const keys = (await call('GET', '/api/profiles/p/keys')).json<{ id: string; expiresAt: string | null }[]>()
    return Object.fromEntries(keys.map((key) => [key.id, key.expiresAt]))
  }
  const second = await rotate(id, { graceSeconds: 3600 })
  assert.equal(second.statusCode, 201)
  const { id: next, label, token, expiresAt } = second.json()
  assert.deepEqual([label, token, expiresAt], ['site', 'ao_test_2', null])
  const grace = Date.parse((await expiries())[id]!) - Date.parse(second.json().createdAt)
  assert.equal(grace, 3_600_000)

  latest.at = new Date('2098-01-01T00:00:00Z')
  const third = await rotate(next)
  assert.equal(third.json().expiresAt, '2098-01-01T00:00:00.000Z', 'not longer than the key that asked')
  assert.equal((await expiries())[next], third.json().createdAt)
  const over = await rotate(next)
  assert.deepEqual([over.statusCode, over.json().error], [409, 'conflict'])
  await call('DELETE', `/api/profiles/p/keys/${third.json().id}`)
  assert.equal((await rotate(third.json().id)).statusCode, 409)
  for (const body of [{ graceSeconds: -1 }, { graceSeconds: 604_801 }]) {
    assert.equal((await rotate(id, body)).statusCode, 400)
  }
})

test('keys of a profile that is not published are 404 not_published', async (t) => {
  const { call, profile } = await conductor(t)
  await profile('p')
  for (const name of ['p', 'nobody', '%01']) {
    const issue = await call('POST', `/api/profiles/${name}/keys`, { label: 'l' })
    assert.deepEqual([issue.statusCode, issue.json().error], [404, 'not_published'])
    const list = await call('GET', `/api/profiles/${name}/keys`)
    assert.deepEqual([list.statusCode, list.json().error], [404, 'not_published'])
  }
})

test('keys die with their publication, and can still be revoked after it', async (t) => {
  const { call, profile } = await conductor(t)
  await profile('p')
  await call('POST', '/api/profiles/p/publish', {})
  const { id } = (await call('POST', '/api/profiles/p/keys', { label: 'l' })).json()
  await call('DELETE', '/api/profiles/p/published')
  assert.equal((await call('DELETE', `/api/profiles/p/keys/${id}`)).statusCode, 204)
  await call('POST', '/api/profiles/p/publish', {})
  assert.deepEqual((await call('GET', '/api/profiles/p/keys')).json(), [])
})

test('a key of another profile or tenant answers exactly like one that does not exist', async (t) => {
  const { call, profile } = await conductor(t)
  for (const [name, tenant] of [
    ['p', 'acme'],
    ['q', 'acme'],
    ['p', 'globex'],
  ] as const) {
    await profile(name, tenant)
    await call('POST', `/api/profiles/${name}/publish`, {}, tenant)
  }
  const sibling = (await call('POST', '/api/profiles/q/keys', { label: 'l' })).json()
  const foreign = (await call('POST', '/api/profiles/p/keys', { label: 'l' }, 'globex')).json()
  for (const id of [sibling.id, foreign.id, 'key_nothing', '%01', 'x']) {
    for (const reply of [
      await call('DELETE', `/api/profiles/p/keys/${id}`),
      await call('POST', `/api/profiles/p/keys/${id}/rotate`),
    ]) {
      assert.deepEqual(
        [reply.statusCode, reply.json().error, Object.keys(reply.json())],
        [404, 'not_found', ['error', 'request_id', 'message']],
        id,
      )
    }
  }
  assert.equal((await call('GET', '/api/profiles/p/keys', undefined, 'globex')).json()[0].revokedAt, null)
  assert.equal((await call('GET', '/api/profiles/q/keys')).json()[0].revokedAt, null)
})

test("another tenant's published agent answers exactly like a profile that does not exist", async (t) => {
  const { call, profile } = await conductor(t)
  await profile('theirs', 'globex')
  await call('POST', '/api/profiles/theirs/publish', {}, 'globex')
  const requests = [
    ['POST', 'publish', {}],
    ['GET', 'published'],
    ['PATCH', 'published', { enabled: false }],
    ['DELETE', 'published'],
    ['GET', 'keys'],
    ['POST', 'keys', { label: 'l' }],
    ['POST', 'keys/key_1/rotate', {}],
  ] as const
  for (const [method, path, body] of requests) {
    const [foreign, unknown] = [
      await call(method, `/api/profiles/theirs/${path}`, body),
      await call(method, `/api/profiles/nobody/${path}`, body),
    ]
    assert.equal(foreign.statusCode, 404, `${method} ${path}`)
    assert.deepEqual({ ...foreign.json<object>(), request_id: '' }, { ...unknown.json<object>(), request_id: '' })
  }
  assert.deepEqual((await call('GET', '/api/published')).json(), [])
  assert.equal((await call('GET', '/api/profiles/theirs/published', undefined, 'globex')).json().enabled, true)
})

test('a malformed request for a key is 400', async (t) => {
  const { call, profile } = await conductor(t)
  await profile('p')
  await call('POST', '/api/profiles/p/publish', {})
  for (const body of [
    {},
    { label: '' },
    { label: 1 },
    { label: 'a\0' },
    { label: 'x'.repeat(201) },
    { label: 'l', role: 'owner' },
    { label: 'l', expiresAt: 'tomorrow' },
  ]) {
    assert.equal((await call('POST', '/api/profiles/p/keys', body)).statusCode, 400, JSON.stringify(body))
  }
})

test('without a pepper, issuing answers with what the hashing says, and publishing works', async (t) => {
  const broken: Tokens = {
    ...countingTokens(),
    hash() {
      throw new AppError('key_hashing_unavailable', 503)
    },
  }
  const { call, profile } = await conductor(t, {}, broken)
  await profile('p')
  assert.equal((await call('POST', '/api/profiles/p/publish', {})).statusCode, 201)
  const reply = await call('POST', '/api/profiles/p/keys', { label: 'l' })
  assert.deepEqual([reply.statusCode, reply.json().error], [503, 'key_hashing_unavailable'])
})

test('a replacement counts for the stored bytes of its tenant as a new key does, and a full tenant gets it as well', async (t) => {
  const added: number[] = []
  let full = false
  const stored = {
    add: (_tenantId: string, bytes: number) => void added.push(bytes),
    isFull: () => full,
    admit: (_tenantId: string, few?: string) => {
      if (full && !few) throw overLimit('storedBytes', 1)
    },
  }
  const { call, profile } = await conductor(t, {}, countingTokens(), [
    fake(TenantLimits, { stored, uses: () => {} } as unknown as TenantLimits),
  ])
  await profile('p')
  await call('POST', '/api/profiles/p/publish', {})
  added.length = 0
  const { id } = (await call('POST', '/api/profiles/p/keys', { label: 'l' })).json()
  const rotated = await call('POST', `/api/profiles/p/keys/${id}/rotate`)
  assert.equal(rotated.statusCode, 201)
  assert.deepEqual(added, [401, 401])
  full = true
  const another = await call('POST', '/api/profiles/p/keys', { label: 'more' })
  assert.deepEqual([another.statusCode, another.json().error], [409, 'limit_exceeded'])
  assert.equal((await call('POST', `/api/profiles/p/keys/${rotated.json().id}/rotate`)).statusCode, 201)
  assert.deepEqual(added, [401, 401, 401])
})
