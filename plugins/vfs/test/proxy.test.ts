import assert from 'node:assert/strict'
import { once } from 'node:events'
import { stat } from 'node:fs/promises'
import { createServer, type IncomingMessage, request, type RequestListener } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { definePlugin, type Plugin } from '#kernel'
import { ApiGuard, type Guard } from '#contracts/auth'
import { defaultLimits, TenantLimits } from '#contracts/limits'
import { TenantData, type TenantDataStore } from '#contracts/retention'
import { signedHeaders, type Signer, Signers } from '#contracts/signing'
import { signedForm } from '#contracts/vfs'
import { fake, testKernel, testVfs, until } from '#testing'
import proxy from '../proxy/index.ts'
import { targetOf } from '../proxy/routes.ts'

/** Every caller acts for the tenant in the header `key`. */
const openGuard: Guard = {
  protect() {},
  callerOf: ({ headers }) => ({ tenantId: String(headers['key'] ?? 'acme'), role: 'owner', keyId: 'tak_test' }),
}

async function upstreamOf(t: TestContext, handler: RequestListener): Promise<string> {
  const server = createServer(handler).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** A conductor that has only the proxy, on its own port. */
async function startProxy(t: TestContext, baseUrl: string, signer?: Signer, config: object = {}) {
  const turns: unknown[][] = []
  const found: { data: ReadonlyMap<string, TenantDataStore> }[] = []
  const uses = new Map<string, (tenantId: string) => unknown>()
  const probe = definePlugin({
    name: 'probe',
    requires: { data: TenantData },
    setup: async ({ deps }) => (found.push(deps), {}),
  })
  const limits = {
    of: () => defaultLimits,
    paced: (_: string, body: AsyncIterable<Uint8Array>) => body,
    turn: async (...asked: unknown[]) => void turns.push(asked),
    uses: (name: string, count: (tenantId: string) => unknown) => void uses.set(name, count),
  } as unknown as TenantLimits
  const kernel = await testKernel(
    t,
    [
      fake(ApiGuard, openGuard),
      fake(TenantLimits, limits),
      fake(Signers, signer ? { vfs: signer } : {}) as Plugin,
      { name: 'vfs-proxy', plugin: proxy, config: { baseUrl, ...config } },
      probe,
    ],
    { listeners: ['conductor'], listen: true },
  )
  const url = kernel.urls['conductor']!
  const ask = async (method: string, path: string, headers: Record<string, string> = {}, body?: string) => {
    const asked = request(url, { method, path, headers })
    asked.end(body)
    const [answer] = (await once(asked, 'response')) as [IncomingMessage]
    return { status: answer.statusCode, headers: answer.headers, body: await text(answer) }
  }
  const { server } = kernel.listeners['conductor']!
  return { url, ask, data: found[0]!.data, uses, turns, server, limits }
}

test('the prefix is stripped, and nothing that the client proves itself with goes on: the request is signed for the tenant of its key', async (t) => {
  const server = await testVfs(t)
  const seen: IncomingMessage[] = []
  const base = await upstreamOf(t, (asked, answer) => {
    seen.push(asked)
    asked.resume()
    answer
      .writeHead(200, {
        'content-type': 'text/html',
        etag: '"1"',
        'cache-control': 'public, max-age=600',
        'set-cookie': 'a=b',
        'access-control-allow-origin': '*',
        connection: 'x-hop, keep-alive',
        'x-hop': '1',
        'x-request-id': 'theirs',
      })
      .end('<script>')
  })
  const { ask } = await startProxy(t, `${base}/below`, server.signer)
  const headers = {
    key: 'globex',
    authorization: 'Bearer ao_dev_secret',
    cookie: 'session=1',
    'x-api-key': 'k',
    'proxy-authorization': 'Basic x',
    'x-tenant-id': 'acme',
    'x-vfs-session': 's1',
    'x-vfs-content-sha256': 'a'.repeat(64),
    'x-forwarded-for': '10.0.0.1',
    ...Object.fromEntries(Object.values(signedHeaders).map((name) => [name, 'forged'])),
    range: 'bytes=0-1',
    connection: 'range, x-custom',
    'x-custom': 'hop',
    te: 'trailers',
  }
  for (const body of [undefined, 'body']) {
    const answer = await ask(body === undefined ? 'GET' : 'PUT', '/api/vfs/files/m/a%20b?x=1', headers, body)
    assert.deepEqual([answer.status, answer.body], [200, '<script>'])
    assert.deepEqual(
      ['set-cookie', 'access-control-allow-origin', 'x-hop', 'etag', 'content-disposition', 'cache-control'].map(
        (name) => answer.headers[name],
      ),
      [undefined, undefined, undefined, '"1"', 'attachment', 'no-store'],
    )
    assert.notEqual(answer.headers['x-request-id'], 'theirs')
    const asked = seen.at(-1)!
    assert.equal(asked.url, '/below/vfs/files/m/a%20b?x=1')
    const gone = [
      'authorization',
      'cookie',
      'x-api-key',
      'proxy-authorization',
      'x-tenant-id',
      'x-forwarded-for',
      'x-custom',
      'te',
      'range',
      'key',
    ]
    assert.deepEqual(
      gone.filter((name) => asked.headers[name] !== undefined),
      [],
    )
    const digest = body === undefined ? '' : 'stream'
    assert.equal(asked.headers['x-vfs-content-sha256'] ?? '', digest)
    const signed = { method: asked.method!, target: asked.url!, body: signedForm('s1', digest) }
    assert.deepEqual(await server.signer.verify(asked.headers, signed), { tenant: 'globex' })
  }
})

test('an upstream that cannot be reached, or breaks off before it answers, is 502 in the words of the contract', async (t) => {
  const broken = await upstreamOf(t, (asked) => asked.socket.destroy())
  for (const base of ['http://127.0.0.1:1', broken]) {
    const { ask } = await startProxy(t, base)
    const { status, body } = await ask('GET', '/api/vfs/mounts')
    assert.deepEqual([status, (JSON.parse(body) as { error: string }).error], [502, 'vfs upstream unavailable'])
  }
})

/** Paths below /api/vfs/ that some server could read as another path. */
const stepsUp = [
  '..',
  '../x',
  'a/../../x',
  'a/..',
  './x',
  '%2e%2e/x',
  '.%2e/x',
  '%2E./x',
  '%252e%252e/x',
  '%25252e%25252e%25252fx',
  '..%2fx',
  '%2e%2e%2fx',
  '..%252fx',
  '..%5cx',
  '..\\x',
  'a\\..\\x',
  '%5c',
  '%c0%ae%c0%ae/x',
  '%c0%af',
  '%e0%80%af',
  '%uff0e',
  '..;/x',
  '..;a=b/x',
  '%2e%2e;/x',
  '/x',
  'a//b',
  '//host/x',
  '%2f%2fhost',
  'a%2fb',
  'a%00b',
  'a%0ab',
  '%ef%bc%8e%ef%bc%8e/x',
  'a%ef%bc%8fb',
  'a%ef%bc%bcb',
  '%e2%80%a5/x',
  'ü',
  `%${'25'.repeat(9)}2e`,
]

test('no path leads out of /vfs, in whatever encoding; the upstream is not asked', async (t) => {
  let asked = 0
  const base = await upstreamOf(t, (_, answer) => {
    asked++
    answer.end('ok')
  })
  const { ask } = await startProxy(t, base)
  for (const path of stepsUp.filter((one) => /^[\x21-\x7e]*$/.test(one))) {
    for (const place of ['', 'files/m/']) {
      const { status, body } = await ask('GET', `/api/vfs/${place}${path}`)
      assert.ok(status === 400 || status === 404, `${place}${path}: ${status} ${body}`)
      assert.equal(targetOf(`/api/vfs/${place}${path}`), undefined, path)
    }
  }
  for (const path of ['leases/', '%6ceases/x', 'tenant', '%74enant', 'tenant/']) {
    assert.equal((await ask('GET', `/api/vfs/${path}`)).status, 404, path)
  }
  for (const path of ['sessions/x', 'sessions', '%73essions/x'])
    assert.equal((await ask('PUT', `/api/vfs/${path}`)).status, 404, path)
  assert.equal(asked, 0)
  for (const path of [
    'mounts',
    'files/m/100%25.txt',
    'files/m/a%2520b',
    'list/m/',
    'files/m/.a',
    'files/m/%F0%9F%98%80',
    'files/m/[...slug].ts',
  ]) {
    assert.equal((await ask('GET', `/api/vfs/${path}`)).status, 200, path)
  }
})

test(
  'a reader who takes nothing holds the upstream back, and one who leaves ends it',
  { timeout: 60_000 },
  async (t) => {
    let sent = 0
    let ended = 0
    const base = await upstreamOf(t, (asked, answer) => {
      answer.on('close', () => ended++)
      if (asked.url === '/vfs/files/m/silent') return
      const chunk = Buffer.alloc(256 * 1024)
      const more = (): void => {
        while (!answer.destroyed) {
          sent += chunk.length
          if (!answer.write(chunk)) return
        }
      }
      answer.on('drain', more)
      more()
    })
    const { url } = await startProxy(t, base)
    const download = request(`${url}/api/vfs/files/m/endless`).end()
    const [answer] = (await once(download, 'response')) as [IncomingMessage]
    await once(answer, 'readable')
    // The proxy reads only what fits into the buffers of four sockets, and no more however long the client does not read.
    let before = -1
    await until(async () => {
      await new Promise((resolve) => setTimeout(resolve, 300))
      const same = sent === before
      before = sent
      return same
    }, 'the upstream is held back')
    assert.ok(sent < 48 * 1024 * 1024, `${sent} bytes were taken from the upstream`)
    download.destroy()
    await until(async () => ended === 1, 'the upstream request is over')
    // A client may also go away before there is an answer.
    const waiting = request(`${url}/api/vfs/files/m/silent`).end()
    waiting.on('error', () => {})
    await once(waiting, 'socket')
    await new Promise((resolve) => setTimeout(resolve, 200))
    waiting.destroy()
    await until(async () => ended === 2, 'the upstream request that was not answered is over')
  },
)

test(
  'an upload that the upstream does not read waits; one whose sender leaves ends there, too',
  { timeout: 60_000 },
  async (t) => {
    let arrived: IncomingMessage | undefined
    const base = await upstreamOf(t, (asked) => void (arrived = asked.pause()))
    const { url } = await startProxy(t, base)
    const upload = request(`${url}/api/vfs/files/m/large`, { method: 'PUT' })
    upload.on('error', () => {})
    const chunk = Buffer.alloc(256 * 1024)
    let sent = 0
    const drained = (): Promise<boolean> =>
      Promise.race([
        once(upload, 'drain').then(() => true),
        new Promise<false>((resolve) => setTimeout(resolve, 1_000, false)),
      ])
    do {
      upload.write(chunk)
      sent += chunk.length
    } while (sent < 512 * 1024 * 1024 && (await drained()))
    assert.ok(sent < 48 * 1024 * 1024, `${sent} bytes were taken from the client`)
    upload.destroy()
    // What is not read says nothing, also not that it was cut.
    await assert.rejects(once(arrived!.resume(), 'end'), { message: 'aborted' })
  },
)

test('with a server behind it: files of the tenant of the key, its usage, and its erasure', async (t) => {
  const mounts = { files: { kind: 'objects', tenants: ['*'] } }
  const { url: server, signer, client, dir } = await testVfs(t, { settings: { mounts } })
  const { url, ask, uses, data } = await startProxy(t, server, signer)
  const put = await ask('PUT', '/api/vfs/files/files/a', { 'content-type': 'text/plain' }, 'hello')
  assert.deepEqual([put.status, put.headers['etag'] !== undefined], [201, true])
  assert.equal((await ask('GET', '/api/vfs/files/files/a')).body, 'hello')
  assert.equal((await ask('GET', '/api/vfs/files/files/a', { key: 'globex' })).status, 404)
  assert.equal(
    (await ask('GET', '/api/vfs/files/files/a', { 'if-none-match': String(put.headers['etag']) })).status,
    304,
  )
  // A search may contain any text, and the proxy passes it on as it was written.
  for (const q of ['../', '%2e%2e%2F', '100%', '%zz', '"<>|', "a'b", '?', 'hello'])
    assert.equal((await ask('GET', `/api/vfs/search?q=${q}`)).status, 200, q)
  assert.equal((await ask('GET', '/api/vfs/mounts?')).status, 200)
  // The answer arrives before the whole body was sent.
  const large = request(`${url}/api/vfs/files/files/b`, {
    method: 'PUT',
    headers: { 'content-length': '5000000000000' },
  })
  large.on('error', () => {})
  large.write(Buffer.alloc(64 * 1024))
  const [refused] = (await once(large, 'response')) as [IncomingMessage]
  assert.deepEqual(
    [refused.statusCode, (JSON.parse(await text(refused)) as { error: string }).error],
    [413, 'body_too_large'],
  )
  large.destroy()
  // A client that keeps sending gets the answer as well.
  const endless = request(`${url}/api/vfs/files/files/b`, { method: 'PUT' }).setMaxListeners(0)
  endless.on('error', () => {})
  const told = once(endless, 'response') as Promise<[IncomingMessage]>
  for (let i = 0; i < 320 && !endless.destroyed; i++) {
    if (!endless.write(Buffer.alloc(64 * 1024))) await Promise.race([once(endless, 'drain'), told])
  }
  const [late] = await told
  assert.deepEqual(
    [late.statusCode, (JSON.parse(await text(late)) as { error: string }).error],
    [413, 'body_too_large'],
  )
  endless.destroy()
  // So does one that reads only after it has sent everything: its connection is not reset meanwhile.
  const sender = connect({ port: Number(new URL(url).port), host: '127.0.0.1', allowHalfOpen: true })
  const read = text(sender)
  const send = (what: string | Buffer) =>
    new Promise<void>((resolve, reject) => sender.write(what, (error) => (error ? reject(error) : resolve())))
  await send('PUT /api/vfs/files/files/b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000000000000\r\n\r\n')
  await send(Buffer.alloc(64 * 1024))
  assert.match(await read, /^HTTP\/1\.1 413 [^]*"error":"body_too_large"/)
  for (let i = 0; i < 64; i++) await send(Buffer.alloc(64 * 1024))
  sender.destroy()
  await client.open('acme', 's1', {})
  await client.write({ tenantId: 'acme', sessionId: 's1' }, 'scratch', 'x', { body: Buffer.from('12345') })
  assert.deepEqual(
    await Promise.all(['vfsBytes', 'vfsEntries', 'vfsSessions'].map((name) => uses.get(name)!('acme'))),
    [5, 1, 1],
  )
  // A session of another tenant is answered like an unknown one.
  const foreign = await ask('GET', '/api/vfs/list/scratch/', { key: 'globex', 'x-vfs-session': 's1' })
  const unknown = await ask('GET', '/api/vfs/list/scratch', { key: 'globex', 'x-vfs-session': 's2' })
  assert.deepEqual([foreign.status, unknown.status], [404, 404])
  assert.deepEqual([...data.keys()], ['vfs'])
  // Only the conductor itself sets a hold.
  assert.equal((await ask('PUT', '/api/vfs/tenant/hold', { key: 'acme' }, '{"held":false}')).status, 404)
  const held = () =>
    stat(join(dir, 'vfs/tenants/+acme/held')).then(
      ({ size }) => size,
      () => undefined,
    )
  const { signal } = new AbortController()
  await data.get('vfs')!.hold!('acme', true, signal)
  assert.equal(await held(), 0)
  await data.get('vfs')!.hold!('acme', false, signal)
  assert.equal(await held(), undefined)
  assert.deepEqual(await data.get('vfs')!.erase('acme', signal), { deleted: 2, more: false })
  assert.equal(await uses.get('vfsSessions')!('acme'), 0)
})

test('searches and long lists take as many turns of their tenant as they cost', async (t) => {
  const base = await upstreamOf(t, (_, answer) => answer.end('{}'))
  const { ask, turns } = await startProxy(t, base, (await testVfs(t)).signer)
  const list = '/api/vfs/list/files/'
  for (const path of ['/api/vfs/files/m/search', list, `${list}?limit=50`, `${list}?limit=x`])
    assert.equal((await ask('GET', path)).status, 200)
  assert.deepEqual(turns, [])
  for (const path of ['/api/vfs/search?q=x', '/api/vfs/%73earch?q=x', `${list}?limit=1000`, `${list}?limit=1e12`])
    assert.equal((await ask('GET', path)).status, 200)
  const of = (weight: number) => ['acme', 'readsPerMinute', weight]
  assert.deepEqual(turns, [of(60), of(60), of(10), of(10)])
})

test('who leaves while a search waits for its turn holds no share of its tenant afterwards', async (t) => {
  const base = await upstreamOf(t, (_, answer) => answer.end('{}'))
  const { url, ask, server, limits } = await startProxy(t, base, (await testVfs(t)).signer, { requestsAtOnce: 1 })
  const [waits, gate] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  t.mock.method(limits, 'turn', () => (waits.resolve(), gate.promise))
  const left = once(server, 'request').then(([, response]) => once(response, 'close'))
  const asked = request(url, { path: '/api/vfs/search?q=x' })
  asked.on('error', () => {}).end()
  await waits.promise
  asked.destroy()
  await left
  gate.resolve()
  await until(async () => (await ask('GET', '/api/vfs/mounts')).status === 200, 'free')
})
