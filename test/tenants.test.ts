import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
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

const firstKey = 'bootstrap-of-the-test-0123456789'

test('the bootstrap key stops with its tenant', async (t) => {
  const { call, database } = await startConductor(t, { AGENT_ORC_BOOTSTRAP_KEY: firstKey })
  assert.equal((await call(firstKey, 'GET', '/api/profiles')).statusCode, 200)
  await database.systemBatch([{ text: `UPDATE tenants SET deleted_at = now() WHERE id = 'default'` }])
  assert.equal((await call(firstKey, 'GET', '/api/profiles')).statusCode, 401)
})

test('the bootstrap key is none beside the key of an owner, and brings one back when the last is revoked', async (t) => {
  const variables = { AGENT_ORC_BOOTSTRAP_KEY: firstKey, AGENT_ORC_BOOTSTRAP: 'until-owner' }
  const { call, issue } = await startConductor(t, variables)
  const [owner, admin] = [await issue('default', 'owner'), await issue('default', 'admin')]
  const minted = (await call(owner.token, 'POST', '/api/api-keys', { label: 'CI' })).json()
  assert.equal((await call(admin.token, 'POST', '/api/api-keys', { label: 'up', role: 'owner' })).statusCode, 403)
  for (const { id } of [owner, minted]) {
    assert.equal((await call(admin.token, 'DELETE', `/api/api-keys/${id}`)).statusCode, 403)
  }
  assert.equal((await call(firstKey, 'GET', '/api/profiles')).statusCode, 401)
  assert.equal((await call(owner.token, 'DELETE', `/api/api-keys/${owner.id}`)).statusCode, 204)
  for (const { token } of [owner, minted]) assert.equal((await call(token, 'GET', '/api/profiles')).statusCode, 401)
  const back = await call(firstKey, 'POST', '/api/api-keys', { label: 'ops', role: 'owner' })
  assert.deepEqual([back.statusCode, back.json().role, back.json().createdBy], [201, 'owner', 'bootstrap'])
})

test('what a revoked key had minted is revoked with it, and the audit log says so', async (t) => {
  const { call, issue } = await startConductor(t)
  const [owner, minter] = [await issue('acme', 'owner'), await issue('acme', 'admin')]
  const minted = (await call(minter.token, 'POST', '/api/api-keys', { label: 'CI' })).json()
  await call(owner.token, 'DELETE', `/api/api-keys/${minter.id}`)
  for (const { token } of [minter, minted]) assert.equal((await call(token, 'GET', '/api/profiles')).statusCode, 401)
  const log = (await call(owner.token, 'GET', '/api/audit?action=api-keys.delete')).json<Record<string, unknown>[]>()
  assert.deepEqual(
    log.map(({ target, status, actor }) => [target, status, actor]),
    [minted.id, minter.id].map((id) => [id, 204, { keyId: owner.id, role: 'owner' }]),
  )
})

test('a leaked key is revoked with the keys of agents that it and its line issued, if that is asked for', async (t) => {
  const { call, issue, gateway } = await startConductor(t)
  const [owner, leaked] = [await issue('acme', 'owner'), await issue('acme', 'admin')]
  const made = async (token: string, url: string, body: object) =>
    (await call(token, 'POST', url, body)).json<{ id: string; token: string; createdBy: string }>()
  await made(owner.token, '/api/profiles', { name: 'agent' })
  await made(owner.token, '/api/profiles/agent/publish', {})
  const agentKey = (token: string) => made(token, '/api/profiles/agent/keys', { label: 'l' })
  const mine = await agentKey(owner.token)
  const first = await agentKey(leaked.token)
  const child = await made(leaked.token, '/api/api-keys', { label: 'CI' })
  const second = await agentKey(child.token)
  const successor = await made(leaked.token, `/api/api-keys/${leaked.id}/rotate`, { graceSeconds: 60 })
  const third = await agentKey(successor.token)
  // Its token is known to whoever asked for the rotation.
  const fourth = await made(leaked.token, `/api/profiles/agent/keys/${mine.id}/rotate`, { graceSeconds: 60 })
  assert.deepEqual(
    [mine, first, second, third, fourth].map(({ createdBy }) => createdBy),
    [owner.id, leaked.id, child.id, successor.id, leaked.id],
  )
  const revoked = async (): Promise<string[]> =>
    (await call(owner.token, 'GET', '/api/profiles/agent/keys'))
      .json<{ id: string; revokedAt: string | null }[]>()
      .filter(({ revokedAt }) => revokedAt !== null)
      .map(({ id }) => id)
      .toSorted()
  const revoke = async (query: string): Promise<number> =>
    (await call(owner.token, 'DELETE', `/api/api-keys/${leaked.id}${query}`)).statusCode
  assert.equal(await revoke('?agentKeys=perhaps'), 400)
  assert.equal(await revoke(''), 204)
  assert.deepEqual(await revoked(), [], 'the public talks through them')
  for (let i = 0; i < 2; i++) assert.equal(await revoke('?agentKeys=true'), 204)
  assert.deepEqual(await revoked(), [first, second, third, fourth].map(({ id }) => id).toSorted())
  const log = await call(owner.token, 'GET', `/api/audit?action=api-keys.delete&target=${leaked.id}`)
  assert.deepEqual(
    log.json<{ status: number; detail?: object }[]>().map(({ status, detail }) => [status, detail]),
    [
      [204, { agentKeys: 0 }],
      [204, { agentKeys: 4 }],
      [204, undefined],
      [400, undefined],
    ],
  )
  const chat = async ({ token }: { token: string }): Promise<number> => {
    const headers = { authorization: `Bearer ${token}` }
    return (await gateway.inject({ method: 'POST', url: '/v1/chat/acme/agent', headers, payload: { message: '' } }))
      .statusCode
  }
  assert.deepEqual([await chat(fourth), await chat(mine)], [401, 400])
})

test('a key of an agent is issued before the key that issues it is revoked, or not at all', async (t) => {
  const { call, issue } = await startConductor(t)
  const owner = await issue('acme', 'owner')
  await call(owner.token, 'POST', '/api/profiles', { name: 'agent' })
  await call(owner.token, 'POST', '/api/profiles/agent/publish', {})
  for (let i = 0; i < 5; i++) {
    const minter = await issue('acme', 'admin')
    const issuing = Array.from({ length: 5 }, () =>
      call(minter.token, 'POST', '/api/profiles/agent/keys', { label: 'l' }),
    )
    const revoking = call(owner.token, 'DELETE', `/api/api-keys/${minter.id}?agentKeys=true`)
    const [revoked, ...issued] = await Promise.all([revoking, ...issuing])
    assert.equal(revoked!.statusCode, 204)
    for (const { statusCode } of issued) assert.ok([201, 401].includes(statusCode), String(statusCode))
  }
  const keys = (await call(owner.token, 'GET', '/api/profiles/agent/keys')).json<{ revokedAt: string | null }[]>()
  assert.ok(keys.every(({ revokedAt }) => revokedAt !== null))
})

test('a key is revoked with what it minted also when the audit log fails meanwhile', async (t) => {
  const { call, issue, database } = await startConductor(t)
  const [owner, minter] = [await issue('acme', 'owner'), await issue('acme', 'admin')]
  const minted = (await call(minter.token, 'POST', '/api/api-keys', { label: 'CI' })).json()
  // The entry of the request itself is taken, those of what went with it are not.
  await database.systemBatch([
    {
      text: `CREATE FUNCTION refuse_minted() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN IF NEW.target LIKE '${minted.id}' THEN RAISE EXCEPTION 'full'; END IF; RETURN NEW; END $$`,
    },
    { text: 'CREATE TRIGGER refuse BEFORE INSERT ON audit_entries FOR EACH ROW EXECUTE FUNCTION refuse_minted()' },
  ])
  assert.equal((await call(owner.token, 'DELETE', `/api/api-keys/${minter.id}`)).statusCode, 204)
  for (const { token } of [minter, minted]) assert.equal((await call(token, 'GET', '/api/profiles')).statusCode, 401)
})

test('a tenant comes with its first key, and is erased by the job of whichever conductor has it', async (t) => {
  const { call, issue } = await startConductor(t, { AGENT_ORC_MAX_KEY_LIFETIME: '90d' })
  const operator = await issue(adminTenant, 'admin')
  const created = await call(operator.token, 'POST', '/api/tenants', { id: 'initech', ownerKey: true })
  assert.deepEqual([created.statusCode, created.headers['cache-control']], [201, 'no-store'])
  const { token, expiresAt } = created.json().ownerKey
  const [key, ...others] = (await call(token, 'GET', '/api/api-keys')).json()
  assert.deepEqual([key.role, key.createdBy, key.expiresAt, others], ['owner', operator.id, expiresAt, []])
  assert.equal(Math.round((Date.parse(expiresAt) - Date.parse(key.createdAt)) / 86_400_000), 90)
  assert.equal((await call(operator.token, 'GET', '/api/tenants/initech')).json().ownerKey, undefined)
  await call(token, 'POST', '/api/profiles', { name: 'agent' })
  assert.equal((await call(operator.token, 'DELETE', '/api/tenants/initech?erase=true')).statusCode, 204)
  const erasure = async () =>
    (await call(operator.token, 'GET', '/api/tenants/initech?includeDeleted=true')).json().erasure
  while ((await erasure()).erasedAt === null) await nextTurn()
  const { rows } = await erasure()
  assert.deepEqual([rows.profiles, rows.tenant_api_keys], [1, 1])
  const find = async () =>
    (await call(operator.token, 'GET', '/api/audit?action=tenants.erase')).json() as {
      target: string
      status: number
    }[]
  while ((await find())[0]?.status !== 200) await nextTurn()
  assert.equal((await find())[0]!.target, 'initech')
  assert.equal((await call(operator.token, 'POST', '/api/tenants', { id: 'initech' })).statusCode, 409)
})
