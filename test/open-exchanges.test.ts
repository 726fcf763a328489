import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { type IncomingMessage, request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { finished } from 'node:stream/promises'
import { test, type TestContext } from 'node:test'
import { access, definePlugin } from '#kernel'
import { ApiGuard, type TenantRole, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { ObjectStore } from '#contracts/object-store'
import { testRole, until } from '#testing'
import { issueKey } from '../plugins/auth/keys.service.ts'

// Uploads and downloads end with their key, like streams of events (test/e2e/revocation.test.ts).

/** At this pace a download of `large` takes minutes. */
const limits = { transferBytesPerMinute: 1024 * 1024 }
const large = Buffer.alloc(6 * 1024 * 1024, 'x')
const anyPort = Object.fromEntries(
  ['GATEWAY', 'CONDUCTOR', 'INTERNAL', 'RUNNER', 'WORKER', 'SIDECAR'].map((name) => [`AGENT_ORC_${name}_PORT`, '0']),
)

interface Key {
  readonly id: string
  readonly token: string
}

/** All roles in one process, on ports of their own, with a folder for objects. */
async function start(t: TestContext) {
  const dir = await mkdtemp(join(tmpdir(), 'ao-exchanges-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  const parts: { database: Database; tokens: Tokens; objects: ObjectStore }[] = []
  const waiting = { count: 0, over: Promise.withResolvers<void>() }
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, tokens: Tokens, objects: ObjectStore, guard: ApiGuard },
    async setup({ deps, routes }) {
      parts.push(deps)
      routes('conductor', async (app) => {
        deps.guard.protect(app)
        app.get('/api/waiting', access('member'), async () => {
          waiting.count++
          await waiting.over.promise
          return {}
        })
      })
      return {}
    },
  })
  const { urls, listeners } = await testRole(t, 'dev', [probe], anyPort, {
    listen: true,
    settings: { limits, 'storage-disk': { dir } },
  })
  const { database, tokens, objects } = parts[0]!
  const issue = (tenantId: string, role: TenantRole): Promise<Key> =>
    issueKey(database, tokens, { tenantId, role, label: role, createdBy: 'test' })
  const call = async (key: Key, method: 'GET' | 'POST' | 'DELETE', url: string, payload?: object) => {
    const headers = { authorization: `Bearer ${key.token}` }
    const reply = await listeners['conductor']!.inject({ method, url, headers, ...(payload ? { payload } : {}) })
    assert.ok(reply.statusCode < 300, `${method} ${url}: ${reply.body}`)
    return reply.body === '' ? undefined : reply.json()
  }
  /** A request that says more bytes than it sends. */
  const begin = (key: Key, method: 'GET' | 'POST' | 'PUT', path: string, sent?: string, listener = 'conductor') => {
    const type = sent?.startsWith('{') ? 'application/json' : 'text/plain'
    const body = sent === undefined ? {} : { 'content-length': String(sent.length + 3), 'content-type': type }
    const asked = request(urls[listener] + path, {
      method,
      signal: t.signal,
      headers: { authorization: `Bearer ${key.token}`, accept: 'application/octet-stream', ...body },
    })
    if (sent === undefined) asked.end()
    else asked.write(sent)
    return asked
  }
  /** The status of the answer, or how the connection ended without one. */
  const outcome = (asked: ReturnType<typeof begin>): Promise<number | string | undefined> =>
    new Promise((resolve) => {
      asked.once('response', (response) => resolve(response.resume().statusCode))
      asked.once('error', ({ code }: NodeJS.ErrnoException) => resolve(code))
    })
  const download = async (key: Key, path: string): Promise<IncomingMessage> => {
    const [response] = (await once(begin(key, 'GET', path), 'response')) as [IncomingMessage]
    assert.equal(response.statusCode, 200, path)
    return response
  }
  // The folder comes with the first upload.
  const incoming = async (): Promise<number> => (await readdir(join(dir, '.incoming')).catch(() => [])).length
  return { objects, issue, call, begin, outcome, download, incoming, waiting }
}

test('uploads and downloads end with their key, and nothing of an upload is kept', { timeout: 60_000 }, async (t) => {
  const { objects, issue, call, begin, outcome, download, incoming } = await start(t)
  const owner = await issue('default', 'owner')
  await call(owner, 'POST', '/api/profiles', { name: 'agent' })
  await call(owner, 'POST', '/api/profiles/agent/publish', {})
  const agent: Key = await call(owner, 'POST', '/api/profiles/agent/keys', { label: 'test' })
  const [admin, other] = [await issue('default', 'admin'), await issue('default', 'admin')]
  const uploads = [
    begin(admin, 'PUT', '/api/storage/objects/stored', 'of a key that ends'),
    begin(admin, 'PUT', '/api/vfs/files/objects/proxied', 'of a key that ends'),
    begin(admin, 'POST', '/api/attachments', 'of a key that ends'),
    begin(agent, 'POST', '/v1/chat/default/agent/attachments', 'of a key that ends', 'gateway'),
    begin(admin, 'POST', '/api/api-keys', '{"label":"of a key that ends"'),
  ].map(outcome)
  const staying = begin(other, 'PUT', '/api/storage/objects/staying', 'of a key that stays')
  const stayed = outcome(staying)
  await until(async () => (await incoming()) === 5, 'the uploads are under way')
  const seen = async (): Promise<unknown[]> => call(owner, 'GET', '/api/audit?action=api-keys.create')
  await until(async () => (await seen()).length === 1, 'the request with JSON is under way')

  // The pace is that of a tenant, so each download has one of its own.
  const downloads: Promise<void>[] = []
  const readers: [Key, Key][] = []
  for (const [tenant, path] of [
    ['acme', '/api/storage/objects/large'],
    ['globex', '/api/vfs/files/objects/large'],
  ] as const) {
    const body = (async function* () {
      yield large
    })()
    await objects.put(tenant, 'large', { body, contentType: 'text/plain' })
    const [boss, reader] = [await issue(tenant, 'owner'), await issue(tenant, 'member')]
    readers.push([boss, reader])
    const response = await download(reader, path)
    downloads.push(assert.rejects(finished(response.resume()), { code: 'ECONNRESET' }, path))
  }

  for (const [boss, { id }] of [...readers, [owner, admin] as const]) await call(boss, 'DELETE', `/api/api-keys/${id}`)
  await call(owner, 'DELETE', `/api/profiles/agent/keys/${agent.id}`)
  assert.deepEqual(await Promise.all(uploads), Array(5).fill('ECONNRESET'))
  await Promise.all(downloads)
  await until(async () => (await incoming()) === 1, 'nothing of the other uploads is left')
  staying.end('end')
  assert.equal(await stayed, 201)
  const { objects: kept }: { objects: { key: string }[] } = await call(owner, 'GET', '/api/storage/objects')
  assert.deepEqual(
    kept.map(({ key }) => key),
    ['staying'],
  )
})

test('a request whose handler waits ends with its key, and no other does', { timeout: 60_000 }, async (t) => {
  const { issue, call, begin, outcome, waiting } = await start(t)
  const owner = await issue('default', 'owner')
  const [admin, other] = [await issue('default', 'admin'), await issue('default', 'admin')]
  const [ended, stayed] = [admin, other].map((key) => outcome(begin(key, 'GET', '/api/waiting')))
  await until(async () => waiting.count === 2, 'both handlers wait')
  await call(owner, 'DELETE', `/api/api-keys/${admin.id}`)
  assert.equal(await ended, 'ECONNRESET')
  waiting.over.resolve()
  assert.equal(await stayed, 200)
})
