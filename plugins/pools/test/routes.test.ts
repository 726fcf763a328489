import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { ApiGuard, type Guard } from '#contracts/auth'
import { Broadcast } from '#contracts/broadcast'
import { Database } from '#contracts/database'
import type { Pool } from '#contracts/pools'
import { databasePlugin, fake, freshDatabase, testKernel } from '#testing'
import pools from '../index.ts'

const openGuard: Guard = {
  protect() {},
  callerOf: ({ headers }) => ({ tenantId: String(headers['tenant'] ?? 'acme'), role: 'admin', keyId: 'tak_test' }),
}

async function conductor(t: TestContext) {
  const found: Database[] = []
  const told: string[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database },
    setup: async ({ deps }) => (found.push(deps.database), {}),
  })
  const kernel = await testKernel(t, [
    await databasePlugin(await freshDatabase(t)),
    fake(ApiGuard, openGuard),
    fake(Broadcast, { changed: async (tenantId) => void told.push(tenantId) }),
    pools,
    probe,
  ])
  const call = (method: 'GET' | 'POST' | 'DELETE', url: string, body?: object, tenant = 'acme') =>
    kernel.listeners['conductor']!.inject({ method, url, headers: { tenant }, ...(body ? { body } : {}) })
  const database = found[0]!
  /** As the plugin profiles stores it. */
  const addProfile = (name: string, pool: string) =>
    database.batch('acme', [
      {
        text: 'INSERT INTO profiles (tenant_id, name, id, document) VALUES ($1, $2, $2, $3)',
        values: ['acme', name, JSON.stringify({ pool })],
      },
    ])
  return { call, told, database, addProfile }
}

test('create answers 201 with the stored pool and its id, and broadcasts', async (t) => {
  const { call, told } = await conductor(t)
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
  const { call, told } = await conductor(t)
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
  const { call, told, database, addProfile } = await conductor(t)
  const { id } = (await call('POST', '/api/pools', { name: 'gpu' })).json<Pool>()
  for (const name of ['p1', 'p2']) await addProfile(name, 'gpu')
  const refused = await call('DELETE', `/api/pools/${id}`)
  assert.equal(refused.statusCode, 409)
  assert.deepEqual([refused.json().error, refused.json().profiles], ['pool_in_use', ['p1', 'p2']])
  assert.equal(told.length, 1)
  await database.batch('acme', [{ text: `DELETE FROM profiles WHERE tenant_id = 'acme'` }])
  const deleted = await call('DELETE', `/api/pools/${id}`)
  assert.deepEqual([deleted.statusCode, deleted.body], [204, ''])
  assert.equal(told.length, 2)
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
