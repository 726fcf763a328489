import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Profile } from '#contracts/profiles'
import { conductor } from './conductor.ts'

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
