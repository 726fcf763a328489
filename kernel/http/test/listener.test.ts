import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect } from 'node:net'
import { test, type TestContext } from 'node:test'
import { Type } from '@sinclair/typebox'
import { access, definePlugin } from '#kernel'
import { testKernel } from '#testing'

const echo = definePlugin({
  name: 'echo',
  async setup(ctx) {
    ctx.routes('gateway', async (app) => {
      const open = Type.Object({}, { additionalProperties: true })
      const strict = Type.Object(
        {
          size: Type.Optional(Type.Integer()),
          at: Type.Optional(Type.String({ format: 'date-time' })),
          mode: Type.String({ default: 'quick' }),
        },
        { additionalProperties: false },
      )
      const query = Type.Object({ limit: Type.Integer(), tag: Type.Optional(Type.Array(Type.String())) })
      app.post('/open', { ...access('public'), schema: { body: open } }, async (request) => request.body)
      app.post('/strict', { ...access('public'), schema: { body: strict } }, async (request) => request.body)
      app.post('/optional', access('public'), async (request) => ({ body: request.body ?? null }))
      app.post('/large', { ...access('public'), bodyLimit: 4 * 1024 * 1024 }, async () => 'taken')
      app.post('/ours', access('network'), async () => 'taken')
      app.get('/query', { ...access('public'), schema: { querystring: query } }, async (request) => request.query)
    })
    return {}
  },
})

const gateway = async (t: TestContext) => (await testKernel(t, [echo])).listeners.gateway!
const json = { 'content-type': 'application/json' }

test('a body over 1 MiB is 413, unless its route says that it takes more', async (t) => {
  const app = await gateway(t)
  const payload = JSON.stringify({ text: 'x'.repeat(1024 * 1024) })
  const refused = await app.inject({ method: 'POST', url: '/open', headers: json, payload })
  assert.equal(refused.statusCode, 413)
  assert.equal(refused.json().error, 'body_too_large')
  assert.equal((await app.inject({ method: 'POST', url: '/large', headers: json, payload })).statusCode, 200)
})

test('a body of a client has a bounded number of values, however short; our own processes send logs of long runs', async (t) => {
  const app = await gateway(t)
  const payload = `[${'0,'.repeat(200_000)}0]`
  const send = (url: string) => app.inject({ method: 'POST', url, headers: { ...json, host: 'localhost' }, payload })
  const refused = await send('/optional')
  assert.deepEqual([refused.statusCode, refused.json().error], [413, 'body_too_large'])
  assert.equal((await send('/ours')).statusCode, 200)
})

test('a body over the limit without Content-Length is 413 before it has all arrived', async (t) => {
  const kernel = await testKernel(t, [echo], { listen: true })
  const chunk = new TextEncoder().encode('x'.repeat(64 * 1024))
  let sent = 0
  const body = new ReadableStream({
    pull(controller) {
      sent += chunk.length
      if (sent > 64 * 1024 * 1024) controller.close()
      else controller.enqueue(chunk)
    },
  })
  const init = { method: 'POST', headers: json, body, duplex: 'half' }
  const reply = await fetch(`${kernel.urls['gateway']}/open`, init as RequestInit)
  assert.equal(reply.status, 413)
  await reply.text()
  assert.ok(sent < 64 * 1024 * 1024)
})

test('a client that sends its whole body before it reads gets the 413, and nothing behind that body is a request', async (t) => {
  const asked: unknown[] = []
  const records = definePlugin({
    name: 'records',
    async setup(ctx) {
      ctx.routes('gateway', async (app) => {
        app.post('/read', { ...access('public'), bodyLimit: 1 }, async () => 'never')
        app.get('/behind', access('public'), async ({ url }) => asked.push(url))
      })
      return {}
    },
  })
  const kernel = await testKernel(t, [records], { listen: true })
  const { hostname, port } = new URL(kernel.urls['gateway']!)
  const socket = connect({ host: hostname, port: Number(port), allowHalfOpen: true })
  let answer = ''
  socket.on('data', (data) => {
    answer += data
  })
  const ended = once(socket, 'end')
  const closed = once(socket, 'close')
  const send = (text: string) =>
    new Promise<void>((resolve, reject) => socket.write(text, (e) => (e ? reject(e) : resolve())))
  const bytes = 4 * 1024 * 1024
  await send(
    `POST /read HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ${bytes}\r\n\r\n`,
  )
  await ended
  for (let sent = 0; sent < bytes; sent += 65_536) await send('x'.repeat(65_536))
  await send('GET /behind HTTP/1.1\r\nhost: localhost\r\n\r\n')
  socket.end()
  await closed
  assert.match(answer, /^HTTP\/1.1 413 [^]*"error":"body_too_large"/)
  assert.equal(answer.split('HTTP/1.1').length, 2)
  assert.deepEqual(asked, [])
})

test('headers over 16 KiB are 431, and text that is not HTTP is 400, in the shape of every error', async (t) => {
  const kernel = await testKernel(t, [echo], { listen: true })
  const { hostname, port } = new URL(kernel.urls['gateway']!)
  const say = async (text: string): Promise<string> => {
    const socket = connect(Number(port), hostname)
    socket.on('error', () => {})
    socket.write(text)
    let reply = ''
    socket.on('data', (data) => {
      reply += data
    })
    await once(socket, 'close')
    return reply
  }
  const large = await say(`GET /query HTTP/1.1\r\nhost: x\r\nx-big: ${'x'.repeat(20 * 1024)}\r\n\r\n`)
  assert.match(large, /^HTTP\/1\.1 431 /)
  assert.equal(JSON.parse(large.split('\r\n\r\n')[1]!).error, 'headers_too_large')
  const garbage = await say('this is not http\r\n\r\n')
  assert.match(garbage, /^HTTP\/1\.1 400 /)
  assert.equal(JSON.parse(garbage.split('\r\n\r\n')[1]!).error, 'invalid_request')
})

test('JSON nested deeper than 64 levels is 400; brackets inside strings do not count', async (t) => {
  const app = await gateway(t)
  const post = (payload: string) => app.inject({ method: 'POST', url: '/open', headers: json, payload })
  const nested = (levels: number): string => `{"a":${'['.repeat(levels - 1)}${']'.repeat(levels - 1)}}`
  assert.equal((await post(nested(64))).statusCode, 200)
  const refused = await post(nested(65))
  assert.equal(refused.statusCode, 400)
  assert.equal(refused.json().error, 'invalid_request')
  assert.equal((await post(nested(400_000))).statusCode, 400)
  assert.equal((await post(JSON.stringify({ a: '[{'.repeat(100), b: '\\"[['.repeat(50) }))).statusCode, 200)
})

test('text that is not JSON is 400, and does not come back in the answer', async (t) => {
  const app = await gateway(t)
  for (const payload of ['{"a":', '{secret}', 'null x', '\u0000']) {
    const reply = await app.inject({ method: 'POST', url: '/open', headers: json, payload })
    assert.equal(reply.statusCode, 400, payload)
    assert.equal(reply.json().error, 'invalid_request')
    assert.doesNotMatch(reply.body, /secret/)
  }
  const other = await app.inject({
    method: 'POST',
    url: '/open',
    headers: { 'content-type': 'text/csv' },
    payload: 'a,b',
  })
  assert.equal(other.statusCode, 415)
  assert.equal(other.json().error, 'unsupported_media_type')
})

test('__proto__ in a body never reaches a handler, however it is written', async (t) => {
  const app = await gateway(t)
  for (const name of ['__proto__', '\\u005f_proto__', '\\u005F\\u005Fproto\\u005F\\u005F', '__\\u0070roto__']) {
    const payload = `{"${name}":{"admin":true},"kept":{"${name}":{"admin":true},"x":1}}`
    const reply = await app.inject({ method: 'POST', url: '/open', headers: json, payload })
    assert.deepEqual(reply.json(), { kept: { x: 1 } })
  }
})

test('an empty JSON body is no body: 200 where it is optional, 400 where a schema needs one', async (t) => {
  const app = await gateway(t)
  const empty = (url: string) => app.inject({ method: 'POST', url, headers: json, payload: '' })
  assert.deepEqual((await empty('/optional')).json(), { body: null })
  assert.equal((await empty('/strict')).statusCode, 400)
})

test('bodies are taken literally and unknown fields refused; text of the URL is coerced', async (t) => {
  const app = await gateway(t)
  const strict = (payload: object) => app.inject({ method: 'POST', url: '/strict', payload })
  assert.deepEqual((await strict({ size: 60 })).json(), { size: 60, mode: 'quick' })
  assert.equal((await strict({ size: '60' })).statusCode, 400)
  assert.equal((await strict({ colour: 'red' })).statusCode, 400)
  assert.equal((await strict({ at: '2026-02-03T04:05:06Z' })).statusCode, 200)
  assert.equal((await strict({ at: 'yesterday' })).statusCode, 400)
  assert.deepEqual((await app.inject('/query?limit=5&tag=a')).json(), { limit: 5, tag: ['a'] })
  assert.equal((await app.inject('/query?limit=five')).statusCode, 400)
})

test('/openapi.json is OpenAPI 3.1 with the routes of its listener and what each needs', async (t) => {
  const document = (await (await gateway(t)).inject('/openapi.json')).json()
  assert.equal(document.openapi, '3.1.0')
  assert.ok(document.paths['/strict'].post)
  assert.equal(document.paths['/strict'].post.security, undefined)
  assert.equal(document.paths['/openapi.json'], undefined)
})

test('what arrives while the listener is closing is 503 unavailable with Retry-After, and the connection is not kept', async (t) => {
  let closing = (): void => {}
  const reached = new Promise<void>((resolve) => {
    closing = resolve
  })
  let release = (): void => {}
  const slowToClose = definePlugin({
    name: 'slow-to-close',
    async setup(ctx) {
      ctx.routes('gateway', async (app) => {
        app.addHook('preClose', async () => {
          closing()
          await new Promise<void>((resolve) => {
            release = resolve
          })
        })
      })
      return {}
    },
  })
  const kernel = await testKernel(t, [slowToClose, echo], { listeners: ['gateway'], listen: true })
  const stopped = kernel.stop()
  await reached
  // On a busy machine the connection can still be without its request when quiet ones are ended: then it is made again.
  const ask = (): Promise<Response> => fetch(`${kernel.urls['gateway']}/query?limit=1`).catch(ask)
  const reply = await ask()
  const body = (await reply.json()) as { error: string }
  release()
  await stopped
  assert.equal(reply.status, 503)
  assert.equal(body.error, 'unavailable')
  assert.equal(reply.headers.get('retry-after'), '1')
  assert.equal(reply.headers.get('connection'), 'close')
})

test('a listener that is about to close answers as ever, and no connection is kept', async (t) => {
  const drained = Promise.withResolvers<void>()
  t.after(() => drained.resolve())
  const drains = definePlugin({
    name: 'drains',
    async setup(ctx) {
      ctx.beforeClose('gateway', () => drained.promise)
      return {}
    },
  })
  const kernel = await testKernel(t, [drains, echo], { listeners: ['gateway'], listen: true })
  const ask = async (path: string) => {
    const reply = await fetch(`${kernel.urls['gateway']}${path}`)
    await reply.text()
    return [reply.status, reply.headers.get('connection')]
  }
  assert.deepEqual(await ask('/query?limit=1'), [200, 'keep-alive'])
  const stopped = kernel.stop()
  assert.deepEqual(await ask('/query?limit=1'), [200, 'close'])
  assert.deepEqual(await ask('/none'), [404, 'close'])
  drained.resolve()
  await stopped
})

test('connections that never sent a whole request do not hold the close', { timeout: 20_000 }, async (t) => {
  const kernel = await testKernel(t, [echo], { listen: true })
  const port = Number(new URL(kernel.urls['gateway']!).port)
  const sockets = [connect(port, '127.0.0.1'), connect(port, '127.0.0.1')]
  await Promise.all(
    sockets.map((socket) =>
      once(
        socket.on('error', () => {}),
        'connect',
      ),
    ),
  )
  sockets[1]!.write('GET /query HTTP/1.1\r\nhost:')
  // Both have reached the server once a later connection was answered.
  await (await fetch(`${kernel.urls['gateway']}/query?limit=1`)).text()
  const closed = Promise.all(sockets.map((socket) => once(socket.resume(), 'close')))
  await kernel.stop()
  await closed
})

test('a NUL in a path names nothing, and one in a query is refused: neither reaches a handler', async (t) => {
  const app = await gateway(t)
  const inPath = await app.inject('/query%00?limit=1')
  assert.deepEqual([inPath.statusCode, inPath.json().error], [404, 'not_found'])
  const inQuery = await app.inject('/query?limit=1&tag=a%00')
  assert.deepEqual([inQuery.statusCode, inQuery.json().error], [400, 'invalid_request'])
  assert.equal((await app.inject('/query?limit=1&tag=a%2500')).statusCode, 200)
})
