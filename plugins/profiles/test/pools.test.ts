import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import type { BroadcastPage } from '#contracts/broadcast'
import type { Profile } from '#contracts/profiles'
import type { RunnerLink } from '#contracts/runner'
import type { Pool } from '../schema.ts'
import { conductor } from './conductor.ts'

/** A conductor with a runner that records of which tenants it is told changes. */
async function telling(t: TestContext) {
  const told: string[] = []
  const runner = {
    hash: 'abcdef01',
    takeBroadcast: async (tenantId: string, page: BroadcastPage) => (told.push(tenantId), page.revision),
  } as unknown as RunnerLink
  return { told, ...(await conductor(t, { runners: [runner] })) }
}

test('create answers 201 with the stored pool and its id, and broadcasts', async (t) => {
  const { call, told } = await telling(t)
  const body = { name: 'gpu', description: 'The big ones', runners: ['abcdef01'], runtimes: ['general', 'runtime_a'] }
  const reply = await call('POST', '/api/pools', body)
  assert.equal(reply.statusCode, 201)
  const { id, createdAt, ...rest } = reply.json<Pool>()
  assert.match(id, /^pool_/)
  assert.match(createdAt, /^\d{4}-.*Z$/)
  assert.deepEqual(rest, body)
  assert.deepEqual(told, ['acme'])
  const small = (await call('POST', '/api/pools', { name: 'any' })).json<Pool>()
  assert.deepEqual(Object.keys(small).toSorted(), ['createdAt', 'id', 'name'])
  assert.deepEqual((await call('GET', '/api/pools')).json(), [small, reply.json()])
})

test('the list is paged like the others', async (t) => {
  const { call } = await conductor(t)
  for (const name of ['a', 'b', 'c']) await call('POST', '/api/pools', { name })
  const page = await call('GET', '/api/pools?limit=1&offset=1')
  assert.deepEqual(
    page.json<Pool[]>().map(({ name }) => name),
    ['b'],
  )
  assert.equal(page.headers['x-total-count'], '3')
  assert.match(String(page.headers['link']), /rel="prev".*rel="next"/)
})

test('a name is unique in its tenant only', async (t) => {
  const { call } = await conductor(t)
  await call('POST', '/api/pools', { name: 'gpu' })
  const again = await call('POST', '/api/pools', { name: 'gpu' })
  assert.deepEqual([again.statusCode, again.json().error], [409, 'conflict'])
  assert.equal((await call('POST', '/api/pools', { name: 'gpu' }, 'globex')).statusCode, 201)
})

test('a malformed pool is 400 with the field that is wrong', async (t) => {
  const { call, told } = await telling(t)
  for (const [body, path] of [
    [{}, 'body/name'],
    [{ name: 'a b' }, 'body/name'],
    [{ name: 'p', runners: [] }, 'body/runners'],
    [{ name: 'p', runners: ['http://runner:7060'] }, 'body/runners/0'],
    [{ name: 'p', runtimes: ['No Such'] }, 'body/runtimes/0'],
    [{ name: 'p', description: 'a\0b' }, 'body/description'],
    [{ name: 'p', size: 3 }, 'body/size'],
  ] as const) {
    const reply = await call('POST', '/api/pools', body)
    assert.equal(reply.statusCode, 400, JSON.stringify(body))
    assert.equal(reply.json().issues[0].path, path)
  }
  assert.deepEqual(told, [])
})

test('a pool that profiles name stays, and says which', async (t) => {
  const { call, told, database } = await telling(t)
  const { id } = (await call('POST', '/api/pools', { name: 'gpu' })).json<Pool>()
  for (const name of ['p1', 'p2']) await call('POST', '/api/profiles', { name, pool: 'gpu' })
  const refused = await call('DELETE', `/api/pools/${id}`)
  assert.equal(refused.statusCode, 409)
  assert.deepEqual([refused.json().error, refused.json().profiles], ['pool_in_use', ['p1', 'p2']])
  told.splice(0)
  await database.batch('acme', [{ text: `DELETE FROM profiles WHERE tenant_id = 'acme'` }])
  const deleted = await call('DELETE', `/api/pools/${id}`)
  assert.deepEqual([deleted.statusCode, deleted.body], [204, ''])
  assert.deepEqual(told, ['acme'])
  assert.deepEqual((await call('GET', '/api/pools')).json(), [])
})

test("another tenant's pool answers exactly like one that does not exist", async (t) => {
  const { call } = await conductor(t)
  const { id } = (await call('POST', '/api/pools', { name: 'gpu' }, 'globex')).json<Pool>()
  for (const unknown of [id, id.replace(/.$/, 'x'), 'nothing', '%00', 'gpu']) {
    const reply = await call('DELETE', `/api/pools/${unknown}`)
    assert.deepEqual([reply.statusCode, reply.json().error], [404, 'not_found'], unknown)
  }
  assert.deepEqual((await call('GET', '/api/pools')).json(), [])
  assert.equal((await call('GET', '/api/pools', undefined, 'globex')).json<Pool[]>().length, 1)
})

test('a profile names a pool that exists and is for its runtime', async (t) => {
  const { call, addPool } = await conductor(t)
  await addPool('gpu', { runners: ['abcdef01'] })
  await addPool('plain', { runtimes: ['general'] })
  const created = await call('POST', '/api/profiles', { name: 'p', pool: 'gpu' })
  assert.deepEqual([created.statusCode, created.json<Profile>().pool], [201, 'gpu'])
  // What placing needs is no part of what a client reads, or writes back.
  assert.equal('placement' in created.json(), false)
  assert.equal((await call('PUT', '/api/profiles/p', created.json())).statusCode, 200)
  for (const [method, url] of [
    ['POST', '/api/profiles'],
    ['PUT', '/api/profiles/p'],
  ] as const) {
    const unknown = await call(method, url, { name: 'p', pool: 'no such' })
    assert.deepEqual([unknown.statusCode, unknown.json().error], [400, 'unknown_pool: no such'])
    const other = await call(method, url, { name: 'p', pool: 'plain', runtime: 'runtime_a' })
    assert.deepEqual([other.statusCode, other.json().error], [400, 'pool_without_runtime'])
  }
  assert.equal((await call('PUT', '/api/profiles/p', { pool: 'a\0b' })).statusCode, 400)
  assert.equal((await call('PUT', '/api/profiles/p', {})).json<Profile>().pool, undefined)
})

test("another tenant's pool is an unknown one", async (t) => {
  const { call, addPool } = await conductor(t)
  await addPool('gpu')
  const reply = await call('POST', '/api/profiles', { name: 'p', pool: 'gpu' }, 'globex')
  assert.deepEqual([reply.statusCode, reply.json().error], [400, 'unknown_pool: gpu'])
})

test('the look-up before a run brings what the pool allows', async (t) => {
  const { call, addPool, profiles } = await conductor(t)
  await addPool('gpu', { runners: ['abcdef01', 'abcdef02'] })
  await addPool('any')
  await call('POST', '/api/profiles', { name: 'p', pool: 'gpu' })
  await call('POST', '/api/profiles', { name: 'q', pool: 'any' })
  await call('POST', '/api/profiles', { name: 'r' })
  const placement = async (name: string) => (await profiles.findPlaced('acme', name, true))?.profile.placement
  assert.deepEqual(await placement('p'), { runners: ['abcdef01', 'abcdef02'] })
  assert.deepEqual(await placement('q'), {})
  assert.equal(await placement('r'), undefined)
  assert.equal(await profiles.findPlaced('globex', 'p'), undefined)
  assert.equal((await profiles.find('acme', 'p'))?.placement, undefined)
})

test('a version whose pool is gone cannot be restored', async (t) => {
  const { call, addPool, removePool } = await conductor(t)
  await addPool('gpu')
  await call('POST', '/api/profiles', { name: 'p', pool: 'gpu' })
  await assert.rejects(removePool('gpu'), { constraint: 'profiles_pool' })
  await call('PUT', '/api/profiles/p', {})
  await removePool('gpu')
  const reply = await call('POST', '/api/profiles/p/versions/1/restore')
  assert.deepEqual([reply.statusCode, reply.json().error], [400, 'unknown_pool: gpu'])
})
