import assert from 'node:assert/strict'
import { test } from 'node:test'
import { adminTenant, startConductor } from './conductor.ts'

test('no key of a deleted tenant works for one more request, on the conductor or on the gateway, until it is brought back', async (t) => {
  const { gateway, call, issue } = await startConductor(t)
  const operator = await issue(adminTenant, 'admin')
  const tenants = (method: 'POST' | 'PATCH' | 'DELETE', path: string, body?: object) =>
    call(operator.token, method, `/api/tenants${path}`, body)
  assert.equal((await tenants('POST', '', { id: 'initech' })).statusCode, 201)
  const owner = await issue('initech', 'owner')
  await call(owner.token, 'POST', '/api/profiles', { name: 'agent' })
  await call(owner.token, 'POST', '/api/profiles/agent/publish', {})
  const { token } = (await call(owner.token, 'POST', '/api/profiles/agent/keys', { label: 'l' })).json()
  const headers = { authorization: `Bearer ${token}` }
  const chat = '/v1/chat/initech/agent'
  const statuses = async (): Promise<number[]> => [
    (await call(owner.token, 'GET', '/api/profiles')).statusCode,
    // A run that could start would be accepted.
    (await call(owner.token, 'POST', '/api/runs', { profile: 'nobody', prompt: 'Hi' })).statusCode,
    // An unknown conversation is 404 to a good key.
    (await gateway.inject({ url: `${chat}/conversations/conv_none`, headers })).statusCode,
    (await gateway.inject({ method: 'POST', url: chat, headers, payload: { message: '' } })).statusCode,
  ]
  assert.deepEqual(await statuses(), [200, 400, 404, 400])
  assert.equal((await tenants('DELETE', '/initech')).statusCode, 204)
  assert.deepEqual(await statuses(), [401, 401, 401, 401])
  await assert.rejects(issue('initech', 'owner'), { code: 'unknown_tenant' })
  assert.equal((await tenants('PATCH', '/initech', { deleted: false })).statusCode, 200)
  assert.deepEqual(await statuses(), [200, 400, 404, 400])
})

test('the bootstrap key stops with its tenant', async (t) => {
  const { call, database } = await startConductor(t, { AGENT_ORC_BOOTSTRAP_KEY: 'first-key' })
  assert.equal((await call('first-key', 'GET', '/api/profiles')).statusCode, 200)
  await database.systemBatch([{ text: `UPDATE tenants SET deleted_at = now() WHERE id = 'default'` }])
  assert.equal((await call('first-key', 'GET', '/api/profiles')).statusCode, 401)
})

test('an admin may revoke any key of the tenant, the last owner’s too, and can grant no owner; the bootstrap key can', async (t) => {
  const { call, issue } = await startConductor(t, { AGENT_ORC_BOOTSTRAP_KEY: 'first-key' })
  const [owner, admin] = [await issue('default', 'owner'), await issue('default', 'admin')]
  const minted = (await call(owner.token, 'POST', '/api/api-keys', { label: 'CI' })).json()
  assert.equal((await call(admin.token, 'POST', '/api/api-keys', { label: 'up', role: 'owner' })).statusCode, 403)
  for (const { id } of [owner, minted]) {
    assert.equal((await call(admin.token, 'DELETE', `/api/api-keys/${id}`)).statusCode, 204)
  }
  assert.equal((await call(owner.token, 'GET', '/api/profiles')).statusCode, 401)
  const back = await call('first-key', 'POST', '/api/api-keys', { label: 'ops', role: 'owner' })
  assert.deepEqual([back.statusCode, back.json().role, back.json().createdBy], [201, 'owner', 'bootstrap'])
})

test('what a revoked key had minted stays valid', async (t) => {
  const { call, issue } = await startConductor(t)
  const minter = await issue('acme', 'admin')
  const minted = (await call(minter.token, 'POST', '/api/api-keys', { label: 'CI' })).json()
  await call(minter.token, 'DELETE', `/api/api-keys/${minter.id}`)
  assert.equal((await call(minter.token, 'GET', '/api/profiles')).statusCode, 401)
  assert.equal((await call(minted.token, 'GET', '/api/profiles')).statusCode, 200)
})
