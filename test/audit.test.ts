import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '#testing'
import { adminTenant, startConductor } from './conductor.ts'
import { isWrite, nameOf, routesOf, urlOf } from './route-table.ts'

// The tests are generated from the route table of the whole conductor, so a new route is tested without being named here.

interface Entry {
  readonly actor: { readonly keyId: string; readonly role: string }
  readonly action: string
  readonly method: string
  readonly path: string
  readonly requestId: string
  readonly status: number
}

/** Writes of members that are recorded all the same, because they decide who may act for a tenant, or what its agents may do. */
const decidingWrites = [
  'POST /api/api-keys',
  'POST /api/api-keys/{id}/rotate',
  'DELETE /api/api-keys/{id}',
  'POST /api/approvals/{id}/resolve',
  'POST /api/workflows/runs/{id}/repair',
  'PATCH /api/workflows/runs/{id}/nodes/{nodeId}',
]

test('every administrative write leaves exactly one entry, in its own tenant, whoever tries; nothing else leaves any', async (t) => {
  const { app, call, issue } = await startConductor(t)
  const [owner, member, stranger] = [
    await issue(adminTenant, 'owner'),
    await issue(adminTenant, 'member'),
    await issue('globex', 'owner'),
  ]
  const entries = async (key: string): Promise<{ total: string; newest: Entry | undefined }> => {
    const reply = await call(key, 'GET', '/api/audit?limit=1')
    return { total: String(reply.headers['x-total-count']), newest: reply.json()[0] }
  }
  const routes = (await routesOf(app)).filter(({ access }) => access !== undefined)
  let count = 0
  for (const route of routes) {
    const audited = isWrite(route) && (route.access !== 'member' || decidingWrites.includes(nameOf(route)))
    for (const [key, role] of [
      [owner, 'owner'],
      [member, 'member'],
    ] as const) {
      const reply = await call(key.token, route.method, urlOf(route), route.json ? 'text' : undefined)
      if (audited) count++
      const { total, newest } = await entries(owner.token)
      assert.equal(total, String(count), `${nameOf(route)} as ${role}`)
      if (!audited) continue
      const { method, path, requestId, status, actor } = newest!
      assert.deepEqual(
        { method, path, requestId, status, actor },
        {
          method: route.method,
          path: urlOf(route),
          requestId: reply.headers['x-request-id'],
          status: reply.statusCode,
          actor: { keyId: key.id, role },
        },
      )
      assert.match(newest!.action, /^[a-z-]+(\.[a-z-]+)+$/)
    }
  }
  assert.ok(count > 20)
  assert.equal((await entries(stranger.token)).total, '0')
})

test('with the log out of reach nothing is written, and what needs no record goes on', async (t) => {
  const { call, issue, database } = await startConductor(t)
  const owner = await issue('acme', 'owner')
  await database.systemBatch([{ text: 'REVOKE INSERT ON audit_entries FROM current_user' }])
  const create = () => call(owner.token, 'POST', '/api/profiles', { name: 'agent' })
  const refused = await create()
  assert.deepEqual([refused.statusCode, refused.json().error], [503, 'unavailable'])
  assert.deepEqual((await call(owner.token, 'GET', '/api/profiles')).json(), [])
  assert.equal((await call(owner.token, 'POST', '/api/runs', { profile: 'agent', prompt: 'x' })).statusCode, 400)
  await database.systemBatch([{ text: 'GRANT INSERT ON audit_entries TO current_user' }])
  assert.equal((await create()).statusCode, 201)
})

test('what a write was about is on record under the name by which it is looked up, and no secret is', async (t) => {
  const { call, issue } = await startConductor(t)
  const owner = await issue('acme', 'owner')
  const post = async (url: string, body: object) => (await call(owner.token, 'POST', url, body)).json()
  await post('/api/profiles', { name: 'agent', instructions: 'hush' })
  await post('/api/profiles/agent/publish', {})
  const published = await post('/api/profiles/agent/keys', { label: 'hush' })
  const minted = await post('/api/api-keys', { label: 'hush' })
  await call(owner.token, 'DELETE', `/api/api-keys/${minted.id}`)
  const log = await call(owner.token, 'GET', '/api/audit')
  assert.deepEqual(
    log.json<{ action: string; target: string }[]>().map(({ action, target }) => [action, target]),
    [
      ['api-keys.delete', minted.id],
      ['api-keys.create', minted.id],
      ['profiles.keys.create', `agent/${published.id}`],
      ['profiles.publish', 'agent'],
      ['profiles.create', 'agent'],
    ],
  )
  for (const secret of ['hush', published.token, minted.token]) assert.ok(!log.body.includes(secret))
})

test('the entry of an erasure that ends within its request has the counts, and finds the runs that the API started', async (t) => {
  const { call, issue, database } = await startConductor(t)
  const { token } = await issue('acme', 'owner')
  await call(token, 'POST', '/api/profiles', { name: 'agent' })
  const runIds: string[] = []
  const start = async (more: object): Promise<string> => {
    const task = { profile: 'agent', prompt: 'hello', metadata: { end_user_id: 'ann' }, ...more }
    const started = await call(token, 'POST', '/api/runs', task)
    assert.equal(started.statusCode, 202, started.body)
    const { runId, sessionId } = started.json<{ runId: string; sessionId: string }>()
    runIds.push(runId)
    await until(async () => {
      const { status } = (await call(token, 'GET', `/api/runs/${runId}`)).json<{ status: string }>()
      return status !== 'running' && status !== 'queued'
    }, 'the run is over')
    return sessionId
  }
  // The second run begins in the session of the first.
  await start({ sessionId: await start({}) })
  const erased = await call(token, 'DELETE', '/api/end-users/ann')
  assert.deepEqual([erased.statusCode, erased.json().runs, erased.json().pending], [200, 2, 0], erased.body)
  for (const id of runIds) assert.equal((await call(token, 'GET', `/api/runs/${id}`)).statusCode, 404)
  const [entry] = (await call(token, 'GET', '/api/audit')).json()
  assert.deepEqual(
    [entry.action, entry.target, entry.status, entry.detail],
    ['end-users.erase', 'ann', 200, erased.json()],
  )
  const [people] = await database.batch('acme', [{ text: 'SELECT 1 FROM run_people' }])
  assert.deepEqual(people, [])
})
