import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { test } from 'node:test'
import { startStorage } from './server.ts'

const sha256 = (data: string | Buffer): Buffer => createHash('sha256').update(data).digest()

test('without a backend the info is 200 and says so, and all else is 503', async (t) => {
  const { call, put } = await startStorage(t, { backend: false })
  const info = await call('GET', '')
  assert.equal(info.statusCode, 200)
  assert.deepEqual(info.json(), { configured: false, maxObjectBytes: 8_388_608 })
  const refused = [
    await call('GET', '/objects'),
    await call('GET', '/objects/k'),
    await put('k', 'x'),
    await call('DELETE', '/objects/k'),
  ]
  for (const { statusCode, json } of refused) {
    assert.equal(statusCode, 503)
    assert.equal(json().error, 'storage_not_configured')
  }
})

test('an object is uploaded, listed, read inline and raw, and deleted', async (t) => {
  const { call, put } = await startStorage(t)
  assert.deepEqual((await call('GET', '')).json(), { configured: true, backend: 'disk', maxObjectBytes: 8_388_608 })
  const made = await put('docs/a%20b/%C3%BC.txt', 'grüße', { 'content-type': 'text/markdown; charset=utf-8' })
  assert.equal(made.statusCode, 201)
  const known = {
    key: 'docs/a b/ü.txt',
    bytes: 7,
    contentType: 'text/markdown; charset=utf-8',
    sha256: sha256('grüße').toString('hex'),
    updatedAt: made.json().updatedAt as string,
  }
  assert.deepEqual(made.json(), known)
  assert.equal(made.headers.etag, `"${known.sha256}"`)
  assert.equal((await put('docs/a%20b/%C3%BC.txt', 'grüße', { 'content-type': known.contentType })).statusCode, 200)
  const inline = await call('GET', '/objects/docs/a%20b/%C3%BC.txt')
  assert.match(String(inline.headers['content-type']), /^application\/json/)
  const { updatedAt: _, ...content } = inline.json()
  const { updatedAt: __, ...expected } = known
  assert.deepEqual(content, { ...expected, encoding: 'utf8', content: 'grüße' })
  const raw = await call('GET', '/objects/docs/a%20b/%C3%BC.txt', { headers: { accept: 'application/octet-stream' } })
  assert.equal(raw.body, 'grüße')
  assert.equal(raw.headers['content-type'], known.contentType)
  assert.equal(raw.headers['content-disposition'], 'attachment')
  const list = await call('GET', '/objects?prefix=docs/')
  assert.deepEqual(
    list.json().objects.map(({ key }: { key: string }) => key),
    [known.key],
  )
  assert.equal((await call('DELETE', '/objects/docs/a%20b/%C3%BC.txt')).statusCode, 204)
  for (const method of ['GET', 'DELETE'] as const) {
    const gone = await call(method, '/objects/docs/a%20b/%C3%BC.txt')
    assert.deepEqual([gone.statusCode, gone.json().error], [404, 'not_found'])
  }
})

test('content that is no UTF-8 is base64, wherever it stops being that', async (t) => {
  const { call, put } = await startStorage(t)
  const late = Buffer.concat([Buffer.from('é'.repeat(400_000)), Buffer.of(0xff)])
  const text = '€"\\\n\u0000😀'.repeat(60_000)
  await put('late', late)
  await put('text', text)
  await put('cut', Buffer.from('€').subarray(0, 2))
  await put('empty', '')
  const of = async (key: string) => (await call('GET', `/objects/${key}`)).json()
  const found = await of('late')
  assert.equal(found.encoding, 'base64')
  assert.ok(Buffer.from(found.content, 'base64').equals(late))
  assert.deepEqual([(await of('text')).encoding, (await of('text')).content === text], ['utf8', true])
  assert.equal((await of('cut')).content, '4oI=')
  assert.deepEqual([(await of('empty')).encoding, (await of('empty')).content], ['utf8', ''])
})

test('ranges, known versions and HEAD are answered as RFC 9110 says', async (t) => {
  const { call, put } = await startStorage(t)
  const etag = String((await put('k', '0123456789')).headers.etag)
  const get = (headers: Record<string, string>) => call('GET', '/objects/k', { headers: { accept: '*/*', ...headers } })
  for (const [range, body, said] of [
    ['bytes=2-4', '234', 'bytes 2-4/10'],
    ['bytes=7-', '789', 'bytes 7-9/10'],
    ['bytes=-3', '789', 'bytes 7-9/10'],
    ['bytes=0-99', '0123456789', 'bytes 0-9/10'],
  ] as const) {
    const part = await get({ range })
    assert.deepEqual([part.statusCode, part.body, part.headers['content-range']], [206, body, said])
  }
  const none = await get({ range: 'bytes=10-' })
  assert.deepEqual(
    [none.statusCode, none.json().error, none.headers['content-range']],
    [416, 'range_not_satisfiable', 'bytes */10'],
  )
  assert.equal((await get({ range: 'bytes=1-2', 'if-range': '"old"' })).statusCode, 200)
  assert.equal((await get({ range: 'bytes=0-1,4-5' })).body, '0123456789')
  for (const header of [etag, `"x", W/${etag}`, '*']) {
    const known = await get({ 'if-none-match': header })
    assert.deepEqual([known.statusCode, known.body], [304, ''])
  }
  const other = await get({ 'if-none-match': '"x"' })
  // Whoever keeps a copy asks with its tag. Nobody on the way keeps one.
  assert.deepEqual([other.statusCode, other.headers.etag, other.headers['cache-control']], [200, etag, 'no-store'])
  const head = await call('HEAD', '/objects/k', { headers: { accept: 'text/plain' } })
  assert.deepEqual(
    [head.statusCode, head.body, head.headers['content-length'], head.headers.etag],
    [200, '', '10', etag],
  )
})

test('conditions and checksums of uploads are kept', async (t) => {
  const { call, put, incoming } = await startStorage(t)
  const etag = String((await put('k', 'one', { 'if-none-match': '*' })).headers.etag)
  const refused = async (headers: Record<string, string>, status: number, error: string) => {
    const { statusCode, json } = await put('k', 'two', headers)
    assert.deepEqual([statusCode, json().error], [status, error], JSON.stringify(headers))
  }
  await refused({ 'if-none-match': '*' }, 412, 'precondition_failed')
  await refused({ 'if-match': '"other"' }, 412, 'precondition_failed')
  await refused({ 'if-match': `W/${etag}` }, 412, 'precondition_failed')
  await refused({ 'if-none-match': etag }, 412, 'precondition_failed')
  const wrong = sha256('other')
  const md5 = (text: string) => createHash('md5').update(text).digest('base64')
  await refused({ 'x-checksum-sha256': wrong.toString('hex') }, 400, 'checksum_mismatch')
  await refused({ 'x-checksum-sha256': wrong.toString('base64') }, 400, 'checksum_mismatch')
  await refused({ 'content-md5': md5('other') }, 400, 'checksum_mismatch')
  await refused({ digest: `sha-256=${wrong.toString('base64')}` }, 400, 'checksum_mismatch')
  await refused({ 'content-digest': `sha-256=:${wrong.toString('base64')}:` }, 400, 'checksum_mismatch')
  await refused({ 'x-checksum-sha256': 'abc' }, 400, 'invalid_checksum')
  await refused({ digest: 'crc32=AAAA' }, 400, 'invalid_checksum')
  assert.equal((await call('GET', '/objects/k')).json().content, 'one')
  const right = sha256('two').toString('base64')
  const headers = {
    'if-match': etag,
    'x-checksum-sha256': right,
    'content-md5': md5('two'),
    digest: `SHA-256=${right}`,
  }
  assert.equal((await put('k', 'two', headers)).statusCode, 200)
  assert.equal((await call('DELETE', '/objects/k', { headers: { 'if-match': etag } })).statusCode, 412)
  assert.deepEqual(await incoming(), [])
})

test('an object has 8 MiB at most, announced or not', async (t) => {
  const { call, put, incoming } = await startStorage(t)
  const most = Buffer.alloc(8 * 1024 * 1024)
  assert.equal((await put('most', most)).statusCode, 201)
  const over = await put('over', Buffer.alloc(most.length + 1))
  assert.deepEqual([over.statusCode, over.json().error], [413, 'body_too_large'])
  assert.equal((await call('GET', '/objects/over')).statusCode, 404)
  assert.deepEqual(await incoming(), [])
})

test('what is no key, or no cursor, is refused', async (t) => {
  const { call, put, store } = await startStorage(t)
  for (const key of [
    'a//b',
    '/a',
    'a%0Ab',
    'x'.repeat(1_025),
    '%C3%BC'.repeat(513),
    'a/',
    '%EF%BF%BF',
    `${'a/'.repeat(32)}a`,
  ]) {
    const answer = await put(key, 'x')
    assert.deepEqual([answer.statusCode, answer.json().error], [400, 'invalid_key'], key)
  }
  assert.equal((await put(`${'a/'.repeat(31)}a`, 'x')).statusCode, 201)
  // Clients resolve these paths before they send them, but other programs may send them as they are.
  for (const key of ['..', '.', '../globex/k', 'a/../../globex/k', 'a/./b', '', 'a\u0000b', '\ud800']) {
    for (const asked of [() => store.open('acme', key), () => store.remove('acme', key)])
      await assert.rejects(asked, { code: 'invalid_key' }, key)
  }
  for (const query of ['cursor=%21', 'cursor=AAAA', 'limit=0', 'limit=1001', 'delimiter=x', 'prefix=%0A']) {
    assert.equal((await call('GET', `/objects?${query}`)).statusCode, 400, query)
  }
})

test('a list goes by pages, and shows folders', async (t) => {
  const { call, put } = await startStorage(t)
  for (const key of ['a', 'b/1', 'b/2', 'c/1']) await put(key, 'x')
  const first = (await call('GET', '/objects?delimiter=/&limit=2')).json()
  assert.deepEqual([first.objects[0].key, first.objects.length, first.prefixes], ['a', 1, ['b/']])
  const second = (await call('GET', `/objects?delimiter=/&limit=2&cursor=${first.cursor}`)).json()
  assert.deepEqual(second, { objects: [], prefixes: ['c/'] })
})

test('a key that ends with / deletes what is below it, 1000 at a time', async (t) => {
  const { call, put, store } = await startStorage(t)
  await put('p', 'x')
  for (let i = 0; i < 1_001; i++) await store.put('acme', `p/${i}`, { body: once('x'), contentType: 'text/plain' })
  await put('p/other', 'x', { tenant: 'globex' })
  const drop = async () => (await call('DELETE', '/objects/p/')).json()
  assert.deepEqual(await drop(), { deleted: 1_000, more: true })
  assert.deepEqual(await drop(), { deleted: 1, more: false })
  assert.deepEqual(await drop(), { deleted: 0, more: false })
  assert.equal((await call('GET', '/objects/p')).statusCode, 200)
  assert.equal((await call('GET', '/objects/p/other', { headers: { tenant: 'globex' } })).statusCode, 200)
})

async function* once(text: string) {
  yield Buffer.from(text)
}
