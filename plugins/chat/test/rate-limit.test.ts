import assert from 'node:assert/strict'
import { test } from 'node:test'
import { addKey, gateway, publish, testKv } from './gateway.ts'

const payload = { message: 'Hi' }

test('a key over its rate answers 429 rate_limited and says when to come back; other keys are not touched', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database, { rpm: 3 })
  const chat = (key = agent.key, path = '') =>
    app.inject({ method: 'POST', url: agent.url + path, headers: { authorization: `Bearer ${key}` }, payload })
  const remaining = []
  for (const path of ['', '/stream', '']) {
    const reply = await chat(agent.key, path)
    assert.equal(reply.statusCode, 200)
    assert.equal(reply.headers['ratelimit-policy'], '"key";q=3;w=60')
    remaining.push(/r=(\d+);t=\d+$/.exec(String(reply.headers['ratelimit']))?.[1])
  }
  assert.deepEqual(remaining, ['2', '1', '0'])
  for (const path of ['', '/stream']) {
    const reply = await chat(agent.key, path)
    assert.deepEqual([reply.statusCode, reply.json().error], [429, 'rate_limited'])
    const after = Number(reply.headers['retry-after'])
    assert.ok(after >= 1 && after <= 61, String(reply.headers['retry-after']))
    assert.equal(reply.headers['ratelimit-policy'], '"key";q=3;w=60')
    assert.match(String(reply.headers['ratelimit']), /^"key";r=0;t=\d+$/)
  }
  assert.equal(dispatch.started.length, 3)
  assert.equal((await chat(await addKey(database, 'acme', agent.id))).statusCode, 200)
  const other = await publish(database, { slug: 'other', rpm: 1 })
  assert.equal((await app.inject({ method: 'POST', url: other.url, headers: other.auth, payload })).statusCode, 200)
})

test('asking about runs and conversations does not use up the rate', async (t) => {
  const { app, database } = await gateway(t)
  const agent = await publish(database, { rpm: 1 })
  const { public_run_id, conversation_id } = (
    await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  ).json()
  for (const path of [`/runs/${public_run_id}`, `/runs/${public_run_id}/stream`, `/conversations/${conversation_id}`]) {
    assert.equal((await app.inject({ url: agent.url + path, headers: agent.auth })).statusCode, 200)
  }
})

test('refused keys and foreign origins are not counted', async (t) => {
  const kv = testKv()
  const { app, database } = await gateway(t, { kv })
  const agent = await publish(database)
  await app.inject({ method: 'POST', url: agent.url, headers: { authorization: 'Bearer ao_test_x' }, payload })
  await app.inject({ method: 'POST', url: agent.url, headers: { ...agent.auth, origin: 'null' }, payload })
  assert.deepEqual(kv.hits, [])
})

test('gateways that share a store share the count of a key', async (t) => {
  const kv = testKv('redis')
  const a = await gateway(t, { kv })
  const b = await gateway(t, { kv, dsn: a.dsn })
  const agent = await publish(a.database, { rpm: 4 })
  const statuses = []
  for (let i = 0; i < 8; i++) {
    const { app } = i % 2 === 0 ? a : b
    statuses.push((await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })).statusCode)
  }
  assert.deepEqual(statuses, [200, 200, 200, 200, 429, 429, 429, 429])
})

test('backend memory counts in this process, also beside a shared store', async (t) => {
  const kv = testKv('redis')
  const { app, database, kernel } = await gateway(t, { kv, config: { rateLimitBackend: 'memory' } })
  const agent = await publish(database, { rpm: 1 })
  const chat = () => app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  assert.deepEqual([(await chat()).statusCode, (await chat()).statusCode], [200, 429])
  assert.deepEqual(kv.hits, [])
  const ready = kernel.logs.find((line) => line['msg'] === 'chat-gateway.ready')
  assert.equal(ready?.['rate_limit_backend'], 'memory')
})
