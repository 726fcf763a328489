import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type TestBody } from '#testing'
import { randomKey, stage } from './stage.ts'

const day = 24 * 60 * 60_000
const inDays = (days: number): string => new Date(Date.now() + days * day).toISOString()
const namesOf = (body: TestBody) => (body as unknown as TestBody[]).map(({ name }) => name)

test('a secret is created, listed without its value, replaced, restored and deleted', async (t) => {
  const { owner, resolve } = await stage(t)
  const made = await owner('POST', '/api/secrets', { name: 'github', key: 'GITHUB_TOKEN', value: 'one' })
  assert.equal(made.status, 201)
  const { name, key, version, createdAt, updatedAt, ...rest } = made.body
  assert.deepEqual([name, key, version, createdAt === updatedAt, rest], ['github', 'GITHUB_TOKEN', 1, true, {}])
  const again = await owner('POST', '/api/secrets', { name: 'github', value: 'x' })
  assert.deepEqual([again.status, again.body['error']], [409, 'conflict'])

  const replaced = await owner('PUT', '/api/secrets/github', { name: 'github', value: 'two' })
  assert.deepEqual([replaced.status, replaced.body['version'], replaced.body['key']], [200, 2, undefined])
  assert.equal((await resolve('secret://github')).body['value'], 'two')
  const restored = await owner('POST', '/api/secrets/github/versions/1/restore')
  assert.deepEqual([restored.status, restored.body['version']], [200, 3])
  // The cache must not answer with the former value.
  assert.equal((await resolve('secret://github')).body['value'], 'one')

  const versions = (await owner('GET', '/api/secrets/github/versions')).body as unknown as TestBody[]
  assert.deepEqual(
    versions.map((one) => [one['version'], one['restoredFrom'], one['createdBy']]),
    [
      [3, 1, 'bootstrap'],
      [2, undefined, 'bootstrap'],
      [1, undefined, 'bootstrap'],
    ],
  )
  await owner('POST', '/api/secrets', { name: 'another', value: 'x' })
  const list = await owner('GET', '/api/secrets?limit=1')
  assert.deepEqual([namesOf(list.body), list.headers['x-total-count']], [['another'], '2'])
  assert.doesNotMatch(JSON.stringify((await owner('GET', '/api/secrets')).body), /one|two/)

  assert.equal((await owner('DELETE', '/api/secrets/github')).status, 204)
  assert.equal((await owner('DELETE', '/api/secrets/github')).status, 404)
  assert.equal((await resolve('secret://github')).status, 404)
  for (const url of ['/api/secrets/github/versions', '/api/secrets/github/reads']) {
    assert.equal((await owner('GET', url)).status, 404)
  }
})

test('old values go when there are more than are kept', async (t) => {
  const { owner, database } = await stage(t)
  await owner('POST', '/api/secrets', { name: 'a', value: '0' })
  for (let i = 1; i <= 11; i++) await owner('PUT', '/api/secrets/a', { value: String(i) })
  const versions = (await owner('GET', '/api/secrets/a/versions')).body as unknown as TestBody[]
  assert.deepEqual([versions.length, versions.at(-1)!['version']], [10, 3])
  assert.equal((await owner('POST', '/api/secrets/a/versions/2/restore')).status, 404)
  const [one] = (await owner('GET', '/api/secrets')).body as unknown as TestBody[]
  assert.equal(one!['version'], 12, 'the restore that failed counted nothing')
  await owner('DELETE', '/api/secrets/a')
  const [left] = await database.batch<[object[]]>('default', [{ text: 'SELECT 1 FROM secret_versions' }])
  assert.deepEqual(left, [])
})

test('a secret that is about to expire is warned of, and an expired one is given out no more', async (t) => {
  const { owner, resolve, database } = await stage(t)
  await owner('POST', '/api/secrets', { name: 'later', value: 'x', expiresAt: inDays(15) })
  await owner('POST', '/api/secrets', { name: 'soon', value: 'x', expiresAt: inDays(13) })
  await owner('POST', '/api/secrets', { name: 'gone', value: 'x', expiresAt: inDays(1) })
  const expire = { text: `UPDATE secret_versions SET expires_at = now() WHERE tenant_id = 'default' AND name = 'gone'` }
  await database.batch('default', [expire])
  const list = (await owner('GET', '/api/secrets')).body as unknown as TestBody[]
  assert.deepEqual(
    list.map(({ name, warning }) => [name, warning]),
    [
      ['gone', 'expired'],
      ['later', undefined],
      ['soon', 'expires_soon'],
    ],
  )
  assert.equal((await resolve('secret://soon')).status, 200)
  const refused = await resolve('secret://gone')
  assert.deepEqual([refused.status, refused.body['error']], [410, 'secret_expired'])
  await owner('PUT', '/api/secrets/gone', { value: 'fresh' })
  assert.equal((await resolve('secret://gone')).body['value'], 'fresh')
})

test('bad input is a 400 that says what is wrong, and stores nothing', async (t) => {
  const { owner } = await stage(t)
  const good = { name: 'a', value: 'v' }
  const bodies: object[] = [
    {},
    { name: 'a' },
    { value: 'v' },
    { ...good, name: '' },
    { ...good, name: 'a/b' },
    { ...good, name: '../a' },
    { ...good, name: '${HOME}' },
    { ...good, name: 'a'.repeat(129) },
    { ...good, name: 'a\u0000' },
    { ...good, value: '' },
    { ...good, value: 7 },
    { ...good, value: '\ud800' },
    { ...good, key: 'NOT A NAME' },
    { ...good, expiresAt: 'tomorrow' },
    { ...good, expiresAt: '2020-01-01T00:00:00Z' },
    { ...good, expiresAt: '2999-02-30T00:00:00' },
    { ...good, expiresAt: '9999-12-31T23:59:59-14:00' },
    { ...good, secret: 'x' },
  ]
  for (const body of bodies) {
    const { status, body: answer } = await owner('POST', '/api/secrets', body)
    assert.deepEqual([status, answer['error']], [400, 'invalid_request'], JSON.stringify(body))
    assert.ok(String(answer['message']).length > 10)
  }
  await owner('POST', '/api/secrets', good)
  const renamed = await owner('PUT', '/api/secrets/a', { name: 'b', value: 'w' })
  assert.deepEqual([renamed.status, renamed.body['error']], [400, 'invalid_request'])
  for (const [method, url] of [
    ['PUT', '/api/secrets/b'],
    ['PUT', '/api/secrets/%00'],
    ['PUT', '/api/secrets/..%2fa'],
    ['DELETE', '/api/secrets/b'],
    ['POST', '/api/secrets/a/versions/2/restore'],
    ['POST', '/api/secrets/b/versions/1/restore'],
  ] as const) {
    const { status } = await owner(method, url, method === 'PUT' ? { value: 'w' } : undefined)
    assert.equal(status, 404, url)
  }
  assert.equal((await owner('POST', '/api/secrets/a/versions/0/restore')).status, 400)
  const [one] = (await owner('GET', '/api/secrets')).body as unknown as TestBody[]
  assert.equal(one!['version'], 1)
})

test('a tenant has so many secrets of such a size, and /api/limits says how many it has', async (t) => {
  const { owner } = await stage(t)
  await owner('PATCH', '/api/tenants/default', { limits: { secrets: 2, secretBytes: 10 } })
  const create = (name: string, value: string) => owner('POST', '/api/secrets', { name, value })
  assert.equal((await create('a', '0123456789')).status, 201)
  const large = await create('b', '01234567é9')
  assert.deepEqual([large.status, large.body['error'], large.body['limit']], [409, 'limit_exceeded', 'secretBytes'])
  assert.equal((await owner('PUT', '/api/secrets/a', { value: 'x'.repeat(11) })).status, 409)
  const [one, two] = await Promise.all([create('b', 'x'), create('c', 'x')])
  assert.deepEqual([one.status, two.status].toSorted(), [201, 409])
  assert.equal((await create('a', 'x')).body['error'], 'conflict')
  const { limits } = (await owner('GET', '/api/limits')).body as unknown as { limits: TestBody[] }
  const { max, used } = limits.find(({ name }) => name === 'secrets')!
  assert.deepEqual([max, used], [2, 2])
})

test('secrets are for admins: a member sees and changes none, and each write is on record', async (t) => {
  const { owner, withRole } = await stage(t)
  const [member, admin] = [await withRole('member'), await withRole('admin')]
  for (const [method, url, body] of [
    ['GET', '/api/secrets'],
    ['POST', '/api/secrets', { name: 'a', value: 'canary-value' }],
    ['GET', '/api/secrets/a/reads'],
  ] as const) {
    assert.equal((await member(method, url, body)).status, 403, url)
  }
  assert.equal((await admin('POST', '/api/secrets', { name: 'a', value: 'canary-value' })).status, 201)
  await admin('PUT', '/api/secrets/a', { value: 'canary-value' })
  await admin('POST', '/api/secrets/a/versions/1/restore')
  await admin('DELETE', '/api/secrets/a')
  const entries = (await owner('GET', '/api/audit?limit=10&q=secrets')).body as unknown as TestBody[]
  assert.deepEqual(
    entries.map(({ action, target, status }) => [action, target, status]),
    [
      ['secrets.delete', 'a', 204],
      ['secrets.versions.restore', 'a/1', 200],
      ['secrets.update', 'a', 200],
      ['secrets.create', 'a', 201],
      ['secrets.create', null, 403],
    ],
  )
  assert.doesNotMatch(JSON.stringify(entries), /canary-value/)
})

test('without a master key every route is a 503 that says so, behind its guard', async (t) => {
  const { owner, callerWith, resolve, secrets } = await stage(t, { AGENT_ORC_MASTER_KEY: '' })
  for (const [method, url, body] of [
    ['GET', '/api/secrets'],
    ['POST', '/api/secrets', { name: 'a', value: 'x' }],
    ['PUT', '/api/secrets/a', { value: 'x' }],
    ['DELETE', '/api/secrets/a'],
    ['GET', '/api/secrets/a/versions'],
    ['GET', '/api/secrets/a/reads'],
    ['POST', '/api/secrets/a/versions/1/restore'],
  ] as const) {
    const { status, body: answer } = await owner(method, url, body)
    assert.deepEqual([status, answer['error']], [503, 'secrets_unavailable'], url)
    assert.equal((await callerWith(undefined)(method, url, body)).status, 401, url)
  }
  assert.equal((await resolve('secret://a')).body['error'], 'secrets_unavailable')
  await assert.rejects(secrets.unknown('default', ['a']), { code: 'secrets_unavailable' })
  await assert.rejects(
    stage(t, { AGENT_ORC_MASTER_KEY: '', AGENT_ORC_MASTER_KEY_PREVIOUS: randomKey() }),
    /AGENT_ORC_MASTER_KEY/,
  )
})
