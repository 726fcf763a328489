import assert from 'node:assert/strict'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { gzipSync } from 'node:zlib'
import { isPublicAddress, type Resolve } from '#kit/outbound'
import { testToolContext } from '#testing'
import { createHttpFetch, type HttpFetchOptions } from '../builtin/http-fetch.ts'

/** A server on loopback, and a count of what reached it. */
async function server(t: TestContext, handle: RequestListener = (_request, response) => response.end('inside')) {
  const seen: string[] = []
  const http = createServer((request, response) => {
    seen.push(`${request.method} ${request.url}`)
    handle(request, response)
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    http.close()
  })
  return { port: (http.address() as AddressInfo).port, seen }
}

const resolvesTo =
  (...addresses: string[]): Resolve =>
  (_host, callback) =>
    callback(
      null,
      addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 })),
    )

function fetcher(t: TestContext, over: Partial<HttpFetchOptions> = {}) {
  const { tool, close } = createHttpFetch({
    timeoutMs: 5_000,
    allowHosts: [],
    resolve: resolvesTo('127.0.0.1'),
    ...over,
  })
  t.after(close)
  return (url: string, signal?: AbortSignal) => tool.execute({ url }, testToolContext(signal && { signal }))
}

/** Lets the loopback server through, to test what is not the guard. */
const open = { permits: () => true }

test('no spelling of an inside address is connected to', async (t) => {
  const { port, seen } = await server(t)
  const read = fetcher(t)
  const hosts = [
    '127.0.0.1',
    '2130706433',
    '0x7f000001',
    '0x7f.1',
    '0177.0.0.1',
    '0177.1',
    '127.1',
    '127.0.0.1.',
    '0',
    '0.0.0.0',
    '[::1]',
    '[::]',
    '[::ffff:127.0.0.1]',
    '[::ffff:7f00:1]',
    '[::127.0.0.1]',
    '[64:ff9b::7f00:1]',
    '[2002:7f00:1::]',
    '[fe80::1]',
    '[fd00::1]',
    '[fec0::1]',
    '10.0.0.1',
    '172.16.0.1',
    '192.168.1.1',
    '100.64.0.1',
    '169.254.169.254',
    '168.63.129.16',
    '[::ffff:168.63.129.16]',
    '224.0.0.1',
    '255.255.255.255',
    '１２７.０.０.１',
    '%31%32%37.0.0.1',
  ]
  for (const host of hosts) {
    await assert.rejects(
      read(`http://${host}:${port}/`),
      { code: 'http_fetch', message: 'This address is not public.' },
      host,
    )
  }
  assert.deepEqual(seen, [])
})

test('a name that resolves to an inside address is not connected to', async (t) => {
  const { port, seen } = await server(t)
  for (const address of ['127.0.0.1', '::1', '::ffff:127.0.0.1', '10.1.2.3', '169.254.169.254']) {
    const read = fetcher(t, { resolve: resolvesTo(address) })
    await assert.rejects(read(`http://inside.test:${port}/`), { message: 'This address is not public.' }, address)
  }
  await assert.rejects(fetcher(t)(`http://localhost:${port}/`), { message: 'This address is not public.' })
  assert.deepEqual(seen, [])
})

test('a name server that changes its mind between check and use gains nothing', async (t) => {
  const { port, seen } = await server(t)
  let asked = 0
  const rebinding: Resolve = (host, callback) =>
    resolvesTo(asked++ % 2 === 0 ? '127.0.0.1' : '10.0.0.1')(host, callback)
  const read = fetcher(t, { resolve: rebinding, permits: (address) => address === '127.0.0.1' })
  for (let i = 1; i <= 4; i++) {
    const reading = read(`http://rebind.test:${port}/`)
    if (i % 2 === 1) assert.equal((await reading).ok, true)
    else await assert.rejects(reading, { message: 'This address is not public.' })
    // Each call makes one look-up, so the checked address is the one that is connected.
    assert.equal(asked, i)
  }
  assert.equal(seen.length, 2)
})

test('of several addresses only the public ones are used', async (t) => {
  const { port, seen } = await server(t)
  const asked: string[] = []
  const read = fetcher(t, {
    resolve: resolvesTo('10.0.0.1', '127.0.0.1', '192.168.0.9'),
    permits(address) {
      asked.push(address)
      return address === '127.0.0.1'
    },
  })
  assert.equal((await read(`http://mixed.test:${port}/`)).content, 'Status 200\n\ninside')
  assert.deepEqual(asked, ['10.0.0.1', '127.0.0.1', '192.168.0.9'])
  assert.deepEqual(seen, ['GET /'])
})

test('public addresses are public', () => {
  for (const address of ['93.184.215.14', '8.8.8.8', '2606:4700::1111', '::ffff:8.8.8.8']) {
    assert.equal(isPublicAddress(address), true, address)
  }
  for (const address of ['', 'x', '127.0.0.1', '2001:db8::1', '4000::1']) {
    assert.equal(isPublicAddress(address), false, address)
  }
})

test('only http and https, no credentials, only allowed hosts', async (t) => {
  const { port } = await server(t)
  const read = fetcher(t, { ...open, allowHosts: ['docs.test', '.wiki.test'] })
  await assert.rejects(read('file:///etc/passwd'), { message: 'Only http and https URLs can be read.' })
  await assert.rejects(read('gopher://docs.test/'), { message: 'Only http and https URLs can be read.' })
  await assert.rejects(read('nonsense'), { message: 'This is not a URL.' })
  await assert.rejects(read(`http://user:pw@docs.test:${port}/`), { message: 'A URL with credentials is not read.' })
  for (const host of ['evil.test', 'xdocs.test', 'a.docs.test', 'wiki.test.evil.test']) {
    await assert.rejects(read(`http://${host}:${port}/`), { message: /not among those/ }, host)
  }
  for (const host of ['docs.test', 'DOCS.test', 'wiki.test', 'a.b.wiki.test']) {
    assert.equal((await read(`http://${host}:${port}/`)).ok, true, host)
  }
})

test('a redirect is reported, never followed', async (t) => {
  const { port, seen } = await server(t, (_request, response) => response.writeHead(302, { location: '/secret' }).end())
  const { content } = await fetcher(t, open)(`http://a.test:${port}/start`)
  assert.equal(content, `Status 302: the page moved to http://a.test:${port}/secret`)
  assert.deepEqual(seen, ['GET /start'])
})

test('only text is read, and at most 1 MiB of it', async (t) => {
  const { port } = await server(t, ({ url }, response) => {
    if (url === '/image') response.setHeader('content-type', 'image/png').end('x')
    else if (url === '/packed') response.setHeader('content-encoding', 'gzip').end(gzipSync('x'.repeat(1_000_000)))
    else if (url === '/latin')
      response.setHeader('content-type', 'text/plain; charset=iso-8859-1').end(Buffer.from([0xe9]))
    else if (url === '/json') response.setHeader('content-type', 'application/problem+json').end('{}')
    else response.setHeader('content-type', 'text/html').end('x'.repeat(3_000_000))
  })
  const read = fetcher(t, open)
  await assert.rejects(read(`http://a.test:${port}/image`), { message: 'The answer is not text but image/png.' })
  await assert.rejects(read(`http://a.test:${port}/packed`), { message: /compressed/ })
  assert.equal((await read(`http://a.test:${port}/latin`)).content, 'Status 200\n\né')
  assert.equal((await read(`http://a.test:${port}/json`)).content, 'Status 200\n\n{}')
  const { content } = await read(`http://a.test:${port}/long`)
  assert.ok(content.endsWith('longer than 1 MiB.]'))
  assert.equal(content.match(/x/g)!.length, 1024 * 1024)
})

test('an answer that drips is cut off by the time limit, and a caller may stop it', async (t) => {
  const { port } = await server(t, (_request, response) => {
    response.setHeader('content-type', 'text/plain').write('drip')
  })
  await assert.rejects(fetcher(t, { ...open, timeoutMs: 50 })(`http://a.test:${port}/`), {
    message: 'The page took too long.',
  })
  const abort = new AbortController()
  const reading = fetcher(t, open)(`http://a.test:${port}/`, abort.signal)
  abort.abort()
  await assert.rejects(reading, { code: 'http_fetch' })
})

test('a refused connection tells nothing about the network', async (t) => {
  const { port } = await server(t)
  await assert.rejects(fetcher(t, { ...open, resolve: resolvesTo('127.0.0.2') })(`http://a.test:${port}/`), {
    message: 'The page could not be read.',
  })
})
