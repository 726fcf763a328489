import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { Webhook } from 'standardwebhooks'
import { definePlugin, type Plugin } from '#kernel'
import { databasePlugin, fake, freshDatabase, testKernel } from '#testing'
import { ApiGuard, type Guard } from '#contracts/auth'
import { Database } from '#contracts/database'
import { Kv } from '#contracts/kv'
import { defaultLimits, TenantLimits } from '#contracts/limits'
import { type FindRun, Webhooks } from '#contracts/webhooks'
import { HitWindows } from '#kit'
import webhooks from '../index.ts'
import { startReceiver } from './support.ts'

const guard: Guard = {
  protect: () => {},
  callerOf: (request) => ({ tenantId: request.headers.authorization ?? 'acme', role: 'owner', keyId: 'tak_test' }),
}

interface Delivery {
  readonly id: string
  readonly runId: string
  readonly state: string
  readonly attempts: number
  readonly nextAttemptAt: string | null
  readonly lastStatus: number | null
  readonly lastError: string | null
}

/** While an attempt is under way the next one is a minute off; no wait of the schedule is about that long. */
const settled = ({ state, nextAttemptAt }: Delivery): boolean =>
  state !== 'pending' || Math.abs(Date.parse(nextAttemptAt!) - Date.now() - 60_000) > 30_000

async function conductor(
  t: TestContext,
  {
    key = randomBytes(32).toString('base64'),
    allowHosts = [] as readonly string[],
    more = [] as readonly Plugin[],
  } = {},
) {
  const found: { database?: Database; webhooks?: Webhooks } = {}
  const findRun: FindRun = async (_tenantId, runId) => ({
    runId,
    sessionId: 's1',
    status: 'ok',
    subTask: { id: runId, sessionId: 's1', profile: 'writer', prompt: 'a secret prompt' },
    startedAt: '2026-01-01T00:00:00.000Z',
    finishedAt: '2026-01-01T00:00:01.000Z',
    result: 'Done.',
  })
  const grab = definePlugin({
    name: 'grab',
    requires: { database: Database, webhooks: Webhooks },
    async setup({ deps }) {
      Object.assign(found, deps)
      deps.webhooks.readRuns(findRun)
      return {}
    },
  })
  const dsn = await freshDatabase(t)
  const kernel = await testKernel(
    t,
    [
      await databasePlugin(dsn),
      fake(ApiGuard, guard),
      {
        name: 'webhooks',
        plugin: webhooks,
        config: { ...(key === '' ? {} : { key }), allowHosts },
      },
      ...more,
      grab,
    ],
    { listeners: ['conductor'] },
  )
  const database = found.database!
  await database.systemBatch([
    { text: `INSERT INTO tenants (id, name) VALUES ('acme', 'Acme'), ('globex', 'Globex') ON CONFLICT DO NOTHING` },
  ])
  const api = async <T>(method: 'GET' | 'POST', url: string, tenant = 'acme'): Promise<{ status: number; body: T }> => {
    const response = await kernel.listeners['conductor']!.inject({ method, url, headers: { authorization: tenant } })
    return { status: response.statusCode, body: response.json() }
  }
  return {
    webhooks: found.webhooks!,
    database,
    logs: kernel.logs,
    api,
    insert: (runId: string, url: string, tenant = 'acme') =>
      database.batch(tenant, [
        {
          text: `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, webhook_url)
                 VALUES ($1, $2, 's1', 'writer', 'running', 'x', 'me', 1, $3)`,
          values: [tenant, runId, url],
        },
      ]),
    end: (runId: string, tenant = 'acme') =>
      database.batch(tenant, [
        {
          text: `UPDATE runs SET status = 'ok', finished_at = now() WHERE tenant_id = $1 AND id = $2 AND finished_at IS NULL`,
          values: [tenant, runId],
        },
      ]),
    /** Makes what waits for its next attempt due at once, as time would. */
    async hurry(tenant = 'acme'): Promise<void> {
      await database.batch(tenant, [
        { text: `UPDATE webhook_deliveries SET next_at = now() WHERE tenant_id = $1`, values: [tenant] },
        { text: `SELECT pg_notify('webhooks', $1)`, values: [tenant] },
      ])
    },
    async until(runId: string, accept: (delivery: Delivery) => boolean): Promise<Delivery> {
      for (;;) {
        const { body } = await api<Delivery[]>('GET', `/api/webhooks/deliveries?runId=${runId}`)
        if (body[0] && accept(body[0])) return body[0]
        await new Promise((resolve) => setTimeout(resolve, 10))
      }
    },
  }
}

test('the end of a run is told once, signed as Standard Webhooks verifies it', async (t) => {
  const receiver = await startReceiver(t)
  const c = await conductor(t, { allowHosts: [receiver.allowed] })
  const { body } = await c.api<{ secret: string }>('GET', '/api/webhooks/secret')
  await c.insert('r1', receiver.url)
  await c.insert('r2', receiver.url)
  await c.end('r1')
  await c.end('r1')
  await receiver.received(1)
  const done = await c.until('r1', (d) => d.state !== 'pending')
  assert.equal(done.state, 'delivered')
  assert.equal(done.attempts, 1)
  assert.equal(done.lastStatus, 204)
  assert.equal(receiver.posts.length, 1, 'r2 has not ended')

  const post = receiver.posts[0]!
  assert.equal(post.headers['webhook-id'], done.id)
  const message = new Webhook(body.secret).verify(post.body, post.headers as Record<string, string>) as {
    type: string
    data: { runId: string; status: string; result: string }
  }
  assert.equal(message.type, 'run.finished')
  assert.deepEqual([message.data.runId, message.data.status, message.data.result], ['r1', 'ok', 'Done.'])
  assert.ok(!post.body.includes('secret prompt'))
  assert.throws(() => new Webhook(body.secret).verify(`${post.body} `, post.headers as Record<string, string>))
})

test('a receiver that fails is asked again under the same id, and given up after the last attempt', async (t) => {
  const receiver = await startReceiver(t, 500)
  const c = await conductor(t, { allowHosts: [receiver.allowed] })
  await c.insert('r1', receiver.url)
  await c.end('r1')
  for (let attempt = 1; attempt <= 8; attempt++) {
    await receiver.received(attempt)
    if (attempt === 8) break
    const delivery = await c.until('r1', settled)
    assert.deepEqual([delivery.state, delivery.attempts, delivery.lastStatus], ['pending', attempt, 500])
    await c.hurry()
  }
  assert.equal((await c.until('r1', (d) => d.state !== 'pending')).attempts, 8)
  assert.equal(new Set(receiver.posts.map((post) => post.headers['webhook-id'])).size, 1)
  assert.ok(c.logs.some((line) => String(line['msg']).includes('given up')))

  const { body: dead } = await c.api<Delivery[]>('GET', '/api/webhooks/deliveries?state=dead')
  const revived = await c.api<Delivery>('POST', `/api/webhooks/deliveries/${dead[0]!.id}/redeliver`)
  assert.equal(revived.status, 202)
  assert.equal(revived.body.state, 'pending')
  await receiver.received(9)
  assert.equal(receiver.posts[8]!.headers['webhook-id'], dead[0]!.id)
})

test('attempts count for webhookDeliveriesPerMinute of their tenant alone; beyond it the others wait', async (t) => {
  const receiver = await startReceiver(t)
  const of = (tenantId: string) => ({
    ...defaultLimits,
    webhookDeliveriesPerMinute: tenantId === 'acme' ? 1 : 600,
  })
  const limits = { of, stored: { add: () => {} } } as unknown as TenantLimits
  const counted = { hit: new HitWindows().hit } as unknown as Kv
  const c = await conductor(t, {
    allowHosts: [receiver.allowed],
    more: [fake(TenantLimits, limits), fake(Kv, counted)],
  })
  for (const id of ['r1', 'r2']) await c.insert(id, receiver.url)
  await c.insert('g1', receiver.url, 'globex')
  await c.end('r1')
  await c.until('r1', (d) => d.state === 'delivered')
  await c.end('r2')
  await c.end('g1', 'globex')
  await receiver.received(2)
  assert.match(receiver.posts[1]!.body, /"g1"/)
  const { state, attempts } = await c.until('r2', () => true)
  assert.deepEqual([state, attempts], ['pending', 0])
})

test('a receiver that is gone for good is asked once; redirects are failures and are not followed', async (t) => {
  const gone = await startReceiver(t, 410)
  const target = await startReceiver(t)
  const moved = await startReceiver(t, 302)
  const c = await conductor(t, { allowHosts: [gone.allowed, target.allowed, moved.allowed] })
  await c.insert('r1', gone.url)
  await c.insert('r2', moved.url)
  await c.end('r1')
  await c.end('r2')
  assert.equal((await c.until('r1', (d) => d.state !== 'pending')).state, 'dead')
  const second = await c.until('r2', (d) => d.lastStatus !== null)
  assert.equal(second.state, 'pending')
  assert.equal(second.lastStatus, 302)
  assert.equal(target.posts.length, 0)
})

test('a message of a process that died on the way is sent by another one', async (t) => {
  const receiver = await startReceiver(t)
  const c = await conductor(t, { allowHosts: [receiver.allowed] })
  await c.insert('r1', receiver.url)
  // A message whose process died is due again once its lease has run out.
  await c.database.batch('acme', [
    {
      text: `INSERT INTO webhook_deliveries (tenant_id, id, run_id, url, attempts, next_at)
             VALUES ('acme', 'msg_' || repeat('0', 32), 'r1', $1, 1, now() - interval '1 second')`,
      values: [receiver.url],
    },
    { text: `SELECT pg_notify('webhooks', 'acme')` },
  ])
  await receiver.received(1)
  assert.equal((await c.until('r1', (d) => d.state === 'delivered')).attempts, 2)
})

test('for a day after a change messages carry both signatures', async (t) => {
  const receiver = await startReceiver(t)
  const c = await conductor(t, { allowHosts: [receiver.allowed] })
  const old = (await c.api<{ secret: string }>('GET', '/api/webhooks/secret')).body.secret
  const rotated = (
    await c.api<{ secret: string; version: number; previousUntil: string }>('POST', '/api/webhooks/secret/rotate')
  ).body
  assert.equal(rotated.version, 2)
  assert.notEqual(rotated.secret, old)
  assert.ok(Date.parse(rotated.previousUntil) > Date.now())
  assert.notEqual((await c.api<{ secret: string }>('GET', '/api/webhooks/secret', 'globex')).body.secret, old)
  await c.insert('r1', receiver.url)
  await c.end('r1')
  await receiver.received(1)
  const { body, headers } = receiver.posts[0]!
  for (const secret of [old, rotated.secret]) new Webhook(secret).verify(body, headers as Record<string, string>)
})

test('N1: addresses that are not public are refused at once, and looked at again when a name is resolved', async (t) => {
  const c = await conductor(t, {
    allowHosts: ['hooks.internal:8080=acme|initech, .corp.example:80=*', '169.254.169.254:80=*', '[fd00::1]:8443=*'],
  })
  for (const url of [
    'nonsense',
    'http://example.com/',
    'ftp://example.com/',
    'https://user:pass@example.com/',
    'https://127.0.0.1/',
    'https://0x7f.1/',
    'https://2130706433/',
    'https://[::ffff:127.0.0.1]/',
    'https://169.254.169.254/latest',
    'https://168.63.129.16/',
    'https://[fd00::1]/',
    'https://metadata.google.internal/',
  ]) {
    assert.throws(() => c.webhooks.check('acme', url), { code: 'invalid_webhook', status: 400 }, url)
  }
  c.webhooks.check('acme', 'https://example.com/hook')
  // What is the operator's own may be private and plain, at the port of its entry and for the tenants of its entry.
  for (const [tenant, url] of [
    ['acme', 'http://hooks.internal:8080/hook'],
    ['initech', 'https://hooks.internal:8080/hook'],
    ['globex', 'http://a.corp.example/hook'],
    ['globex', 'http://corp.example:80/hook'],
    ['globex', 'https://[fd00::1]:8443/hook'],
  ] as const) {
    assert.equal(c.webhooks.check(tenant, url), undefined, url)
  }
  for (const [tenant, url] of [
    ['globex', 'http://hooks.internal:8080/hook'],
    ['acm', 'http://hooks.internal:8080/hook'],
    ['acme', 'http://hooks.internal/hook'],
    ['acme', 'http://hooks.internal:8081/hook'],
    ['acme', 'http://a.corp.example:7060/runner/sessions'],
    ['acme', 'https://[fd00::1]/hook'],
    ['acme', 'http://169.254.169.254/latest'],
  ] as const) {
    assert.throws(() => c.webhooks.check(tenant, url), { code: 'invalid_webhook', status: 400 }, `${tenant} ${url}`)
  }
  // localhost resolves to loopback: the socket's own look-up is what refuses it.
  await c.insert('r1', 'https://localhost/hook')
  await c.end('r1')
  const delivery = await c.until('r1', (d) => d.lastError !== null)
  assert.equal(delivery.lastError, 'The host resolves to an address that is not public.')
})

test('a receiver without a port or without tenants is refused when it is configured', async (t) => {
  for (const entry of ['hooks.internal', 'hooks.internal:8443', 'hooks.internal=*', 'hooks.internal:*=*', 'a:1=']) {
    await assert.rejects(
      conductor(t, { allowHosts: [entry] }),
      /allowHosts\.0 expects host:port=tenants, .*hooks\.internal:8443=acme\|globex for two tenants/,
      entry,
    )
  }
})

test('a receiver that is no longer allowed to a tenant is not told, whatever was accepted before', async (t) => {
  const receiver = await startReceiver(t)
  const c = await conductor(t, { allowHosts: [receiver.allowed.replace('*', 'globex')] })
  await c.insert('r1', receiver.url)
  await c.end('r1')
  const { lastError } = await c.until('r1', ({ state }) => state === 'dead')
  assert.match(lastError!, /begins with https|not a public one/)
  assert.deepEqual(receiver.posts, [])
})

test('another tenant’s message is an unknown one, and garbage is none', async (t) => {
  const receiver = await startReceiver(t)
  const c = await conductor(t, { allowHosts: [receiver.allowed] })
  await c.insert('r1', receiver.url)
  await c.end('r1')
  const { id } = await c.until('r1', (d) => d.state === 'delivered')
  assert.equal((await c.api('GET', `/api/webhooks/deliveries/${id}`)).status, 200)
  const foreign = await c.api<{ error: string }>('GET', `/api/webhooks/deliveries/${id}`, 'globex')
  assert.deepEqual([foreign.status, foreign.body.error], [404, 'not_found'])
  assert.equal((await c.api('POST', `/api/webhooks/deliveries/${id}/redeliver`, 'globex')).status, 404)
  assert.equal((await c.api('GET', '/api/webhooks/deliveries/%00')).status, 404)
  assert.deepEqual((await c.api<Delivery[]>('GET', '/api/webhooks/deliveries', 'globex')).body, [])
})

test('without a key nothing is signed and nothing is taken', async (t) => {
  const c = await conductor(t, { key: '' })
  assert.throws(() => c.webhooks.check('acme', 'https://example.com/'), { code: 'webhooks_unavailable', status: 503 })
  assert.equal((await c.api('GET', '/api/webhooks/secret')).status, 503)
})
