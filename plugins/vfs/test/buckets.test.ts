import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { startFauxqs } from 'fauxqs'
import { Secrets } from '#contracts/secrets'
import type { Signer } from '#contracts/signing'
import { type VfsMountInput } from '#contracts/vfs'
import { fake, testVfs } from '#testing'
import { proofHeaders } from '../client.ts'
import { createHash } from 'node:crypto'

async function bucketServer(t: TestContext) {
  const server = await startFauxqs({ port: 0, logger: false })
  t.after(() => server.stop())
  server.createBucket('data')
  return server.port
}

/** Secrets by `<tenant>/<name>`. It records which secrets were asked for. */
function secretsOf(values: Readonly<Record<string, string>>) {
  const asked: string[] = []
  const none = async (): Promise<never> => Promise.reject(new Error('not here'))
  const plugin = fake(Secrets, {
    unknown: none,
    headers: none,
    async resolve(tenantId: string, name: string) {
      asked.push(`${tenantId}/${name}`)
      const value = values[`${tenantId}/${name}`]
      if (value === undefined) throw new Error(`no secret ${name}`)
      return { name, version: 1, value }
    },
  })
  return { plugin, asked }
}

const putMount = async (url: string, signer: Signer, tenant: string, name: string, input: VfsMountInput) => {
  const target = `/vfs/mounts/${name}`
  const body = JSON.stringify(input)
  const digest = createHash('sha256').update(body).digest('hex')
  const headers = {
    'content-type': 'application/json',
    ...proofHeaders(signer, { tenant, method: 'PUT', target, session: '', digest }),
  }
  const reply = await fetch(url + target, { method: 'PUT', headers, body })
  return { status: reply.status, body: (await reply.json()) as { error?: string; message?: string; own?: boolean } }
}

const credentials = { accessKeyId: 'secret://s3-key', secretAccessKey: 'secret://s3-secret' }

test('a bucket is mounted with the secrets of the tenant, by the role file and by the tenant itself', async (t) => {
  const port = await bucketServer(t)
  const secrets = secretsOf({ 'acme/s3-key': 'AKIATEST', 'acme/s3-secret': 'hidden' })
  const endpoint = `http://127.0.0.1:${port}`
  const settings = {
    mounts: {
      data: { kind: 's3', bucket: 'data', endpoint, prefix: '{tenant}/', tenants: ['acme', 'globex'], ...credentials },
    },
    ownHosts: [`127.0.0.1:${port}=acme`],
  }
  const { client, url, signer } = await testVfs(t, { settings, plugins: [secrets.plugin] })
  const acme = { tenantId: 'acme' }
  const large = Buffer.alloc(9 * 1024 * 1024, 'x')
  const written = await client.write(acme, 'data', 'dir/a', { body: large, contentType: 'text/plain' })
  assert.equal(written.bytes, large.length)
  const read = await client.read(acme, 'data', 'dir/a', { range: { from: large.length - 3 } })
  assert.equal(await text(read!.body as AsyncIterable<Buffer>), 'xxx')
  assert.deepEqual((await client.list(acme, 'data', '')).entries, [{ path: 'dir', kind: 'folder' }])
  // The secrets were resolved only once for all of these requests.
  assert.deepEqual(secrets.asked.toSorted(), ['acme/s3-key', 'acme/s3-secret'])
  await assert.rejects(client.list({ tenantId: 'globex' }, 'data', ''), {
    code: 'mount_unavailable',
    message: /secret:\/\/s3-key/,
  })

  const own: VfsMountInput = {
    kind: 's3',
    bucket: 'data',
    endpoint,
    prefix: 'acme/dir/',
    readOnly: true,
    copyOnWrite: true,
    ...credentials,
  }
  assert.deepEqual((await putMount(url, signer, 'acme', 'mine', own)).body.own, true)
  assert.deepEqual(
    (await client.list(acme, 'mine', '')).entries.map(({ path }) => path),
    ['a'],
  )
  await assert.rejects(client.write(acme, 'mine', 'b', { body: Buffer.from('x') }), { code: 'read_only_mount' })
  await client.open('acme', 's1', {})
  await client.write({ ...acme, sessionId: 's1' }, 'mine', 'a', { body: Buffer.from('layer') })
  assert.equal((await client.list(acme, 'mine', '')).entries[0]!.bytes, large.length)

  const refused: [string, VfsMountInput, RegExp, string?][] = [
    ['of the installation', own, /mount 'data' of the installation/, 'data'],
    ['the scratch space', own, /take another name/, 'scratch'],
    ['a plain credential', { ...own, secretAccessKey: 'hidden' }, /each as secret:\/\/name/],
    ['no bucket', { kind: 's3', ...credentials }, /needs a bucket/],
    ['a prefix that steps up', { ...own, prefix: '../globex/' }, /prefix that no path/],
    ['a bucket of the objects', { kind: 'objects', bucket: 'data' }, /no bucket and no credentials/],
    ['no URL', { ...own, endpoint: 'x' }, /no URL/],
    ['a private host', { ...own, endpoint: 'http://169.254.169.254/' }, /may not be called/],
    ['a private host of nobody', { ...own, endpoint: `http://localhost:1` }, /may not be called/],
  ]
  for (const [what, input, message, name = 'x'] of refused) {
    const { status, body } = await putMount(url, signer, 'acme', name, input)
    assert.deepEqual([status, body.error], [400, 'invalid_mount'], what)
    assert.match(body.message!, message, what)
  }
  // Only the other tenant may use this host.
  assert.equal((await putMount(url, signer, 'globex', 'mine', own)).status, 400)
  await assert.rejects(client.list({ tenantId: 'globex' }, 'mine', ''), { code: 'not_found' })
})

test('without a conductor in the process secrets are asked for over the signed plane', async (t) => {
  const port = await bucketServer(t)
  const asked: { url: string; headers: object; body: string }[] = []
  const plane = createServer(async (request, response) => {
    const body = await text(request)
    asked.push({ url: request.url!, headers: request.headers, body })
    const { ref } = JSON.parse(body) as { ref: string }
    if (ref === 'secret://gone') response.writeHead(404).end('{"error":"not_found"}')
    else response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ value: 'AKIATEST' }))
  }).listen(0, '127.0.0.1')
  await once(plane, 'listening')
  t.after(() => plane.close())
  const mount = { kind: 's3', bucket: 'data', endpoint: `http://127.0.0.1:${port}`, tenants: ['acme'] }
  const settings = {
    conductorUrl: `http://127.0.0.1:${(plane.address() as AddressInfo).port}`,
    mounts: {
      data: { ...mount, ...credentials },
      gone: { ...mount, accessKeyId: 'secret://gone', secretAccessKey: 'secret://gone' },
    },
  }
  const { client, signer } = await testVfs(t, { settings })
  await client.write({ tenantId: 'acme' }, 'data', 'a', { body: Buffer.from('x') })
  const [first] = asked
  assert.deepEqual([first!.url, JSON.parse(first!.body)], ['/internal/secrets/resolve', { ref: 'secret://s3-key' }])
  const signed = { method: 'POST', target: first!.url, body: Buffer.from(first!.body) }
  assert.deepEqual(await signer.verify(first!.headers as Record<string, string>, signed), { tenant: 'acme' })
  await assert.rejects(client.list({ tenantId: 'acme' }, 'gone', ''), {
    code: 'mount_unavailable',
    message: /secret:\/\/gone/,
  })
})

test('reads that the store breaks off are over for their tenant', async (t) => {
  const fails = createServer((request, response) => {
    if (request.method !== 'HEAD') return response.writeHead(404).end()
    return response
      .writeHead(200, { 'content-length': 3, etag: '"a"', 'last-modified': new Date().toUTCString() })
      .end()
  }).listen(0, '127.0.0.1')
  await once(fails, 'listening')
  t.after(() => fails.close())
  const endpoint = `http://127.0.0.1:${(fails.address() as AddressInfo).port}`
  const plain = { accessKeyId: 'x', secretAccessKey: 'x' }
  const mounts = { data: { kind: 's3', bucket: 'data', endpoint, tenants: ['acme'], ...plain } }
  const { client } = await testVfs(t, { settings: { mounts, requestsAtOnce: 2 } })
  for (let i = 0; i < 4; i++)
    await assert.rejects(client.read({ tenantId: 'acme' }, 'data', 'a'), { code: 'storage_unavailable' })
})

test('a bucket that gives more or less than it said breaks its own reader off, and says nothing to the next one', async (t) => {
  const forged = 'abcHTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n[]'
  let [body, chunked] = [forged, false]
  const liar = createServer((request, response) => {
    const head = { etag: '"a"', 'last-modified': new Date().toUTCString() }
    if (request.method === 'HEAD') return response.writeHead(200, { ...head, 'content-length': 3 }).end()
    response.writeHead(200, { ...head, ...(chunked ? {} : { 'content-length': body.length }) })
    return chunked ? response.write('ab', () => response.end(body.slice(2))) : response.end(body)
  }).listen(0, '127.0.0.1')
  await once(liar, 'listening')
  t.after(() => liar.close())
  const endpoint = `http://127.0.0.1:${(liar.address() as AddressInfo).port}`
  const plain = { accessKeyId: 'x', secretAccessKey: 'x' }
  const mounts = { data: { kind: 's3', bucket: 'data', endpoint, tenants: ['acme'], ...plain } }
  const { client } = await testVfs(t, { settings: { mounts } })
  const read = async (range?: { from: number; to: number }): Promise<string> => {
    const file = await client.read({ tenantId: 'acme' }, 'data', 'a', range ? { range } : {})
    return text(file!.body as AsyncIterable<Buffer>)
  }
  for (const [given, inChunks] of [
    [forged, false],
    [forged, true],
    ['ab', false],
    ['ab', true],
  ] as const) {
    ;[body, chunked] = [given, inChunks]
    await assert.rejects(read(), `${given} ${inChunks}`)
    assert.deepEqual(
      (await client.mounts({ tenantId: 'acme' })).map(({ name }) => name),
      ['data'],
    )
  }
  ;[body, chunked] = ['abc', true]
  assert.equal(await read(), 'abc')
  // A server may ignore the range. Its answer must be refused, or the reader would take the beginning of the file for the range.
  await assert.rejects(read({ from: 1, to: 2 }))
})

test('mounts that a tenant makes at once are all kept, and what others have takes no name away', async (t) => {
  const settings = { mounts: { theirs: { kind: 'objects', tenants: ['globex'] } } }
  const { url, signer, kernel, dir } = await testVfs(t, { settings })
  const names = ['a', 'b', 'c', 'constructor', 'd', 'e', 'theirs']
  const put = async (name: string) => (await putMount(url, signer, 'acme', name, { kind: 'objects' })).status
  assert.deepEqual(
    await Promise.all(names.map(put)),
    names.map(() => 200),
  )
  await kernel.stop()
  const { client } = await testVfs(t, { settings, dir })
  const mountsOf = async (tenantId: string) => (await client.mounts({ tenantId })).map(({ name }) => name)
  assert.deepEqual(await mountsOf('acme'), names)
  assert.deepEqual(await mountsOf('globex'), ['theirs'])
})

test('a bucket whose server lies costs its tenant an answer, and nobody the server', { timeout: 60_000 }, async (t) => {
  let [xml, asked, modified] = ['', 0, new Date().toUTCString()]
  const liar = createServer((request, response) => {
    asked++
    if (request.method === 'HEAD')
      return response.writeHead(200, { 'content-length': 3, etag: '"a"', 'last-modified': modified }).end()
    return response.writeHead(200).end(xml)
  }).listen(0, '127.0.0.1')
  await once(liar, 'listening')
  t.after(() => liar.close())
  const endpoint = `http://127.0.0.1:${(liar.address() as AddressInfo).port}`
  const plain = { accessKeyId: 'x', secretAccessKey: 'x' }
  const mounts = { data: { kind: 's3', bucket: 'data', endpoint, prefix: 'in/', tenants: ['acme'], ...plain } }
  const { client } = await testVfs(t, { settings: { mounts } })
  const list = () => client.list({ tenantId: 'acme' }, 'data', '', { recursive: true })
  const page = (...keys: string[]) =>
    `<IsTruncated>true</IsTruncated>${keys.map((key) => `<Contents><Key>${key}</Key><Size>1</Size></Contents>`).join('')}`
  for (const [what, answer] of [
    ['the same page for ever', page('in/a')],
    ['keys that are no paths for ever', page('in/b\\\\c')],
    ['more than a list can be', 'x'.repeat(9 * 1024 * 1024)],
    ['half of every object', '<Contents>'.repeat(500_000)],
    ['no key', '<EncodingType>url</EncodingType><Contents><Key>in/%ff</Key></Contents>'],
  ] as const) {
    xml = answer
    asked = 0
    const said = await list().then(
      ({ entries }) => `${entries.length} files`,
      ({ code }: { code: string }) => code,
    )
    assert.ok(['storage_unavailable', '0 files'].includes(said), `${what}: ${said}`)
    assert.ok(asked < 1_000, `${what}: ${asked}`)
  }
  // The bucket lists a key outside the prefix, which is ignored, and an invalid time, which is shown as 1970.
  xml = page('in/a', 'out/b').replace('true', 'false')
  modified = 'yesterday'
  assert.deepEqual(
    (await list()).entries.map(({ path, updatedAt }) => [path, updatedAt]),
    [['a', '1970-01-01T00:00:00.000Z']],
  )
})

test('uploads wait in the folder of the server, which a start empties', async (t) => {
  const dir = await mkdtemp(join(tmpdir(), 'ao-vfs-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  const uploads = join(dir, 'vfs', 'uploads')
  await mkdir(join(uploads, 'killed'), { recursive: true })
  await writeFile(join(uploads, 'killed', 'object'), 'half')
  let waiting: string[] = []
  const server = createServer(async (request, response) => {
    await text(request)
    if (request.method === 'PUT') waiting = await readdir(uploads)
    response.writeHead(request.method === 'HEAD' ? 404 : 200).end()
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => server.close())
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const mount = { kind: 's3', bucket: 'data', endpoint, tenants: ['acme'], accessKeyId: 'x', secretAccessKey: 'x' }
  const { client } = await testVfs(t, { dir, settings: { mounts: { data: mount } } })
  assert.deepEqual(await readdir(uploads), [])
  await client.write({ tenantId: 'acme' }, 'data', 'a', { body: Buffer.from('x') })
  assert.equal(waiting.length, 1)
  assert.deepEqual(await readdir(uploads), [])
})
