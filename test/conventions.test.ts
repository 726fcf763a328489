import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startConductor } from './conductor.ts'
import { operationsOf } from './openapi-operations.ts'
import { nameOf } from './route-table.ts'

test('every list answers whole without limit, and a page with it; both count all; HEAD says what GET says', async (t) => {
  const conductor = await startConductor(t, { AGENT_ORC_BILLING: 'ledger' })
  const { token } = await conductor.issue('acme', 'owner')
  await conductor.call(token, 'POST', '/api/billing/grants', { tenantId: 'acme', cents: 100 })
  for (const name of ['one', 'two', 'three']) {
    assert.equal((await conductor.call(token, 'POST', '/api/profiles', { name })).statusCode, 201)
    await conductor.call(token, 'POST', `/api/profiles/${name}/publish`)
    await conductor.call(token, 'POST', '/api/pools', { name })
  }
  const ask = (url: string, method: 'GET' | 'HEAD' = 'GET') =>
    conductor.app.inject({ method, url, headers: { authorization: `Bearer ${token}` } })
  const lengths: Record<string, number> = {}
  for (const operation of await operationsOf(conductor.app)) {
    const { method, path, parameters } = operation
    if (method !== 'GET' || path.includes('{')) continue
    const whole = await ask(path)
    const head = await ask(path, 'HEAD')
    assert.equal(head.statusCode, whole.statusCode, `HEAD ${path}`)
    assert.equal(head.body, '', `HEAD ${path}`)
    if (!['limit', 'offset'].every((name) => parameters.some((one) => one.name === name))) continue
    const items = (text: string): unknown[] => {
      const body = JSON.parse(text) as unknown[] | Readonly<Record<'tenants' | 'items' | 'profiles', unknown[]>>
      // The lists whose shape the contract gives otherwise: tenants, and the memory bank as a page or by profile.
      return Array.isArray(body) ? body : (body.tenants ?? body.items ?? body.profiles)
    }
    const page = await ask(`${path}?limit=1`)
    assert.equal(page.statusCode, 200, nameOf(operation))
    lengths[path] = items(whole.body).length
    assert.equal(whole.headers['x-total-count'], String(lengths[path]), nameOf(operation))
    assert.equal(page.headers['x-total-count'], whole.headers['x-total-count'], nameOf(operation))
    assert.equal(items(page.body).length, Math.min(1, lengths[path]!), nameOf(operation))
    assert.equal(page.headers['link'] !== undefined, lengths[path]! > 1, nameOf(operation))
    assert.equal((await ask(`${path}?limit=0`)).statusCode, 400, nameOf(operation))
    assert.equal((await ask(`${path}?limit=201`)).statusCode, 400, nameOf(operation))
  }
  for (const path of ['/api/profiles', '/api/published', '/api/pools', '/api/stats/agents']) {
    assert.equal(lengths[path], 3, path)
  }
})

test('T5: X-Tenant-ID, in any case and repeated, changes nothing on any listener that knows its callers', async (t) => {
  const conductor = await startConductor(t)
  const keys: Record<string, string> = {}
  for (const tenant of ['acme', 'globex']) {
    await conductor.database.systemBatch([
      { text: 'INSERT INTO tenants (id, name) VALUES ($1, $1) ON CONFLICT DO NOTHING', values: [tenant] },
    ])
    const { token } = await conductor.issue(tenant, 'owner')
    keys[tenant] = token
    await conductor.call(token, 'POST', '/api/profiles', { name: `of-${tenant}` })
  }
  await conductor.call(keys['acme'], 'POST', '/api/profiles/of-acme/publish', { slug: 'chat' })
  const key = (await conductor.call(keys['acme'], 'POST', '/api/profiles/of-acme/keys', { label: 'x' })).json()
  const task = { profile: 'of-globex', prompt: 'hello' }
  for (const tenantIds of [{ 'X-TENANT-ID': 'globex' }, { 'x-Tenant-Id': ['globex', 'acme'] }, { 'x-tenant-id': '' }]) {
    const bearer = { authorization: `Bearer ${keys['acme']}`, ...tenantIds }
    const profiles = (await conductor.app.inject({ url: '/api/profiles', headers: bearer })).json<{ name: string }[]>()
    assert.deepEqual(
      profiles.map(({ name }) => name),
      ['of-acme'],
    )
    const body = JSON.stringify(task)
    const json = { 'content-type': 'application/json' }
    const signed = conductor.signers
      .get('chat-gateway')!
      .sign({ tenant: 'acme', method: 'POST', target: '/api/runs', body: Buffer.from(body) })
    for (const [listener, headers] of [
      [conductor.app, bearer],
      [conductor.internal, { ...signed, ...tenantIds }],
    ] as const) {
      const started = await listener.inject({
        method: 'POST',
        url: '/api/runs',
        headers: { ...headers, ...json },
        payload: body,
      })
      assert.equal(started.json<{ error: string }>().error, 'unknown_profile: of-globex')
    }
    for (const [tenant, status] of [
      ['acme', 404],
      ['globex', 401],
    ] as const) {
      const reply = await conductor.gateway.inject({
        url: `/v1/chat/${tenant}/chat/conversations/conv_0`,
        headers: { authorization: `Bearer ${(key as { token: string }).token}`, ...tenantIds },
      })
      assert.equal(reply.statusCode, status, tenant)
    }
  }
})
