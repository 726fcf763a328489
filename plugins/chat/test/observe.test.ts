import assert from 'node:assert/strict'
import { test } from 'node:test'
import { gateway, type Gateway, publish, sql, until } from './gateway.ts'
import { fail, finish, say, scriptedDispatch } from './scripted-dispatch.ts'

const payload = { message: 'a secret of the caller' }
const logged = ({ kernel }: Gateway, msg: string) => kernel.logs.filter((line) => line['msg'] === msg)

test('chat-gateway.ready says where the conductor is, what counts rates, and whether a previous key is there', async (t) => {
  const about = { conductor_internal_url: 'http://conductor:8081/', previous_signing_key: true }
  const dispatch = { ...scriptedDispatch(), about }
  const g = await gateway(t, { dispatch, config: { publicHost: 'chat.example.org' } })
  const [line, ...more] = logged(g, 'chat-gateway.ready')
  assert.deepEqual(more, [])
  const { conductor_internal_url, rate_limit_backend, previous_signing_key, public_host } = line!
  assert.deepEqual(
    { conductor_internal_url, rate_limit_backend, previous_signing_key, public_host },
    { ...about, rate_limit_backend: 'memory', public_host: 'chat.example.org' },
  )
})

test('what fails on the way of a chat is logged under its name, without the message or the key', async (t) => {
  const g = await gateway(t)
  const agent = await publish(g.database)
  const chat = (body: object = payload) =>
    g.app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload: body })

  g.dispatch.away = true
  assert.equal((await chat()).statusCode, 502)
  const [unreachable] = logged(g, 'chat.start_watcher_failed')
  assert.equal((unreachable?.['err'] as { code?: unknown } | undefined)?.code, 'upstream')
  g.dispatch.away = false

  g.dispatch.cut = 'before'
  await sql(g.database, 'acme', 'ALTER TABLE messages RENAME TO gone')
  const broken = await chat()
  assert.deepEqual([broken.statusCode, broken.json().error], [502, 'upstream'])
  await sql(g.database, 'acme', 'ALTER TABLE gone RENAME TO messages')
  assert.equal(logged(g, 'chat.start_watcher_failed').length, 2)
  assert.equal(logged(g, 'chat.resolve_conv_failed').length, 1)
  g.dispatch.cut = undefined

  // A client's own mistake is no failure of ours.
  assert.equal((await chat({ message: 'x', conversation_id: `conv_${'0'.repeat(33)}` })).statusCode, 404)
  assert.equal(logged(g, 'chat.start_watcher_failed').length, 2)

  await sql(g.database, 'acme', 'ALTER TABLE published_agent_keys RENAME TO gone')
  const look = { method: 'GET', url: `${agent.url}/runs/prun_1`, headers: agent.auth } as const
  assert.equal((await g.app.inject(look)).statusCode, 500)
  await sql(g.database, 'acme', 'ALTER TABLE gone RENAME TO published_agent_keys')
  assert.equal(logged(g, 'auth.lookup_failed').length, 1)

  const text = JSON.stringify(g.kernel.logs)
  for (const secret of [payload.message, agent.key]) assert.ok(!text.includes(secret), secret)
})

test('metrics have the names of the specification, and labels that no caller can multiply', async (t) => {
  const g = await gateway(t)
  const agent = await publish(g.database, { origins: ['https://a.example'] })
  const get = (url: string, method: 'GET' | 'POST' | 'OPTIONS' | 'DELETE' = 'GET') =>
    g.app.inject({ method, url, headers: { ...agent.auth }, ...(method === 'POST' ? { payload } : {}) })
  await get(agent.url, 'POST')
  g.dispatch.script = (_task, run) => run().emit(fail('model_error'))
  await get(`${agent.url}/stream`, 'POST')
  g.dispatch.script = (_task, run) => run().emit(fail('interrupted'))
  await get(agent.url, 'POST')
  for (let i = 0; i < 5; i++) {
    await get(`${agent.url}/runs/prun_${i}`)
    await get(`${agent.url}/runs/prun_${i}/stream`)
    await get(`${agent.url}/runs/prun_${i}`, 'DELETE')
    await get(`${agent.url}/conversations/conv_${i}?limit=${i + 1}`)
    await get(`/v1/chat/tenant-${i}/agent-${i}`, 'POST')
    await get(`/v1/chat/tenant-${i}/agent-${i}/nowhere`)
    await get(`${agent.url}/anything-${i}`, 'OPTIONS')
  }
  g.dispatch.script = (_task, run) => run().emit(say('…'))
  const open = get(`${agent.url}/stream`, 'POST')
  await until(async () => /^chat_gateway_watcher_active 1$/m.test(await g.metrics()))
  g.dispatch.newest().emit(finish('.'))
  await open
  const text = await g.metrics()
  const names = new Set(text.match(/^chat_gateway_\w+/gm))
  for (const name of [
    'chat_gateway_requests_total',
    'chat_gateway_request_duration_seconds_bucket',
    'chat_gateway_watcher_active',
    'chat_gateway_run_terminal_total',
  ]) {
    assert.ok(names.has(name), name)
  }
  const values = (label: string) =>
    [
      ...new Set([...text.matchAll(new RegExp(`^chat_gateway.*\\b${label}="([^"]*)"`, 'gm'))].map((m) => m[1])),
    ].toSorted()
  const root = '/v1/chat/:tenant/:agent'
  assert.deepEqual(values('route'), [
    root,
    `${root}/*`,
    `${root}/conversations/:id`,
    `${root}/runs/:publicRunId`,
    `${root}/runs/:publicRunId/stream`,
    `${root}/stream`,
  ])
  const labels = [
    ...new Set([...text.matchAll(/^chat_gateway\w+\{([^}]*)\}/gm)].flatMap((m) => m[1]!.match(/\w+(?==)/g)!)),
  ]
  assert.deepEqual(labels.toSorted(), ['le', 'route', 'status'])
  assert.match(text, /^chat_gateway_run_terminal_total\{status="done"\} 2$/m)
  assert.match(text, /^chat_gateway_run_terminal_total\{status="error"\} 2$/m)
  assert.match(text, /^chat_gateway_watcher_active 0$/m)
})
