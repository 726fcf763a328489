import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { type IncomingHttpHeaders, request } from 'node:http'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { bootRole, type RoleName } from './e2e/roles.ts'
import { nameOf, type Route, unknownIds } from './route-table.ts'
import { freshDatabase } from '#testing'
import { ask as askProxy } from '../plugins/sandboxes/test/hosts.ts'

// What a page of the web can make its visitor's browser do here, over real sockets, on every route of every listener.

const ports = ['GATEWAY', 'CONDUCTOR', 'INTERNAL', 'RUNNER', 'WORKER', 'SIDECAR'].map((name) => [
  `AGENT_ORC_${name}_PORT`,
  '0',
])
const key = Buffer.alloc(32, 7).toString('base64')

const urlsOf = async (t: TestContext, role: RoleName, env: Record<string, string> = {}) => {
  const started = await bootRole(role, {
    ...(Object.fromEntries(ports) as Record<string, string>),
    INTERNAL_PORT: '0',
    POSTGRES_DSN: role === 'dev' ? await freshDatabase(t) : '',
    AGENT_API_KEY_PEPPER: key,
    CHAT_GATEWAY_SIGNING_KEY_CURRENT: key,
    AGENT_ORC_WORKER_SIGNING_KEY_CURRENT: key,
    ...env,
  })
  t.after(() => started.end())
  return Object.entries(started.urls)
}

interface Answer {
  readonly status: number
  readonly headers: IncomingHttpHeaders
  readonly body: string
}

/** Not `fetch`, which lets nobody choose the host that it names. */
async function ask(base: string, method: string, path: string, headers: Record<string, string>): Promise<Answer> {
  const body = headers['content-type'] ? { 'content-length': '2' } : {}
  const asked = request(new URL(path, base), { method, headers: { connection: 'close', ...body, ...headers } })
  asked.end(headers['content-type'] ? '{}' : undefined)
  const [reply] = await once(asked, 'response')
  return { status: reply.statusCode, headers: reply.headers, body: await text(reply) }
}

const json = { 'content-type': 'application/json' }
const errorOf = ({ status, body }: Answer) => [status, JSON.parse(body).error]

type Documented = Pick<Route, 'method' | 'path'>

/** Every documented route, and a few that no document has. */
async function routesOf(base: string): Promise<Documented[]> {
  // A listener whose callers sign has no document for others.
  const { paths = {} } = JSON.parse((await ask(base, 'GET', '/openapi.json', {})).body)
  const named = Object.entries(paths as Record<string, object>).flatMap(([path, operations]) =>
    Object.keys(operations).map((method) => ({ method: method.toUpperCase() as Route['method'], path })),
  )
  return [...named, { method: 'GET', path: '/openapi.json' }, { method: 'POST', path: '/no/route' }]
}
const filled = ({ path }: Documented): string =>
  path.replaceAll(
    /\{[^}]+\}/g,
    (param, at: number) => unknownIds[path.slice(0, at) + param] ?? 'sess-00000000-00000000',
  )

for (const role of ['dev', 'memory'] as const) {
  test(`${role}: under a foreign name (DNS rebinding) and from a foreign origin no route of any listener does anything`, async (t) => {
    const urls = await urlsOf(t, role, role === 'memory' ? { AGENT_ORC_SIDECAR_PORT: '0' } : {})
    assert.ok(urls.length >= 5)
    for (const [listener, base] of urls) {
      const { port } = new URL(base)
      const routes = await routesOf(base)
      const signed = listener === 'vfs'
      assert.ok(signed || routes.length >= 4, listener)
      for (const route of routes) {
        const about = `${listener}: ${nameOf(route)}`
        const evil = { host: `evil.example:${port}`, origin: `http://evil.example:${port}`, ...json }
        if (signed) {
          // No page can sign.
          assert.deepEqual(errorOf(await ask(base, route.method, filled(route), evil)), [401, 'unauthorized'], about)
          continue
        }
        assert.deepEqual(errorOf(await ask(base, route.method, filled(route), evil)), [421, 'unknown_host'], about)
        // A page of another port of this machine, which is another origin.
        const refused = errorOf(await ask(base, route.method, filled(route), { origin: 'http://localhost:1', ...json }))
        // Published agents have origins of their own: there it is the key that is missing, or the database.
        const own = listener === 'gateway' && route.path.startsWith('/v1/')
        if (own) assert.ok([401, 503].includes(refused[0]), about)
        else assert.deepEqual(refused, [403, 'origin_not_allowed'], about)
      }
    }
  })
}

for (const role of ['runner', 'sidecar', 'vfs'] as const) {
  test(`${role}: under a foreign name no listener of the production file says how the process is; probes by address go on`, async (t) => {
    const folder = await mkdtemp(join(tmpdir(), 'ao-pages-'))
    t.after(() => rm(folder, { recursive: true, force: true }))
    const of = {
      runner: { RUNNER_PORT: '0' },
      sidecar: { PORT: '0' },
      vfs: { VFS_PORT: '0', AGENT_ORC_VFS_DIR: folder },
    }
    const urls = await urlsOf(t, role, {
      ...of[role],
      ...(role === 'vfs' ? { VFS_INTERNAL_SIGNING_KEY_CURRENT: key } : {}),
      AGENT_ORC_WORKER_BASE_URL: 'http://workers.example',
      AGENT_ORC_OPERATIONS_PORT: '0',
      HEALTH_PORT: '0',
    })
    assert.equal(urls.length, role === 'runner' ? 4 : 3)
    for (const [listener, base] of urls) {
      const evil = await ask(base, 'GET', '/readyz', { host: 'evil.example' })
      const byAddress = await ask(base, 'GET', '/readyz', {})
      // Whoever has to sign is told no more than that.
      const signed = listener === 'vfs'
      assert.deepEqual(errorOf(evil), signed ? [401, 'unauthorized'] : [421, 'unknown_host'], listener)
      assert.ok(signed ? byAddress.status === 401 : [200, 503].includes(byAddress.status), listener)
      if (listener !== 'workers') continue
      const named = await ask(base, 'GET', '/readyz', { host: 'workers.example' })
      assert.equal(named.status, byAddress.status, 'the name that sandboxes use')
    }
  })
}

test('dev: a request for another host is for the proxy of sandboxes, which wants its key; no other listener is one', async (t) => {
  for (const [listener, base] of await urlsOf(t, 'dev', {})) {
    const { status, body } = await askProxy(base, 'http://evil.example/healthz', { headers: { host: 'evil.example' } })
    const expected = listener === 'workers' ? [407, 'proxy_key_refused'] : [421, 'unknown_host']
    assert.deepEqual([status, (JSON.parse(body) as { error: string }).error], expected, listener)
  }
})

test('a page that was led to the port of the runner begins no session there, and calls no tool of one', async (t) => {
  const urls = Object.fromEntries(await urlsOf(t, 'memory'))
  const runner = urls['runner']!
  const profile = { name: 'p', id: 'p', runtime: 'general', model: 'builtin/echo', tools: ['current_time'] }
  const begin = (headers: Record<string, string>, path = '/runner/sessions') => {
    const asked = request(new URL(path, runner), {
      method: 'POST',
      headers: { ...json, 'x-tenant-id': 'default', accept: 'application/json, text/event-stream', ...headers },
    })
    asked.end(
      JSON.stringify(
        path === '/runner/sessions'
          ? { profileName: 'p', profile }
          : { jsonrpc: '2.0', id: 1, method: 'tools/list', params: {} },
      ),
    )
    return once(asked, 'response').then(async ([reply]) => ({ status: reply.statusCode, body: await text(reply) }))
  }
  const { port } = new URL(runner)
  const host = `evil.example:${port}`
  assert.equal((await begin({ host })).status, 421)
  assert.equal((await begin({ origin: 'https://evil.example' })).status, 403)
  const mcp = '/runner/sessions/sess-00000000-00000000/mcp'
  assert.equal((await begin({ host }, mcp)).status, 421)
  assert.equal((await begin({ origin: 'https://evil.example' }, mcp)).status, 403)
  assert.equal((await begin({}, mcp)).status, 404, 'what is no browser gets as far as the session')
})

test('every answer of every listener says nosniff and no-store, and behind TLS that it is to be asked over TLS', async (t) => {
  for (const [listener, base] of await urlsOf(t, 'dev')) {
    for (const route of await routesOf(base)) {
      const about = `${listener}: ${nameOf(route)}`
      const { headers } = await ask(base, route.method, filled(route), {})
      assert.equal(headers['x-content-type-options'], 'nosniff', about)
      assert.equal(headers['cache-control'], 'no-store', about)
      assert.equal(headers['strict-transport-security'], undefined, about)
      const behind = await ask(base, route.method, filled(route), { 'x-forwarded-proto': 'https' })
      assert.equal(behind.headers['strict-transport-security'], 'max-age=31536000', about)
    }
    const { status, headers } = await ask(base, 'GET', '/%zz', { 'x-forwarded-proto': 'https' })
    assert.deepEqual(
      [status, headers['x-content-type-options'], headers['cache-control'], headers['strict-transport-security']],
      // A listener whose callers sign tells others nothing else.
      [listener === 'vfs' ? 401 : 400, 'nosniff', 'no-store', 'max-age=31536000'],
      listener,
    )
    for (const [status, sent] of [
      [400, 'no http'],
      [431, `GET / HTTP/1.1\r\nhost: a\r\nlong: ${'x'.repeat(17 * 1024)}`],
    ] as const) {
      const socket = connect(Number(new URL(base).port), '127.0.0.1')
      socket.end(`${sent}\r\n\r\n`)
      const answer = await text(socket)
      assert.match(answer, new RegExp(`^HTTP/1\\.1 ${status} `), listener)
      for (const header of ['x-content-type-options: nosniff', 'cache-control: no-store'])
        assert.ok(answer.includes(`\r\n${header}\r\n`), `${listener}: ${answer}`)
      assert.doesNotMatch(answer, /strict-transport-security/, listener)
    }
  }
})
