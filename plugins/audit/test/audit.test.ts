import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { definePlugin, isAppError } from '#kernel'
import { type AuditedWrite, AuditedWrites, type AuditTrail } from '#contracts/audit'
import { ApiGuard, type Guard } from '#contracts/auth'
import { Database, sqlState } from '#contracts/database'
import { databasePlugin, fake, freshDatabase, testKernel } from '#testing'
import audit from '../index.ts'

/** Every caller is an owner of the tenant in the header. The guard's own tests show who may read. */
const openGuard: Guard = {
  protect() {},
  callerOf: ({ headers }) => ({ tenantId: String(headers['tenant']), role: 'owner', keyId: 'tak_boss' }),
}

async function log(t: TestContext) {
  const trails: AuditTrail[] = []
  const found: Database[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database },
    setup: async ({ deps }) => (found.push(deps.database), {}),
  })
  const kernel = await testKernel(t, [
    await databasePlugin(await freshDatabase(t)),
    fake(ApiGuard, openGuard),
    fake(AuditedWrites, { recordOn: (trail) => void trails.push(trail) }),
    audit,
    probe,
  ])
  const get = (query = '', tenant = 'acme') =>
    kernel.listeners['conductor']!.inject({ url: `/api/audit${query}`, headers: { tenant } })
  const actions = async (query: string): Promise<string[]> =>
    (await get(query)).json<{ action: string }[]>().map(({ action }) => action)
  return { trail: trails[0]!, database: found[0]!, get, actions, logs: kernel.logs }
}

const write = (fields: Partial<AuditedWrite> = {}): AuditedWrite => ({
  tenantId: 'acme',
  actor: { keyId: 'tak_a', role: 'admin' },
  action: 'things.create',
  request: { method: 'POST', path: '/api/things', id: 'req_1', remoteAddress: '127.0.0.1' },
  ...fields,
})

test('an entry is there from its beginning, with no status until its outcome is known', async (t) => {
  const { trail, get } = await log(t)
  const entry = await trail.begin(write())
  const [begun] = (await get()).json()
  const { id, at, ...rest } = begun
  assert.match(id, /^aud_/)
  assert.match(at, /Z$/)
  assert.deepEqual(rest, {
    actor: { keyId: 'tak_a', role: 'admin' },
    action: 'things.create',
    target: null,
    method: 'POST',
    path: '/api/things',
    requestId: 'req_1',
    remoteAddress: '127.0.0.1',
    status: null,
  })
  await trail.end(entry, { status: 201, target: 'thing_1' })
  assert.deepEqual((await get()).json(), [{ ...begun, status: 201, target: 'thing_1' }])
})

test('a command has no request, and text that PostgreSQL could not store, or that is too long, is made to fit', async (t) => {
  const { trail, get } = await log(t)
  const { request: _, ...command } = write({ actor: { keyId: 'agent-orc key issue', role: 'operator' } })
  await trail.begin(command)
  const path = `/api/${'x'.repeat(5_000)}`
  const odd = await trail.begin(write({ target: 'a\0b', request: { ...write().request!, path } }))
  await trail.end(odd, { status: 404 })
  const [long, bare] = (await get()).json()
  assert.deepEqual([long.target, long.path.length, long.status], ['a\uFFFDb', 1_024, 404])
  assert.deepEqual([bare.method, bare.path, bare.requestId, bare.remoteAddress], [null, null, null, null])
})

test('lists are newest first, paged, and filtered by actor, action, target, text and time', async (t) => {
  const { trail, database, get, actions } = await log(t)
  const add = async (n: number, fields: Partial<AuditedWrite>, target?: string) => {
    const entry = await trail.begin(write(fields))
    await trail.end(entry, { status: 200, ...(target === undefined ? {} : { target }) })
    // Answers show whole milliseconds: each entry gets one of its own.
    await database.batch('acme', [{ text: 'SELECT pg_sleep(0.002)' }])
    const [mine] = (await get('?limit=1')).json<{ id: string; at: string }[]>()
    assert.equal(mine!.id, entry.id, `entry ${n} is the newest`)
    return mine!
  }
  await add(1, { action: 'a.create', actor: { keyId: 'tak_1', role: 'owner' } }, 'made_1')
  const second = await add(2, { action: 'b.delete', target: 'x_y' })
  await add(3, { action: 'c.update', target: 'xzy' })
  assert.deepEqual(await actions(''), ['c.update', 'b.delete', 'a.create'])
  assert.deepEqual(await actions('?actor=tak_1'), ['a.create'])
  assert.deepEqual(await actions('?action=b.delete'), ['b.delete'])
  assert.deepEqual(await actions('?target=made_1'), ['a.create'])
  // An underscore is searched for as it is, not as a pattern of LIKE.
  assert.deepEqual(await actions('?q=X_Y'), ['b.delete'])
  assert.deepEqual(await actions('?q=MADE'), ['a.create'])
  assert.deepEqual(await actions('?q=%25'), [])
  assert.deepEqual(await actions(`?to=${second.at}`), ['a.create'])
  assert.deepEqual(await actions(`?from=${second.at}`), ['c.update', 'b.delete'])
  const page = await get('?limit=1&offset=1&q=api')
  assert.deepEqual([page.json().length, page.headers['x-total-count']], [1, '3'])
  assert.match(String(page.headers['link']), /offset=0&q=api>; rel="prev".*offset=2&q=api>; rel="next"/)
})

test('a question that makes no sense is 400, never a failure of the database', async (t) => {
  const { get } = await log(t)
  const bad = [
    'from=yesterday',
    'from=2026-13-45T00:00:00Z',
    'to=0001-01-01T00:00:00%2B14:00',
    'to=0000-01-01T00:00:00Z',
  ]
  for (const query of [...bad, 'q=%00', 'actor=a%00', 'limit=0', 'limit=201', 'offset=-1', `q=${'x'.repeat(1_025)}`]) {
    const reply = await get(`?${query}`)
    assert.deepEqual([reply.statusCode, reply.json().error], [400, 'invalid_request'], query)
  }
  assert.equal((await get('?from=2026-01-01T00:00Z&to=9999-12-31T23:59:59Z')).statusCode, 200)
})

test('a tenant sees its own entries and no others', async (t) => {
  const { trail, get } = await log(t)
  await trail.end(await trail.begin(write()), { status: 200 })
  const other = await get('', 'globex')
  assert.deepEqual([other.json(), other.headers['x-total-count']], [[], '0'])
})

test('the database refuses to change, delete or empty the log, also to the owner of its tables', async (t) => {
  const { trail, database, get } = await log(t)
  await trail.end(await trail.begin(write()), { status: 200 })
  const before = (await get()).json()
  const [owners] = await database.batch<[{ own: boolean }[]]>('acme', [
    { text: `SELECT tableowner = current_user AS own FROM pg_tables WHERE tablename LIKE 'audit%'` },
  ])
  assert.deepEqual(owners, [{ own: true }, { own: true }])
  for (const statement of [
    `UPDATE audit_entries SET action = 'nothing'`,
    `UPDATE audit_outcomes SET status = 500`,
    'DELETE FROM audit_outcomes',
    'DELETE FROM audit_entries',
    'TRUNCATE audit_outcomes',
    'TRUNCATE audit_entries CASCADE',
    // No row is visible here, and the statement is refused all the same.
    `UPDATE audit_entries SET action = 'nothing' WHERE false`,
    `INSERT INTO audit_outcomes (tenant_id, entry_id, status) SELECT tenant_id, entry_id, 200 FROM audit_outcomes
     ON CONFLICT (tenant_id, entry_id) DO UPDATE SET status = 204`,
    `SET LOCAL session_replication_role = replica`,
  ]) {
    for (const run of [
      () => database.batch('acme', [{ text: statement }]),
      () => database.systemBatch([{ text: statement }]),
    ]) {
      await assert.rejects(run, (error) => sqlState(error) === '42501', statement)
    }
  }
  // The first outcome stands.
  const [{ id }] = before
  await trail.end({ tenantId: 'acme', id }, { status: 500 })
  assert.deepEqual((await get()).json(), before)
})

test('what cannot be put on record is refused with 503; an outcome that cannot be is logged, and costs nobody anything', async (t) => {
  const { trail, database, get, logs } = await log(t)
  const entry = await trail.begin(write())
  await database.systemBatch([{ text: 'REVOKE INSERT ON audit_entries, audit_outcomes FROM current_user' }])
  await assert.rejects(trail.begin(write()), (error) => isAppError(error) && error.status === 503 && error.retryable)
  await trail.end(entry, { status: 204 })
  assert.equal((await get()).json()[0].status, null)
  const [warning] = logs.filter(({ entry: about }) => about === entry.id)
  assert.equal(warning?.['status'], 204)
})
