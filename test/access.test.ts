import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { readFile } from 'node:fs/promises'
import { parseEnv } from 'node:util'
import { operator, roleAtLeast, roles, type TenantRole } from '#contracts/auth'
import { loadRole, root } from '../kernel/config.ts'
import { adminTenant, startConductor } from './conductor.ts'
import { type Fixtures, isWrite, nameOf, type Route, routesOf, unknownIds, urlOf } from './route-table.ts'

// The tests are generated from the route table of the whole conductor, so a new route is tested without being named here.

/** Routes that need no key, each for a reason. */
const publicRoutes = [
  // Browsers come back here; what they bring names one attempt, once.
  'GET /api/apps/callback',
  'GET /healthz',
  'GET /metrics',
  'GET /readyz',
  'POST /api/billing/events/{provider}',
  'POST /api/sandbox-events/{provider}',
]

/** What members may write. Everything else that writes is for admins: running and chatting are no administration. */
const memberWrites = [
  'DELETE /api/api-keys/{id}',
  'DELETE /api/runs/{id}',
  'DELETE /mcp/catalog',
  'DELETE /mcp/catalog/{name}',
  'PATCH /api/workflows/runs/{id}/nodes/{nodeId}',
  'POST /api/api-keys',
  'POST /api/api-keys/{id}/rotate',
  'POST /api/approvals/{id}/resolve',
  'POST /api/attachments',
  'POST /api/runs',
  'POST /api/workflows/runs',
  'POST /api/workflows/runs/{id}/cancel',
  'POST /api/workflows/runs/{id}/repair',
  'POST /api/workflows/runs/{id}/rerun',
  'POST /api/workflows/runs/{id}/signals/{name}',
  'POST /api/workflows/runs/{id}/start',
  'POST /mcp/catalog',
  'POST /mcp/catalog/{name}',
]

/** A body that no route takes, so that the validation refuses it, which comes after the guard. */
const wrongBody = ({ json }: Route): unknown => (json ? 'text' : undefined)

const neededRole = (route: Route): TenantRole => {
  const role = route.access === operator ? 'admin' : roles.find((name) => name === route.access)
  assert.ok(role, `${nameOf(route)} is for '${String(route.access)}', which this test does not know`)
  return role
}

const sample = parseEnv(await readFile(join(root, 'config/check.env'), 'utf8'))

test('the development role, on which these tests run, has every plugin of the conductor', async () => {
  const plugins = async (name: string): Promise<string[]> => {
    const role = await loadRole(join(root, `config/${name}.yaml`), { env: sample })
    return role.plugins.map((entry) => entry.plugin.name)
  }
  const [conductor, dev] = [await plugins('conductor'), await plugins('dev')]
  assert.deepEqual(
    conductor.filter((name) => !dev.includes(name)),
    [],
  )
})

test('a public route, and a write for members, is one on purpose', async (t) => {
  const routes = await routesOf((await startConductor(t)).app)
  const open = routes.filter(({ access }) => access === undefined).map(nameOf)
  assert.deepEqual(open.toSorted(), publicRoutes)
  const writes = routes.filter((route) => route.access === 'member' && isWrite(route)).map(nameOf)
  assert.deepEqual(writes.toSorted(), memberWrites)
})

test('on every route, a role below the declared one is 403, no key or a broken one is 401, and the rest pass', async (t) => {
  const { app, call, issue } = await startConductor(t, { AGENT_ORC_BILLING: 'ledger' })
  const keys = new Map<TenantRole, string>()
  for (const role of roles) keys.set(role, (await issue(adminTenant, role)).token)
  const routes = (await routesOf(app)).filter(({ access }) => access !== undefined)
  assert.ok(routes.length > 30)
  for (const route of routes) {
    const [url, body, needed] = [urlOf(route), wrongBody(route), neededRole(route)]
    for (const [role, key] of keys) {
      const answer = await call(key, route.method, url, body)
      // The guard has let it pass: its toolkit is not active, as every one that nobody has.
      const statusCode = answer.body.includes('"toolkit_not_active"') ? 404 : answer.statusCode
      const message = `${role}: ${nameOf(route)} answered ${statusCode}`
      if (!roleAtLeast(role, needed)) assert.equal(statusCode, 403, message)
      // It is refused for its body, so the guard has let it pass.
      else if (route.json) assert.equal(statusCode, 400, message)
      else assert.ok(![401, 403, 500].includes(statusCode), message)
    }
    if (route.access === operator) continue
    for (const key of [undefined, `${keys.get('owner')}x`]) {
      assert.equal((await call(key, route.method, url, body)).statusCode, 401, nameOf(route))
    }
  }
})

test('to everybody outside of the admin tenant a route for operators is a path that no route serves', async (t) => {
  const [on, off] = [await startConductor(t), await startConductor(t, { AGENT_ORC_ADMIN_TENANT: 'nobody' })]
  for (const { app, call, issue } of [on, off]) {
    const stranger = await issue('globex', 'owner')
    const keys = [undefined, 'no-key', `${stranger.token}x`, stranger.token]
    if (app === off.app) keys.push((await issue(adminTenant, 'owner')).token)
    const routes = (await routesOf(app)).filter(({ access }) => access === operator)
    assert.ok(routes.length >= 5)
    for (const route of routes) {
      const url = urlOf(route)
      for (const key of keys) {
        const answers = [await call(key, route.method, url), await call(key, route.method, `${url}/no/route`)]
        const [here, nowhere] = answers.map(({ statusCode, headers, body }) => {
          const { 'x-request-id': _id, date: _date, 'content-length': _length, ...rest } = headers
          return { statusCode, rest, body: { ...JSON.parse(body), request_id: '' } }
        })
        assert.equal(here!.statusCode, 404, nameOf(route))
        nowhere!.body.message = nowhere!.body.message.replace('/no/route', '')
        assert.deepEqual(here, nowhere, nameOf(route))
      }
    }
  }
})

test('every route of the internal listener wants a signature, of one family, and no key will do', async (t) => {
  const { internal, issue, signers } = await startConductor(t)
  const owner = await issue(adminTenant, 'owner')
  const routes = (await routesOf(internal)).filter((route) => !publicRoutes.includes(nameOf(route)))
  assert.ok(routes.length >= 7)
  for (const route of routes) {
    const [url, payload] = [urlOf(route), route.json ? '"text"' : '']
    const status = async (headers: Record<string, string>): Promise<number> => {
      const type = payload === '' ? {} : { 'content-type': 'application/json' }
      const reply = await internal.inject({ method: route.method, url, headers: { ...type, ...headers }, payload })
      return reply.statusCode
    }
    for (const headers of [{}, { authorization: `Bearer ${owner.token}` }]) {
      assert.equal(await status(headers), 401, nameOf(route))
    }
    const answers: number[] = []
    for (const signer of signers.values()) {
      const parts = { tenant: 'acme', method: route.method, target: url, body: Buffer.from(payload) }
      answers.push(await status(signer.sign(parts)))
    }
    const passed = answers.filter((code) => code !== 401)
    assert.equal(passed.length, 1, `${nameOf(route)} answered ${answers.join(', ')}`)
    assert.ok(route.json ? passed[0] === 400 : ![403, 500].includes(passed[0]!), `${nameOf(route)}: ${passed[0]}`)
  }
})

test("on every route of a profile or a key, another tenant's id answers exactly like an unknown one", async (t) => {
  const { app, call, issue } = await startConductor(t)
  const [mine, theirs] = [await issue('acme', 'owner'), await issue('globex', 'owner')]
  await call(theirs.token, 'POST', '/api/profiles', { name: 'agent' })
  await call(theirs.token, 'POST', '/api/profiles/agent/publish', {})
  const key = await call(theirs.token, 'POST', '/api/profiles/agent/keys', { label: 'l' })
  const pool = await call(theirs.token, 'POST', '/api/pools', { name: 'gpu' })
  const foreign: Fixtures = {
    '/api/pools/{id}': pool.json().id,
    '/api/profiles/{name}': 'agent',
    '/api/profiles/{name}/versions/{version}': '1',
    '/api/profiles/{name}/keys/{keyId}': key.json().id,
    '/api/api-keys/{id}': theirs.id,
  }
  const snapshot = async () => {
    const urls = ['', '/published', '/keys', '/versions']
      .map((path) => `/api/profiles/agent${path}`)
      .concat('/api/pools')
    return Promise.all(urls.map(async (url) => (await call(theirs.token, 'GET', url)).body))
  }
  const before = await snapshot()
  const withIds = (await routesOf(app)).filter(({ path }) =>
    /^\/api\/(api-keys|pools|profiles)\/\{\w+\}(\/(publish|published|rotate|(keys|versions)(\/.+)?))?$/.test(path),
  )
  assert.ok(withIds.length >= 15)
  for (const route of withIds) {
    // A label satisfies the one body that would otherwise be refused before the id is looked at.
    const body = route.json ? (route.path.endsWith('/keys') ? { label: 'l' } : {}) : undefined
    const [a, b] = [
      await call(mine.token, route.method, urlOf(route, foreign), body),
      await call(mine.token, route.method, urlOf(route, unknownIds), body),
    ]
    assert.equal(a.statusCode, 404, nameOf(route))
    assert.equal(b.statusCode, 404, nameOf(route))
    assert.deepEqual({ ...a.json<object>(), request_id: '' }, { ...b.json<object>(), request_id: '' }, nameOf(route))
  }
  assert.deepEqual(await snapshot(), before)
  for (const url of ['/api/profiles', '/api/published', '/api/pools'])
    assert.deepEqual((await call(mine.token, 'GET', url)).json(), [])
})

test('a key works from its issue to its revocation, and not one request longer', async (t) => {
  const { call, issue } = await startConductor(t)
  const owner = await issue('acme', 'owner')
  const minted = (await call(owner.token, 'POST', '/api/api-keys', { label: 'CI', role: 'member' })).json()
  const list = () => call(minted.token, 'GET', '/api/profiles')
  assert.equal((await list()).statusCode, 200)
  assert.equal((await call(owner.token, 'DELETE', `/api/api-keys/${minted.id}`)).statusCode, 204)
  assert.equal((await list()).statusCode, 401)
})

test('a published-agent key is no tenant key', async (t) => {
  const { call, issue } = await startConductor(t)
  const owner = await issue('acme', 'owner')
  await call(owner.token, 'POST', '/api/profiles', { name: 'agent' })
  await call(owner.token, 'POST', '/api/profiles/agent/publish', {})
  const key = await call(owner.token, 'POST', '/api/profiles/agent/keys', { label: 'l' })
  assert.equal((await call(key.json().token, 'GET', '/api/profiles')).statusCode, 401)
})
