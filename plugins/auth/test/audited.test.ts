import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { access, conflict, definePlugin, unavailable } from '#kernel'
import { auditedAccess, AuditedWrites, type AuditEntry, type AuditOutcome, type AuditTrail } from '#contracts/audit'
import { ApiGuard, operator, type TenantRole, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { Signers } from '#contracts/signing'
import { fake, testKernel } from '#testing'
import { actionOf } from '../api-guard.ts'
import auth from '../index.ts'

const tokens: Tokens = { mint: () => '', wellFormed: () => true, hash: (_domain, token) => Buffer.from(token) }

/** Every token is `<tenant>.<role>`. */
const database = {
  async systemBatch([{ values }]: readonly [{ values: readonly [Buffer] }]) {
    const [tenant_id, role] = values[0].toString().split('.')
    return [[{ tenant_id, role, id: `tak_${role}`, here: true, stale: false }]]
  },
} as unknown as Database

function memoryTrail() {
  const writes: (Parameters<AuditTrail['begin']>[0] & { outcome?: AuditOutcome })[] = []
  const handled: string[] = []
  const trail = {
    away: false,
    async begin(write: (typeof writes)[number]): Promise<AuditEntry> {
      if (trail.away) throw unavailable()
      const id = writes.push({ ...write, request: { ...write.request!, id: 'req_' } }) - 1
      handled.push(`begun ${write.action}`)
      return { tenantId: write.tenantId, id: String(id) }
    },
    async end({ id }: AuditEntry, outcome: AuditOutcome): Promise<void> {
      handled.push(`ended ${outcome.status}`)
      writes[Number(id)] = { ...writes[Number(id)]!, outcome }
    },
  }
  return { trail, writes, handled }
}

async function conductor(t: TestContext) {
  const { trail, writes, handled } = memoryTrail()
  const keeper = definePlugin({
    name: 'keeper',
    requires: { writes: AuditedWrites },
    setup: async ({ deps }) => (deps.writes.recordOn(trail), {}),
  })
  const things = definePlugin({
    name: 'things',
    requires: { guard: ApiGuard },
    async setup({ deps, routes }) {
      routes('conductor', async (app) => {
        deps.guard.protect(app)
        app.addHook(
          'preHandler',
          async ({ method, routeOptions }) => void handled.push(`${method} ${routeOptions.url}`),
        )
        const made = async (_request: unknown, reply: { code(status: number): { send(body: object): unknown } }) =>
          reply.code(201).send({ id: 'thing_1', name: 'it', token: 'secret' })
        app.get('/api/things', access('admin'), async () => [])
        app.post('/api/things', access('admin'), made as never)
        app.put('/api/things/:name', access('admin'), async () => ({ name: 'x' }))
        app.delete('/api/things/:name', access('owner'), async () => {
          throw conflict()
        })
        app.post('/api/things/:name/keys', access('admin'), made as never)
        app.delete('/api/things/:name/keys/:keyId', access('admin'), async () => ({}))
        app.post('/api/things/:name/publish', access('admin'), made as never)
        app.post('/api/things/:name/turn', access('admin'), async () => {
          throw new Error('a bug')
        })
        app.post('/api/runs', access('member'), async () => ({}))
        app.post('/api/own', auditedAccess('member', 'own.make'), made as never)
        app.post('/api/fleet', access(operator), async () => ({}))
      })
      return {}
    },
  })
  const kernel = await testKernel(
    t,
    [
      { name: 'auth', plugin: auth, config: { adminTenant: 'hq' } },
      things,
      keeper,
      fake(Tokens, tokens),
      fake(Database, database),
      fake(Signers, {}),
    ],
    { listeners: ['conductor'] },
  )
  const call = (
    key: `${string}.${TenantRole}`,
    method: 'GET' | 'POST' | 'PUT' | 'DELETE',
    url: string,
    payload?: string,
  ) =>
    kernel.listeners['conductor']!.inject({
      method,
      url,
      headers: { authorization: `Bearer ${key}`, ...(payload ? { 'content-type': 'application/json' } : {}) },
      ...(payload ? { payload } : {}),
    })
  return { call, trail, writes, handled }
}

const request = (method: string, path: string) => ({ method, path, id: 'req_', remoteAddress: '127.0.0.1' })
const admin = { keyId: 'tak_admin', role: 'admin' }

test('a write for admins is on record before its handler runs, and its outcome before the answer leaves', async (t) => {
  const { call, writes, handled } = await conductor(t)
  const reply = await call('acme.admin', 'PUT', '/api/things/a%2Fb?token=hush', '{"secret":"hush"}')
  assert.equal(reply.statusCode, 200)
  assert.deepEqual(handled, ['begun things.update', 'PUT /api/things/:name', 'ended 200'])
  assert.deepEqual(writes, [
    {
      tenantId: 'acme',
      actor: admin,
      action: 'things.update',
      target: 'a/b',
      request: request('PUT', '/api/things/a%2Fb'),
      outcome: { status: 200 },
    },
  ])
})

test('what was created is named by what its own route calls it, and nothing else of the answer is kept', async (t) => {
  const { call, writes } = await conductor(t)
  await call('acme.admin', 'POST', '/api/things')
  await call('acme.admin', 'POST', '/api/things/it/keys')
  await call('acme.admin', 'POST', '/api/things/it/publish')
  await call('acme.member', 'POST', '/api/own')
  const outcomes = writes.map(({ action, target, outcome }) => [action, target, outcome])
  assert.deepEqual(outcomes, [
    ['things.create', undefined, { status: 201, target: 'it' }],
    ['things.keys.create', 'it', { status: 201, target: 'it/thing_1' }],
    ['things.publish', 'it', { status: 201 }],
    ['own.make', undefined, { status: 201 }],
  ])
  assert.doesNotMatch(JSON.stringify(writes), /secret/)
})

test('refusals, failures and bodies that make no sense end an entry like any other answer', async (t) => {
  const { call, writes } = await conductor(t)
  await call('acme.member', 'POST', '/api/things')
  await call('acme.admin', 'DELETE', '/api/things/it')
  await call('acme.owner', 'DELETE', '/api/things/it')
  await call('acme.admin', 'POST', '/api/things/it/turn')
  await call('acme.admin', 'POST', '/api/things', '{')
  const ends = writes.map(({ actor, action, outcome }) => `${actor.role} ${action} ${outcome?.status}`)
  assert.deepEqual(ends, [
    'member things.create 403',
    'admin things.delete 403',
    'owner things.delete 409',
    'admin things.turn 500',
    'admin things.create 400',
  ])
})

test('reads, requests of members and unknown callers leave no entry', async (t) => {
  const { call, writes, handled } = await conductor(t)
  await call('acme.admin', 'GET', '/api/things')
  await call('acme.owner', 'POST', '/api/runs')
  await call('acme.owner', 'POST', '/api/fleet')
  assert.equal((await call('hq.admin', 'GET', '/api/fleet')).statusCode, 404)
  assert.deepEqual(writes, [])
  assert.deepEqual(handled, ['GET /api/things', 'POST /api/runs'])
  assert.equal((await call('hq.admin', 'POST', '/api/fleet')).statusCode, 200)
  assert.deepEqual(
    writes.map(({ tenantId, action }) => [tenantId, action]),
    [['hq', 'fleet']],
  )
})

test('a write that cannot be put on record is refused with 503, and its handler never runs', async (t) => {
  const { call, trail, handled } = await conductor(t)
  trail.away = true
  const reply = await call('acme.admin', 'PUT', '/api/things/it')
  assert.deepEqual([reply.statusCode, reply.json().error], [503, 'unavailable'])
  assert.deepEqual(handled, [])
  assert.equal((await call('acme.admin', 'GET', '/api/things')).statusCode, 200)
  assert.equal((await call('acme.member', 'POST', '/api/runs')).statusCode, 200)
})

test('the name of an action comes from method and path', () => {
  const names: [method: string, url: string, action: string][] = [
    ['POST', '/api/profiles', 'profiles.create'],
    ['PUT', '/api/profiles/:name', 'profiles.update'],
    ['PATCH', '/api/profiles/:name/published', 'profiles.published.update'],
    ['DELETE', '/api/profiles/:name/keys/:keyId', 'profiles.keys.delete'],
    ['POST', '/api/profiles/:name/publish', 'profiles.publish'],
    ['POST', '/api/runs/:id/terminate', 'runs.terminate'],
    ['DELETE', '/api/storage/objects/*', 'storage.objects.delete'],
  ]
  for (const [method, url, action] of names) assert.equal(actionOf(method, url), action)
})
