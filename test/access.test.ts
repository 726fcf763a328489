import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { roleAtLeast, roles, type TenantRole, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { databasePlugin, freshDatabase, testKernel } from '#testing'
import apiGuard from '../plugins/api-guard/index.ts'
import apiKeys from '../plugins/api-keys/index.ts'
import { issueKey } from '../plugins/api-keys/issue.ts'
import profiles from '../plugins/profiles/index.ts'
import publishing from '../plugins/publishing/index.ts'
import tokens from '../plugins/tokens/index.ts'

// Generated from the route table, as `/openapi.json` shows it: a new route of these plugins is tested without being named here.

type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
interface Route {
  readonly method: Method
  readonly path: string
  readonly access: TenantRole
}
interface Document {
  readonly paths: Record<string, Record<string, { 'x-access'?: TenantRole }>>
}
interface Fixture {
  readonly profile: string
  readonly keyId: string
  readonly apiKeyId: string
}

const unknown: Fixture = { profile: 'nobody', keyId: 'key_0000', apiKeyId: 'tak_0000' }

/** A route with its parameters filled in. A parameter without a fixture fails: then this test does not know the route. */
function urlOf({ path }: Route, { profile, keyId, apiKeyId }: Fixture): string {
  const values: Record<string, string> = { name: profile, keyId, id: apiKeyId }
  return path.replace(/\{(\w+)\}/g, (_, param: string) => {
    const value = values[param]
    assert.ok(value !== undefined, `${path}: no fixture for {${param}}`)
    return value
  })
}

async function conductor(t: TestContext) {
  const parts: { database: Database; tokens: Tokens }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, tokens: Tokens },
    setup: async ({ deps }) => (parts.push(deps), {}),
  })
  const kernel = await testKernel(t, [
    await databasePlugin(await freshDatabase(t)),
    { name: 'tokens', plugin: tokens, config: { pepper: randomBytes(32).toString('base64') } },
    apiGuard,
    apiKeys,
    profiles,
    publishing,
    probe,
  ])
  const { database, tokens: minter } = parts[0]!
  const app = kernel.listeners['conductor']!
  const call = (key: string | undefined, method: Method, url: string, body?: object) => {
    const headers = key === undefined ? {} : { authorization: `Bearer ${key}` }
    return app.inject({ method, url, headers, ...(body ? { body } : {}) })
  }
  const issue = (tenantId: string, role: TenantRole) =>
    issueKey(database, minter, { tenantId, role, label: role, createdBy: 'test' })
  const document = (await app.inject('/openapi.json')).json<Document>()
  const routes: Route[] = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).flatMap(([method, { 'x-access': access }]) =>
      access ? [{ method: method.toUpperCase() as Method, path, access }] : [],
    ),
  )
  return { call, issue, routes, database }
}

const bodyFor = (method: Method): object | undefined => (method === 'GET' || method === 'DELETE' ? undefined : {})

test('who may call what is exactly this', async (t) => {
  const { routes } = await conductor(t)
  assert.deepEqual(routes.map(({ method, path, access }) => `${access} ${method} ${path}`).toSorted(), [
    'admin DELETE /api/profiles/{name}',
    'admin DELETE /api/profiles/{name}/keys/{keyId}',
    'admin DELETE /api/profiles/{name}/published',
    'admin GET /api/profiles/{name}/keys',
    'admin PATCH /api/profiles/{name}/published',
    'admin POST /api/profiles',
    'admin POST /api/profiles/{name}/keys',
    'admin POST /api/profiles/{name}/publish',
    'admin PUT /api/profiles/{name}',
    'member DELETE /api/api-keys/{id}',
    'member GET /api/api-keys',
    'member GET /api/profiles',
    'member GET /api/profiles/{name}',
    'member GET /api/profiles/{name}/published',
    'member GET /api/published',
    'member POST /api/api-keys',
  ])
})

test('on every route, a role below the declared one is 403, no key or a broken one is 401, and the rest pass', async (t) => {
  const { call, issue, routes } = await conductor(t)
  const keys = new Map<TenantRole, string>()
  for (const role of roles) keys.set(role, (await issue('acme', role)).token)
  for (const route of routes) {
    const url = urlOf(route, unknown)
    const body = bodyFor(route.method)
    for (const [role, key] of keys) {
      const { statusCode } = await call(key, route.method, url, body)
      const message = `${role}: ${route.method} ${route.path} answered ${statusCode}`
      if (roleAtLeast(role, route.access)) assert.ok(![401, 403, 500].includes(statusCode), message)
      else assert.equal(statusCode, 403, message)
    }
    for (const key of [undefined, `${keys.get('owner')}x`]) {
      assert.equal((await call(key, route.method, url, body)).statusCode, 401, `${route.method} ${route.path}`)
    }
  }
})

test("on every route with an id, another tenant's id answers exactly like an unknown one", async (t) => {
  const { call, issue, routes } = await conductor(t)
  const [mine, theirs] = [await issue('acme', 'owner'), await issue('globex', 'owner')]
  await call(theirs.token, 'POST', '/api/profiles', { name: 'agent' })
  await call(theirs.token, 'POST', '/api/profiles/agent/publish', {})
  const key = await call(theirs.token, 'POST', '/api/profiles/agent/keys', { label: 'l' })
  const foreign: Fixture = { profile: 'agent', keyId: key.json().id, apiKeyId: theirs.id }
  const snapshot = async () => {
    const urls = ['/api/profiles/agent', '/api/profiles/agent/published', '/api/profiles/agent/keys']
    return Promise.all(urls.map(async (url) => (await call(theirs.token, 'GET', url)).body))
  }
  const before = await snapshot()
  const withIds = routes.filter(({ path }) => path.includes('{'))
  assert.ok(withIds.length >= 11)
  for (const route of withIds) {
    // A label satisfies the one body that would otherwise be refused before the id is looked at.
    const body = bodyFor(route.method) && (route.path.endsWith('/keys') ? { label: 'l' } : {})
    const [a, b] = [
      await call(mine.token, route.method, urlOf(route, foreign), body),
      await call(mine.token, route.method, urlOf(route, unknown), body),
    ]
    const message = `${route.method} ${route.path}`
    assert.equal(a.statusCode, 404, message)
    assert.equal(b.statusCode, 404, message)
    assert.deepEqual({ ...a.json<object>(), request_id: '' }, { ...b.json<object>(), request_id: '' }, message)
  }
  assert.deepEqual(await snapshot(), before)
  for (const url of ['/api/profiles', '/api/published'])
    assert.deepEqual((await call(mine.token, 'GET', url)).json(), [])
})

test('a key works from its issue to its revocation, and not one request longer', async (t) => {
  const { call, issue } = await conductor(t)
  const owner = await issue('acme', 'owner')
  const minted = (await call(owner.token, 'POST', '/api/api-keys', { label: 'CI', role: 'member' })).json()
  const list = () => call(minted.token, 'GET', '/api/profiles')
  assert.equal((await list()).statusCode, 200)
  assert.equal((await call(owner.token, 'DELETE', `/api/api-keys/${minted.id}`)).statusCode, 204)
  assert.equal((await list()).statusCode, 401)
})

test('a published-agent key is no tenant key', async (t) => {
  const { call, issue } = await conductor(t)
  const owner = await issue('acme', 'owner')
  await call(owner.token, 'POST', '/api/profiles', { name: 'agent' })
  await call(owner.token, 'POST', '/api/profiles/agent/publish', {})
  const key = await call(owner.token, 'POST', '/api/profiles/agent/keys', { label: 'l' })
  assert.equal((await call(key.json().token, 'GET', '/api/profiles')).statusCode, 401)
})

test('keys of a deleted tenant are refused at once', async (t) => {
  const { call, issue, database } = await conductor(t)
  const owner = await issue('acme', 'owner')
  await database.systemBatch([{ text: `UPDATE tenants SET deleted_at = now() WHERE id = 'acme'` }])
  assert.equal((await call(owner.token, 'GET', '/api/profiles')).statusCode, 401)
})
