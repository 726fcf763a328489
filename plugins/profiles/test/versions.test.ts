import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Profile } from '#contracts/profiles'
import { conductor } from './conductor.ts'

interface Entry {
  version: number
  createdAt: string
  createdBy?: string
  restoredFrom?: number
  profile?: Profile
}

test('every create and update is a version, newest first, with who wrote it', async (t) => {
  const { call } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'p', model: 'a/1' }, 'acme', { key: 'tak_ada' })
  const second = await call('PUT', '/api/profiles/p', { model: 'a/2', version: 17 }, 'acme', { key: 'tak_bob' })
  assert.equal(second.json<Profile>().version, 2)
  const list = await call('GET', '/api/profiles/p/versions')
  assert.deepEqual(
    list.json<Entry[]>().map(({ createdAt, ...entry }) => (assert.match(createdAt, /Z$/), entry)),
    [
      { version: 2, createdBy: 'tak_bob' },
      { version: 1, createdBy: 'tak_ada' },
    ],
  )
  assert.equal(list.headers['x-total-count'], '2')
  assert.deepEqual((await call('GET', '/api/profiles/p/versions?limit=1&offset=1')).json<Entry[]>()[0]!.version, 1)
  const one = (await call('GET', '/api/profiles/p/versions/1')).json<Entry>()
  assert.equal(one.profile?.model, 'a/1')
  assert.equal(one.profile?.version, 1)
  assert.equal(one.createdAt, one.profile?.updatedAt)
  assert.deepEqual((await call('GET', '/api/profiles/p/versions/2')).json<Entry>().profile, second.json())
})

test('a restored version is a new one that equals the old, and history stays as it is', async (t) => {
  const { call } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'p', instructions: 'first', tools: ['calculate'] })
  await call('PUT', '/api/profiles/p', { instructions: 'second' })
  const before = (await call('GET', '/api/profiles/p/versions/1')).json<Entry>()
  const restored = await call('POST', '/api/profiles/p/versions/1/restore', undefined, 'acme', { key: 'tak_ada' })
  assert.equal(restored.statusCode, 200)
  const { version, updatedAt, ...rest } = restored.json<Profile>()
  const { version: _, updatedAt: __, ...old } = before.profile!
  assert.equal(version, 3)
  assert.deepEqual(rest, old)
  assert.deepEqual((await call('GET', '/api/profiles/p')).json(), restored.json())
  const entries = (await call('GET', '/api/profiles/p/versions')).json<Entry[]>()
  assert.deepEqual(entries[0], { version: 3, createdAt: updatedAt, createdBy: 'tak_ada', restoredFrom: 1 })
  assert.deepEqual(
    entries.map((entry) => entry.version),
    [3, 2, 1],
  )
  assert.deepEqual((await call('GET', '/api/profiles/p/versions/1')).json(), before)
  // The next write does not count as a restored version.
  await call('PUT', '/api/profiles/p', {})
  assert.equal((await call('GET', '/api/profiles/p/versions/4')).json<Entry>().restoredFrom, undefined)
})

test('20 concurrent updates are 20 consecutive versions, none lost', async (t) => {
  const { call } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'p' })
  const models = Array.from({ length: 20 }, (_, i) => `m/${i}`)
  const replies = await Promise.all(models.map((model) => call('PUT', '/api/profiles/p', { model })))
  const written = new Map(replies.map((reply) => [reply.json<Profile>().version, reply.json<Profile>().model]))
  const expected = models.map((_, i) => i + 2)
  assert.deepEqual(
    [...written.keys()].toSorted((a, b) => a! - b!),
    expected,
  )
  const entries = (await call('GET', '/api/profiles/p/versions')).json<Entry[]>()
  assert.deepEqual(
    entries.map(({ version }) => version),
    [...expected.toReversed(), 1],
  )
  // The writer that got the row last also has the latest time.
  assert.deepEqual(
    entries.map(({ createdAt }) => createdAt),
    entries.map(({ createdAt }) => createdAt).toSorted((a, b) => (a < b ? 1 : -1)),
  )
  for (const [version, model] of written) {
    const one = (await call('GET', `/api/profiles/p/versions/${version}`)).json<Entry>()
    assert.equal(one.profile?.model, model)
  }
  assert.deepEqual((await call('GET', '/api/profiles/p')).json<Profile>().model, written.get(21))
})

test('numbers go on when a profile is deleted and created again', async (t) => {
  const { call } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'p', model: 'a/1' })
  await call('PUT', '/api/profiles/p', { model: 'a/2' })
  await call('DELETE', '/api/profiles/p')
  for (const url of ['', '/1']) assert.equal((await call('GET', `/api/profiles/p/versions${url}`)).statusCode, 404)
  assert.equal((await call('POST', '/api/profiles/p/versions/1/restore')).statusCode, 404)
  const again = await call('POST', '/api/profiles', { name: 'p', model: 'a/3' })
  assert.equal(again.json<Profile>().version, 3)
  assert.equal((await call('GET', '/api/profiles/p/versions/1')).json<Entry>().profile?.model, 'a/1')
})

test('a write that is refused leaves no version behind', async (t) => {
  const { call, database } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'p', id: 'x' })
  await call('POST', '/api/profiles', { name: 'q', id: 'x' })
  await call('POST', '/api/profiles', { name: 'p' })
  await call('PUT', '/api/profiles/p', { id: 'other' })
  await call('PUT', '/api/profiles/p', { metadata: { text: 'a\0b' } })
  await call('PUT', '/api/profiles/p', { pool: 'nowhere' })
  const [rows] = await database.batch('acme', [{ text: 'SELECT profile, version FROM profile_versions' }])
  assert.deepEqual(rows, [{ profile: 'p', version: 1 }])
})

test('If-Match writes only over the version that was read', async (t) => {
  const { call } = await conductor(t)
  const created = await call('POST', '/api/profiles', { name: 'p' })
  assert.equal(created.headers['etag'], '"1"')
  const put = (match: string, body: object = {}) => call('PUT', '/api/profiles/p', body, 'acme', { 'if-match': match })
  const second = await put('"1"')
  assert.deepEqual([second.statusCode, second.headers['etag']], [200, '"2"'])
  const stale = await put('"1"')
  assert.equal(stale.statusCode, 412)
  const { error, version, message } = stale.json()
  assert.deepEqual([error, version], ['precondition_failed', 2])
  assert.match(message, /read it again/)
  assert.equal((await call('GET', '/api/profiles/p')).headers['etag'], '"2"')
  assert.equal((await put('"9", "2"')).statusCode, 200)
  assert.equal((await put('*')).statusCode, 200)
  // Strong comparison, and tags that are not ours, match nothing.
  for (const match of ['W/"4"', '"x"', '"04"', '"99999999999999999999"', '""'])
    assert.equal((await put(match)).statusCode, 412, match)
  assert.equal((await put('4')).statusCode, 400)
  assert.equal((await put('"4"', { id: 'other' })).json().error, 'conflict')
  const match = (value: string) => ({ 'if-match': value })
  const restore = (value: string) => call('POST', '/api/profiles/p/versions/1/restore', undefined, 'acme', match(value))
  assert.equal((await restore('"1"')).statusCode, 412)
  assert.equal((await restore('"4"')).headers['etag'], '"5"')
  const remove = (value: string) => call('DELETE', '/api/profiles/p', undefined, 'acme', match(value))
  assert.equal((await remove('"4"')).statusCode, 412)
  assert.equal((await remove('"5"')).statusCode, 204)
  assert.equal((await remove('"5"')).statusCode, 404)
  assert.equal((await put('"5"')).statusCode, 404)
})

test('of concurrent writers with one ETag exactly one wins', async (t) => {
  const { call } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'p' })
  const replies = await Promise.all(
    Array.from({ length: 10 }, () => call('PUT', '/api/profiles/p', {}, 'acme', { 'if-match': '"1"' })),
  )
  assert.deepEqual(replies.map(({ statusCode }) => statusCode).toSorted(), [200, ...Array(9).fill(412)])
})

test('versions of another tenant and unknown ones answer exactly the same, a number that is none is 400', async (t) => {
  const { call } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'p' }, 'globex')
  await call('POST', '/api/profiles', { name: 'mine' })
  for (const path of ['p/versions', 'p/versions/1', 'mine/versions/9', 'nobody/versions/1', '%00/versions/1']) {
    const reply = await call('GET', `/api/profiles/${path}`)
    assert.deepEqual([reply.statusCode, reply.json().error], [404, 'not_found'], path)
  }
  assert.equal((await call('POST', '/api/profiles/p/versions/1/restore')).statusCode, 404)
  for (const number of ['0', 'x', '1.5', '99999999999'])
    assert.equal((await call('GET', `/api/profiles/mine/versions/${number}`)).statusCode, 400, number)
})

test('a process of the release before knows nothing of versions, and its writes are versions all the same', async (t) => {
  const { call, database } = await conductor(t)
  const created = (await call('POST', '/api/profiles', { name: 'p' })).json<Profile>()
  const { name: _, id: __, version: ___, createdAt: ____, updatedAt: _____, ...document } = created
  const stored = (model: string) => JSON.stringify({ ...document, model })
  // The statements of that release, word for word.
  await database.batch('acme', [
    {
      text: `INSERT INTO profiles (tenant_id, name, id, document) VALUES ($1, $2, $3, $4) RETURNING name, id, document, created_at, updated_at`,
      values: ['acme', 'old', 'prof_old', stored('old/1')],
    },
    {
      text: `UPDATE profiles SET document = $3, updated_at = now()
               WHERE tenant_id = $1 AND name = $2 AND id = COALESCE($4, id) RETURNING name, id, document, created_at, updated_at`,
      values: ['acme', 'p', stored('old/2'), null],
    },
  ])
  const entry = (await call('GET', '/api/profiles/p/versions/2')).json<Entry>()
  assert.equal(entry.createdBy, undefined)
  assert.equal(entry.profile?.model, 'old/2')
  assert.equal((await call('GET', '/api/profiles/old/versions/1')).json<Entry>().profile?.model, 'old/1')
})
