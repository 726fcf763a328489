import assert from 'node:assert/strict'
import { createHash, createHmac } from 'node:crypto'
import { mkdir, readdir, utimes, writeFile } from 'node:fs/promises'
import { createServer, type IncomingMessage } from 'node:http'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { startFauxqs } from 'fauxqs'
import { newObject, oddKeys, operatedConductor, testObjectBackend } from '#testing'
import type { S3Backend } from '../backend.ts'
import { readList, S3Client } from '../client.ts'
import { backendFor, keyBytes } from './support.ts'

const keys = {
  region: 'us-east-1',
  bucket: 'objects',
  accessKeyId: 'AKIATEST',
  secretAccessKey: 'secret',
  timeoutMs: 2_000,
}

async function backend(t: TestContext, endpoint: string, more: Partial<typeof keys> = {}) {
  return backendFor(t, { ...keys, ...more, endpoint })
}
async function bucket(t: TestContext): Promise<S3Backend> {
  const server = await startFauxqs({ port: 0, logger: false })
  t.after(() => server.stop())
  server.createBucket('objects')
  return (await backend(t, `http://127.0.0.1:${server.port}`)).store
}
// This server sorts as a language does, not by bytes as S3.
testObjectBackend('s3', bucket, { ownOrder: true, keyBytes })

// The same against any other one, such as MinIO, Garage, Ceph or AWS: what is written is below a prefix of its own.
const { S3_TEST_ENDPOINT: elsewhere, S3_TEST_BUCKET = 'objects', S3_TEST_REGION = 'us-east-1' } = process.env
if (elsewhere !== undefined) {
  const { S3_TEST_ACCESS_KEY_ID: accessKeyId = '', S3_TEST_SECRET_ACCESS_KEY: secretAccessKey = '' } = process.env
  const access = { bucket: S3_TEST_BUCKET, region: S3_TEST_REGION, accessKeyId, secretAccessKey, timeoutMs: 30_000 }
  testObjectBackend(`s3 at ${elsewhere}`, async (t) => (await backend(t, elsewhere, access)).store, { keyBytes })
}

/** A server of S3 that answers as it is told. */
async function scripted(t: TestContext, answers: readonly (number | [number, string])[]) {
  const asked: string[] = []
  const server = createServer((request, response) => {
    asked.push(request.method!)
    const answer = answers[Math.min(asked.length, answers.length) - 1]!
    const [status, body] = Array.isArray(answer) ? answer : [answer, '']
    request.resume().on('end', () => response.writeHead(status).end(body))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const { port } = server.address() as { port: number }
  const url = `http://127.0.0.1:${port}`
  return { asked, url, ...(await backend(t, url)) }
}

test('a busy server is asked again; one that refuses is not', async (t) => {
  const busy = await scripted(t, [503, 500, 404])
  assert.equal(await busy.store.open('acme', 'k'), undefined)
  assert.equal(busy.asked.length, 3)
  const refusing = await scripted(t, [[400, '<Error><Code>InvalidRequest</Code></Error>']])
  await assert.rejects(refusing.store.open('acme', 'k'), { code: 'storage_unavailable', status: 503 })
  assert.equal(refusing.asked.length, 1)
})

test('what only other settings help against is said to be that, at once and before the role starts', async (t) => {
  const error = (code: string): string => `<?xml version="1.0"?><Error><Code>${code}</Code><Key>AKIATEST</Key></Error>`
  for (const [answer, about] of [
    [[403, error('InvalidAccessKeyId')], /^The S3 server refuses the key .* or has expired\.$/],
    [[403, error('SignatureDoesNotMatch')], /refuses the key/],
    [[400, error('ExpiredToken')], /or has expired/],
    [[403, error('AccessDenied')], /^The S3 server does not let its key at the bucket/],
    [[404, error('NoSuchBucket')], /has no bucket of this name/],
    [[400, error('AuthorizationHeaderMalformed')], /another region/],
    [[301, ''], /another region/],
    [[403, error('RequestTimeTooSkewed')], /clocks/],
    // Nobody can say which it is.
    [[403, error('constructor')], /refuses the key .* or it does not let/],
    [[401, ''], /refuses the key/],
  ] as const) {
    const { store, asked } = await scripted(t, [[...answer]])
    const told = { code: 'storage_misconfigured', status: 503, message: about }
    await assert.rejects(store.list('acme', { prefix: '', after: '', limit: 1, folders: false }), told)
    await assert.rejects(store.verify(), told)
    assert.equal(asked.length, 2, 'it is not asked again')
  }
  const head = await scripted(t, [403])
  await assert.rejects(head.store.open('acme', 'k'), { code: 'storage_misconfigured' })
  for (const answers of [[200], [500], [404, 404, 404], [[507, '']]] as const)
    await (await scripted(t, answers as never)).store.verify()
  await (await backend(t, 'http://127.0.0.1:1')).store.verify()
})

test('a server of S3 that knows neither the key nor the bucket says so itself', async (t) => {
  const server = await startFauxqs({ port: 0, logger: false })
  t.after(() => server.stop())
  const { store } = await backend(t, `http://127.0.0.1:${server.port}`, { bucket: 'nowhere' })
  await assert.rejects(store.verify(), { code: 'storage_misconfigured', message: /no bucket/ })
  await assert.rejects(store.put('acme', 'k', newObject('x')), { code: 'storage_misconfigured' })
})

test('a full server is said to be full, and nothing waits on disk after it', async (t) => {
  const { store, dir } = await scripted(t, [404, [403, '<Error><Code>QuotaExceeded</Code></Error>']])
  await assert.rejects(store.put('acme', 'k', newObject('x')), { code: 'storage_full', status: 507 })
  assert.deepEqual(await readdir(dir), [])
})

test('a condition that another writer has broken meanwhile is refused, and not tried twice', async (t) => {
  const { store, asked } = await scripted(t, [404, 412])
  await assert.rejects(store.put('acme', 'k', newObject('x', { ifNoneMatch: '*' })), { code: 'precondition_failed' })
  assert.deepEqual(asked, ['HEAD', 'PUT'])
  const away = await scripted(t, [404, 500])
  await assert.rejects(away.store.put('acme', 'k', newObject('x', { ifNoneMatch: '*' })), {
    code: 'storage_unavailable',
  })
  assert.deepEqual(away.asked, ['HEAD', 'PUT'])
})

test('a server that is not there is 503, and metadata services are never asked', async (t) => {
  const { store } = await backend(t, 'http://127.0.0.1:1')
  await assert.rejects(store.open('acme', 'k'), { code: 'storage_unavailable' })
  assert.throws(() => new S3Client({ ...keys, endpoint: 'http://169.254.169.254' }), /cannot be used: address/)
  assert.throws(() => new S3Client({ ...keys, endpoint: 'file:///etc' }), /cannot be used: scheme/)
})

test('a role whose bucket refuses it does not start; one whose key went bad says so to whoever asks', async (t) => {
  const error = (code: string): [number, string] => [403, `<Error><Code>${code}</Code></Error>`]
  const list = '<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'
  const start = async (answers: readonly (number | [number, string])[]) => {
    const { url } = await scripted(t, answers)
    const variables = {
      AGENT_ORC_STORAGE: 's3',
      AGENT_ORC_S3_BUCKET: keys.bucket,
      AGENT_ORC_S3_ENDPOINT: url,
      AGENT_ORC_S3_ACCESS_KEY_ID: keys.accessKeyId,
      AGENT_ORC_S3_SECRET_ACCESS_KEY: keys.secretAccessKey,
    }
    return operatedConductor(t, { needs: {}, variables })
  }
  await assert.rejects(start([error('SignatureDoesNotMatch')]), /'s3' is misconfigured: .* refuses the key/)
  const { operator } = await start([[200, list], error('ExpiredToken')])
  const { status, body } = await operator('GET', '/api/storage/objects')
  assert.deepEqual([status, body['error']], [503, 'storage_misconfigured'])
  assert.match(String(body['message']), /or has expired/)
})

test('a start removes what a killed process left of an upload, and nothing of others', async (t) => {
  const list = '<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'
  const { url, dir } = await scripted(t, [[200, list]])
  const longAgo = new Date(Date.now() - 48 * 60 * 60 * 1_000)
  for (const [name, at] of [
    ['agent-orc-upload-killed', longAgo],
    ['agent-orc-upload-running', new Date()],
    ['of-another-program', longAgo],
  ] as const) {
    await mkdir(join(dir, name))
    await writeFile(join(dir, name, 'object'), 'half')
    await utimes(join(dir, name), at, at)
  }
  const variables = {
    AGENT_ORC_STORAGE: 's3',
    AGENT_ORC_S3_BUCKET: keys.bucket,
    AGENT_ORC_S3_ENDPOINT: url,
    AGENT_ORC_S3_ACCESS_KEY_ID: keys.accessKeyId,
    AGENT_ORC_S3_SECRET_ACCESS_KEY: keys.secretAccessKey,
    AGENT_ORC_S3_TEMPORARY_DIR: dir,
  }
  await operatedConductor(t, { needs: {}, variables })
  assert.deepEqual((await readdir(dir)).toSorted(), ['agent-orc-upload-running', 'of-another-program'])
})

test('lists are read as AWS writes them, with keys as in URLs', () => {
  const xml = `<?xml version="1.0"?><ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
    <Contents><Key>t/a+b%2Bc%26%C3%A9</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>5</Size></Contents>
    <CommonPrefixes><Prefix>t/d/</Prefix></CommonPrefixes></ListBucketResult>`
  assert.deepEqual(readList(xml), { objects: [{ key: 't/a b+c&é', bytes: 5 }], prefixes: ['t/d/'], truncated: true })
})

const listed = (xml: string): string =>
  `<ListBucketResult><EncodingType>url</EncodingType>${xml}<IsTruncated>false</IsTruncated></ListBucketResult>`
const object = (size: string, key = 'k'): string => `<Contents><Key>${key}</Key><Size>${size}</Size></Contents>`

test('a server that answers a list with more than was asked for, or with what is no number, gives no list', async (t) => {
  for (const xml of [
    '<Contents>'.repeat(838_000),
    '<CommonPrefixes>'.repeat(1_001),
    object('1', '&#38;'.repeat(1_600_000)),
    ...['many', '-1', '1.5', '1e300'].map((size) => object(size)),
  ]) {
    const { store } = await scripted(t, [[200, listed(xml)]])
    const told = { code: 'storage_unavailable', message: /something that is not a list/ }
    await assert.rejects(store.list('acme', { prefix: '', after: '', limit: 1, folders: false }), told)
  }
  assert.equal(readList(listed(object('1').repeat(1_000))).objects.length, 1_000)
})

test('a server that gives a list byte by byte is left', async (t) => {
  const server = createServer((_, response) => {
    const one = setInterval(() => response.write(' '), 10)
    response.on('close', () => clearInterval(one))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const { port } = server.address() as { port: number }
  const { store } = await backend(t, `http://127.0.0.1:${port}`, { timeoutMs: 200 })
  const left = { code: 'storage_unavailable', status: 503 }
  await assert.rejects(store.list('acme', { prefix: '', after: '', limit: 1, folders: false }), left)
})

test('a server that takes its time for each object of a list is left', async (t) => {
  const server = createServer((request, response) => {
    const root = new URL(request.url!, 'http://s3').searchParams.get('prefix')
    if (request.method === 'GET')
      return response.end(listed(Array.from({ length: 160 }, (_, i) => object('3', `${root}${i}`)).join('')))
    const etag = '"a"'
    const whole = { 'content-length': 3, etag, 'last-modified': new Date().toUTCString() }
    return setTimeout(() => response.writeHead(200, whole).end(), 100)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const { port } = server.address() as { port: number }
  const { store } = await backend(t, `http://127.0.0.1:${port}`, { timeoutMs: 200 })
  await assert.rejects(store.list('acme', { prefix: '', after: '', limit: 1_000, folders: false }), {
    code: 'storage_unavailable',
  })
})

test(
  'a server that gives its other answers byte by byte is left as well, and what it had said counts',
  { timeout: 60_000 },
  async (t) => {
    let status = 200
    const server = createServer((request, response) => {
      if (request.method === 'HEAD')
        return response
          .writeHead(200, { 'content-length': 3, etag: '"a"', 'last-modified': new Date().toUTCString() })
          .end()
      request.resume()
      response.writeHead(status)
      const one = setInterval(() => response.write(' '), 10)
      return response.on('close', () => clearInterval(one))
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    t.after(() => server.close())
    const { port } = server.address() as { port: number }
    const { store, dir } = await backend(t, `http://127.0.0.1:${port}`, { timeoutMs: 200 })
    assert.equal((await store.put('acme', 'k', newObject('new'))).info.bytes, 3)
    assert.equal(await store.remove('acme', 'k'), 3)
    status = 400
    await assert.rejects(store.put('acme', 'k', newObject('new')), { code: 'storage_unavailable' })
    await assert.rejects((await store.open('acme', 'k'))!.read(), { code: 'storage_unavailable' })
    assert.deepEqual(await readdir(dir), [])
  },
)

test('a server that says for ever that it is at work is left', { timeout: 60_000 }, async (t) => {
  const server = createServer((request, response) => {
    if (request.method === 'HEAD') return response.writeHead(404).end()
    const one = setInterval(() => response.writeProcessing(), 10)
    return response.on('close', () => clearInterval(one))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const { port } = server.address() as { port: number }
  const { store, dir } = await backend(t, `http://127.0.0.1:${port}`, { timeoutMs: 200 })
  await assert.rejects(store.put('acme', 'k', newObject('new')), { code: 'storage_unavailable' })
  assert.deepEqual(await readdir(dir), [])
})

test('a removal of many ends with its last request, and counts what is gone', { timeout: 60_000 }, async (t) => {
  const waiting: (() => void)[] = []
  const removed: string[] = []
  const heard = Promise.withResolvers<void>()
  const server = createServer((request, response) => {
    const { searchParams, pathname } = new URL(request.url!, 'http://s3')
    const root = searchParams.get('prefix')
    if (request.method === 'GET')
      return response.end(listed(Array.from({ length: 40 }, (_, i) => object('3', `${root}${i}`)).join('')))
    const key = pathname.split('/').at(-1)!
    if (key === '1') return response.writeHead(403).end()
    // The others of the first sixteen are answered when the one that is refused has been, or never.
    waiting.push(() => void (removed.push(key), response.writeHead(204).end()))
    return waiting.length === 15 ? heard.resolve() : undefined
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const { port } = server.address() as { port: number }
  const { store } = await backend(t, `http://127.0.0.1:${port}`, { timeoutMs: 20_000 })
  const some = store.removeAll('acme', '', 1_000)
  await heard.promise
  for (const answer of waiting) answer()
  assert.deepEqual(await some, { objects: 15, bytes: 45, more: true })
  assert.equal(removed.length, 15, 'nothing goes behind its end')

  waiting.length = 0
  const giveUp = new AbortController()
  const none = store.removeAll('acme', '', 1_000, giveUp.signal)
  while (waiting.length < 15) await new Promise((resolve) => setImmediate(resolve))
  giveUp.abort()
  await assert.rejects(none, { status: 503 })
  assert.equal(waiting.length, 15)
})

test('an object of which a server does not say how long it is is not opened', async (t) => {
  const { store } = await scripted(t, [200])
  await assert.rejects(store.open('acme', 'k'), { code: 'storage_unavailable', message: /how long/ })
})

test('every request is signed as AWS says, whatever the key is', async (t) => {
  const asked: IncomingMessage[] = []
  const server = createServer((request, response) => {
    asked.push(request)
    request.resume().on('end', () => response.writeHead(request.method === 'HEAD' ? 404 : 200).end())
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const { store } = await backend(t, `http://127.0.0.1:${(server.address() as { port: number }).port}`)
  const fitting = oddKeys.filter((key) => Buffer.byteLength(key) <= keyBytes)
  for (const key of fitting) await store.put('acme', key, newObject(key))
  await store.list('acme', { prefix: "it's (a+b)/*!", after: 'é &=', limit: 3, folders: true })
  assert.equal(asked.length, 2 * fitting.length + 1)
  for (const request of asked) assert.equal(signatureOf(request.headers['authorization']!), expectedSignature(request))
})

const signatureOf = (header: string): string => /Signature=(\w+)$/.exec(header)![1]!
const hmac = (key: string | Buffer, text: string): Buffer => createHmac('sha256', key).update(text).digest()

/** "Signature Version 4" of the manual, from what arrived. */
function expectedSignature({ method, url, headers }: IncomingMessage): string {
  const names = /SignedHeaders=([^,]+)/.exec(headers['authorization']!)![1]!
  for (const name of ['host', 'x-amz-content-sha256', 'x-amz-date']) assert.ok(names.split(';').includes(name), name)
  const [path, query = ''] = url!.split('?')
  const canonical = [
    method,
    path,
    query.split('&').toSorted().join('&'),
    ...names.split(';').map((name) => `${name}:${String(headers[name]).trim()}`),
    '',
    names,
    headers['x-amz-content-sha256'],
  ].join('\n')
  const time = String(headers['x-amz-date'])
  const scope = `${time.slice(0, 8)}/us-east-1/s3/aws4_request`
  const text = ['AWS4-HMAC-SHA256', time, scope, createHash('sha256').update(canonical).digest('hex')].join('\n')
  const key = scope.split('/').reduce<string | Buffer>((last, part) => hmac(last, part), 'AWS4secret')
  return hmac(key, text).toString('hex')
}
