import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type IncomingMessage, request, type ServerResponse } from 'node:http'
import { connect } from 'node:net'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { test, type TestContext } from 'node:test'
import type { EgressHost } from '#contracts/egress'
import type { Resolve } from '#kit/outbound'
import { requestsAtOnce } from '../egress/run-egress.ts'
import { type Ask, ask, basic, egressOf, type OnEgress, tlsHost } from './hosts.ts'
import { until } from './hub.ts'

const value = 'the "value"+of/the secret'
const bearer = { Authorization: 'Bearer secret://token' }

/** A host of this machine, as the operator would allow it. */
const own = (port: number, fields: Partial<EgressHost> = {}): EgressHost => ({
  host: 'localhost',
  port,
  own: true,
  ...fields,
})

async function reaching(
  t: TestContext,
  fields: Partial<EgressHost> = {},
  respond?: Parameters<typeof tlsHost>[1],
  options: Partial<OnEgress> = {},
) {
  const host = await tlsHost(t, respond)
  const egress = await egressOf(t, { hosts: [own(host.port, fields)], secrets: { token: value }, ...options })
  const { key } = egress.access
  const proxied = { 'proxy-authorization': basic(key) }
  return {
    ...egress,
    host,
    key,
    /** Sends a request as a program with `http_proxy` does. */
    get: (target: string, { headers, ...more }: Ask = {}) =>
      ask(egress.url, target, { headers: { host: 'elsewhere.test', ...proxied, ...headers }, ...more }),
  }
}

const codeOf = ({ body }: { readonly body: string }): unknown => (JSON.parse(body) as { error: unknown }).error
const sentenceOf = ({ body }: { readonly body: string }): string => (JSON.parse(body) as { message: string }).message

test('a request leaves over TLS with the value of the secret in place of what the sandbox sent, and nothing of the proxy', async (t) => {
  const { get, host, key, counted, kernel } = await reaching(t, { headers: bearer }, (_asked, response) =>
    response
      .writeHead(201, { 'set-cookie': 'a=b', 'x-rate': '7', 'strict-transport-security': 'max-age=1' })
      .end('made'),
  )
  const reply = await get(`http://LOCALHOST:${host.port}/repos/a%2Fb?x=1&y=`, {
    method: 'POST',
    body: 'hello',
    headers: { authorization: 'Bearer placeholder', 'x-mine': 'yes', connection: 'x-hop', 'x-hop': '1', 'x-copy': key },
  })
  assert.deepEqual([reply.status, reply.body, reply.headers['x-rate']], [201, 'made', '7'])
  assert.equal(reply.headers['set-cookie'], undefined)
  assert.equal(reply.headers['strict-transport-security'], undefined)
  const [{ method, target, headers, body }] = host.asked as [(typeof host.asked)[0]]
  assert.deepEqual([method, target, body], ['POST', '/repos/a%2Fb?x=1&y=', 'hello'])
  const { connection: _, ...sent } = headers
  assert.deepEqual(sent, {
    host: host.name,
    authorization: `Bearer ${value}`,
    'accept-encoding': 'identity',
    'content-length': '5',
    'x-mine': 'yes',
  })
  assert.deepEqual(counted, ['own 201'])
  const logged = JSON.stringify(kernel.logs)
  assert.match(logged, new RegExp(`"host":"${host.name}","status":201`))
  assert.doesNotMatch(logged, /repos|hello|placeholder/)
})

test('below a path it is the same, and the key may come as what the host would take for its own', async (t) => {
  const { url, access, key, host } = await reaching(t, { headers: bearer })
  assert.equal(access.baseUrl, `${url}/runner/worker/sess-1/egress`)
  const below = access.baseUrl.slice(url.length)
  const target = `${below}/localhost:${host.port}/v1/x?y=1`
  for (const headers of [
    { authorization: `Bearer ${key}` },
    { authorization: `token ${key}` },
    { authorization: basic(key) },
    { 'x-api-key': key },
    { 'proxy-authorization': basic(key), authorization: 'Bearer placeholder' },
  ]) {
    const reply = await ask(url, target, { headers })
    assert.deepEqual([reply.status, reply.body], [200, 'pong'], JSON.stringify(headers))
  }
  assert.ok(
    host.asked.every(({ target: at, headers }) => at === '/v1/x?y=1' && headers.authorization === `Bearer ${value}`),
  )
  assert.doesNotMatch(JSON.stringify(host.asked), new RegExp(`${key}|placeholder`))
  assert.equal(codeOf(await ask(url, target)), 'egress_key_refused')
  const other = target.replace('sess-1', 'sess-2')
  assert.equal(codeOf(await ask(url, other, { headers: { authorization: `Bearer ${key}` } })), 'egress_key_refused')
})

test('what the profile does not list is 403 with the field that would allow it, and reaches nobody', async (t) => {
  const { get, host, counted } = await reaching(t, { paths: ['/repos/acme', '/v1/'], methods: ['GET', 'POST'] })
  const at = `http://localhost:${host.port}`
  const elsewhere = await get('http://evil.test/x')
  assert.deepEqual([elsewhere.status, codeOf(elsewhere)], [403, 'egress_not_allowed'])
  assert.equal(
    sentenceOf(elsewhere),
    `This sandbox may not reach evil.test: name it in egress of the profile, {"host": "evil.test"}. It may reach: ${host.name}.`,
  )
  assert.match(
    sentenceOf(await get(`http://localhost:${host.port + 1}/repos/acme`)),
    /may not reach localhost:\d+: name/,
  )
  assert.match(sentenceOf(await get(`${at}/repos/acme2`)), /name it in paths/)
  assert.match(sentenceOf(await get(`${at}/v1/x`, { method: 'DELETE' })), /may not send DELETE .* name it in methods/)
  for (const path of ['/repos/acme', '/repos/acme/x', '/v1/', '/v1/a%20b'])
    assert.equal((await get(at + path)).status, 200)
  for (const path of [
    '/',
    '/v1',
    '/v1/../x',
    '/v1/%2e%2e/x',
    '/v1/..%2fx',
    '/v1/%252e%252e/x',
    '/v1/..;/x',
    '/v1/..\\x',
    '/v1//x',
  ])
    assert.equal((await get(at + path)).status, 403, path)
  assert.equal(host.asked.length, 4)
  assert.ok(counted.includes('unlisted 403'))
  for (const target of [`http://user:word@localhost:${host.port}/v1/x`, 'http:///v1/x'])
    assert.equal(codeOf(await get(target)), 'invalid_target', target)
})

test('a star stands for one label or more, and never for the domain itself', async (t) => {
  const resolve: Resolve = (_host, callback) => callback(null, [{ address: '127.0.0.1', family: 4 }])
  const { get } = await reaching(t, {}, undefined, {
    hosts: [{ host: '*.example.test', port: 443, own: false }],
    resolve,
  })
  for (const host of ['a.example.test', 'a.b.example.test'])
    assert.equal(codeOf(await get(`http://${host}/`)), 'egress_address_not_allowed', host)
  for (const host of ['example.test', 'badexample.test', 'a.example.test.evil.test'])
    assert.equal(codeOf(await get(`http://${host}/`)), 'egress_not_allowed', host)
})

test('a private address is refused unless the operator allowed the host, written out or by name; metadata always', async (t) => {
  const resolve: Resolve = (host, callback) =>
    callback(null, [{ address: host === 'meta.test' ? '169.254.169.254' : '10.0.0.7', family: 4 }])
  const hosts = ['db.test', '10.0.0.7', '[::ffff:a00:7]'].map((host) => ({ host, port: 443, own: false }))
  const { get } = await reaching(t, {}, undefined, {
    hosts: [...hosts, { host: 'meta.test', port: 443, own: true }, { host: '169.254.169.254', port: 443, own: true }],
    resolve,
  })
  for (const host of ['db.test', '10.0.0.7', '[::ffff:10.0.0.7]', 'meta.test', '169.254.169.254']) {
    const reply = await get(`http://${host}/`)
    assert.equal(codeOf(reply), 'egress_address_not_allowed', host)
  }
})

test('a certificate of nobody known, and one for another name, are refused before anything is sent', async (t) => {
  const stranger = await tlsHost(t, undefined, 'stranger')
  const known = await tlsHost(t)
  const resolve: Resolve = (_host, callback) => callback(null, [{ address: '127.0.0.1', family: 4 }])
  const { get } = await reaching(t, {}, undefined, {
    hosts: [own(stranger.port, { headers: bearer }), own(known.port, { host: 'other.test', headers: bearer })],
    resolve,
  })
  for (const target of [`http://localhost:${stranger.port}/`, `http://other.test:${known.port}/`]) {
    const reply = await get(target)
    assert.deepEqual([reply.status, codeOf(reply)], [502, 'egress_host_unreachable'])
    assert.match(sentenceOf(reply), /shows a certificate that is not trusted/)
  }
  assert.deepEqual([...stranger.asked, ...known.asked], [])
})

test('a value that a host repeats is stars in headers and body, in whatever form and however it is cut', async (t) => {
  const base64 = Buffer.from(`user:${value}`).toString('base64')
  const told = `${value} ${JSON.stringify({ value })} ?q=${encodeURIComponent(value)} ${base64} end`
  const { get, host } = await reaching(t, { headers: bearer }, async ({ target }, response) => {
    response.writeHead(200, { 'x-echo': value, 'content-length': Buffer.byteLength(told) })
    if (target === '/whole') return response.end(told)
    for (const byte of Buffer.from(told)) {
      response.write(Buffer.of(byte))
      await new Promise((resolve) => setImmediate(resolve))
    }
    response.end()
  })
  for (const path of ['/whole', '/cut']) {
    const { body, headers } = await get(`http://localhost:${host.port}${path}`)
    assert.equal(body.length, told.length)
    assert.match(body, /^\*+ \{"value":"\*+"\} \?q=\*+ \S{7}\*+\S{0,3} end$/, path)
    assert.match(String(headers['x-echo']), /^\*+$/)
  }
})

test('one path of a host cannot show what another one is sent', async (t) => {
  const host = await tlsHost(t, (_asked, response) => response.end(`last: ${value}`))
  const hosts = [own(host.port, { paths: ['/log'] }), own(host.port, { headers: bearer })]
  const { url, access } = await egressOf(t, { hosts, secrets: { token: value } })
  const reply = await ask(url, `http://${host.name}/log`, { headers: { 'proxy-authorization': basic(access.key) } })
  assert.match(reply.body, /^last: \*+$/)
  assert.equal(host.asked[0]!.headers.authorization, undefined)
})

test('the beginning of an answer that is no value is not held back', async (t) => {
  const { url, access, host, key } = await reaching(t, { headers: bearer }, (_asked, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' }).write('data: the "valve"\n\n')
  })
  const reply = await fetch(`${access.baseUrl}/localhost:${host.port}/`, {
    headers: { authorization: `Bearer ${key}` },
  })
  assert.ok(reply.url.startsWith(url))
  const reader = reply.body!.getReader()
  assert.equal(Buffer.from((await reader.read()).value!).toString(), 'data: the "valve"\n\n')
  await reader.cancel()
})

test('an answer that was compressed unasked cannot be searched, and is refused where there is something to search for', async (t) => {
  const respond: Parameters<typeof tlsHost>[1] = (_asked, response) =>
    response.writeHead(200, { 'content-encoding': 'br' }).end('xx')
  const { get, host } = await reaching(t, { headers: bearer }, respond)
  assert.equal(codeOf(await get(`http://localhost:${host.port}/`)), 'egress_answer_encoded')
  const open = await reaching(t, {}, respond, {})
  const bare = await egressOf(t, { hosts: [own(open.host.port)] })
  const headers = { 'proxy-authorization': basic(bare.access.key) }
  assert.equal((await ask(bare.url, `http://localhost:${open.host.port}/`, { headers })).status, 200)
})

test('the runner follows no redirect; where one leads is asked for in turn, as far as it is listed', async (t) => {
  const { get, host, url, access, key } = await reaching(t, {}, ({ target }, response) =>
    response.writeHead(302, { location: target === '/rel' ? '../y?z' : 'https://evil.test/x?y#z' }).end(),
  )
  const at = `localhost:${host.port}`
  assert.equal((await get(`http://${at}/`)).headers.location, 'http://evil.test/x?y#z')
  assert.equal((await get(`http://${at}/rel`)).headers.location, '../y?z')
  const below = access.baseUrl.slice(url.length)
  const headers = { authorization: `Bearer ${key}` }
  assert.equal((await ask(url, `${below}/${at}/`, { headers })).headers.location, `${below}/evil.test/x?y#z`)
  assert.equal((await ask(url, `${below}/${at}/rel`, { headers })).headers.location, `${below}/${at}/y?z`)
  assert.equal((await get('http://evil.test/x?y')).status, 403)
  assert.equal(host.asked.length, 4)
})

test('an answer without a body, and one that only tells its length, pass as they are', async (t) => {
  const { get, host } = await reaching(t, { headers: bearer }, ({ method, target, headers }, response) => {
    if (method === 'HEAD') response.writeHead(200, { 'content-length': 12, etag: '"a"' }).end()
    else response.writeHead(Number(target.slice(1)), { 'x-expects': String(headers.expect) }).end()
  })
  const at = `http://localhost:${host.port}`
  const head = await get(`${at}/`, { method: 'HEAD' })
  assert.deepEqual([head.status, head.headers['content-length'], head.headers.etag, head.body], [200, '12', '"a"', ''])
  for (const status of [204, 304, 401, 503]) {
    const reply = await get(`${at}/${status}`, { method: 'PUT', body: 'x', headers: { expect: '100-continue' } })
    assert.deepEqual([reply.status, reply.body, reply.headers['x-expects']], [status, '', 'undefined'])
  }
})

test('both ways are streams: an answer begins before the request has ended', async (t) => {
  const host = await tlsHost(t)
  host.server.removeAllListeners('request')
  host.server.on('request', (incoming, response) => void incoming.pipe(response.writeHead(200)))
  const { access } = await egressOf(t, { hosts: [own(host.port)] })
  const said = new TransformStream<Uint8Array, Uint8Array>()
  const writer = said.writable.getWriter()
  const reply = fetch(`${access.baseUrl}/${host.name}/`, {
    method: 'POST',
    headers: { authorization: `Bearer ${access.key}` },
    body: said.readable,
    duplex: 'half',
  })
  void writer.write(Buffer.from('one'))
  const reader = (await reply).body!.getReader()
  assert.equal(Buffer.from((await reader.read()).value!).toString(), 'one')
  void writer.write(Buffer.from('two'))
  assert.equal(Buffer.from((await reader.read()).value!).toString(), 'two')
  await writer.close()
  assert.equal((await reader.read()).done, true)
})

test('a reader who takes nothing holds the host back, and the host one who sends', { timeout: 60_000 }, async (t) => {
  let sent = 0
  const chunk = Buffer.alloc(256 * 1024, 'x')
  const host = await tlsHost(t)
  host.server.removeAllListeners('request')
  host.server.on('request', (incoming: IncomingMessage, response: ServerResponse) => {
    // The body of a request that is sent here is never read.
    if (incoming.method === 'POST') return
    const more = (): void => {
      while (!response.destroyed && sent < 60 * 1024 * 1024) {
        sent += chunk.length
        if (!response.write(chunk)) return
      }
    }
    response.writeHead(200).on('drain', more)
    more()
  })
  const { access } = await egressOf(t, { hosts: [own(host.port, { headers: bearer })], secrets: { token: value } })
  const authorization = `Bearer ${access.key}`
  const held = async (count: () => number): Promise<void> => {
    for (let [before, same] = [-1, 0]; same < 3; before = count()) {
      same = count() === before ? same + 1 : 0
      await new Promise((resolve) => setTimeout(resolve, 200))
    }
  }
  const download = request(`${access.baseUrl}/${host.name}/`, { headers: { authorization } }).end()
  const [answer] = (await once(download, 'response')) as [IncomingMessage]
  await once(answer, 'readable')
  await held(() => sent)
  assert.ok(sent < 40 * 1024 * 1024, `${sent} bytes were taken from the host`)
  download.destroy()

  const upload = request(`${access.baseUrl}/${host.name}/`, { method: 'POST', headers: { authorization } })
  upload.on('error', () => {})
  let taken = 0
  const push = (): void => {
    while (taken < 30 * 1024 * 1024) {
      taken += chunk.length
      if (!upload.write(chunk)) return
    }
  }
  upload.on('drain', push)
  push()
  await held(() => taken)
  assert.ok(taken < 25 * 1024 * 1024, `${taken} bytes were taken from the sandbox`)
  upload.destroy()
})

test('a request that takes too long is ended, before its answer and in it', { timeout: 60_000 }, async (t) => {
  const respond: Parameters<typeof tlsHost>[1] = ({ target }, response) => {
    if (target === '/begun') response.writeHead(200).write('x')
  }
  const { get, host } = await reaching(t, {}, respond, { requestMs: 1_500 })
  const at = `http://localhost:${host.port}`
  const [silent] = await Promise.all([
    get(`${at}/silent`),
    assert.rejects(get(`${at}/begun`), /aborted|socket hang up/),
  ])
  assert.deepEqual([silent.status, codeOf(silent)], [504, 'egress_too_late'])
  // The failed requests have freed their slots, so the full number of concurrent requests is possible again.
  await Promise.all(Array.from({ length: requestsAtOnce }, () => get(`${at}/silent`)))
})

test('a WebSocket is refused, before the host hears of it; an offer of another protocol is not passed on', async (t) => {
  const { get, host } = await reaching(t)
  const asking = (upgrade: string) =>
    get(`http://localhost:${host.port}/`, { headers: { connection: 'upgrade', upgrade } })
  const refused = await asking('WebSocket')
  assert.deepEqual([refused.status, codeOf(refused), host.asked.length], [501, 'no_web_sockets', 0])
  assert.equal((await asking('h2c')).status, 200)
  assert.equal(host.asked[0]!.headers.upgrade, undefined)
})

test('a tunnel is refused with what to write instead', async (t) => {
  const { url, key } = await reaching(t)
  const socket = connect(Number(new URL(url).port), '127.0.0.1')
  socket.write(`CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443\r\nProxy-Authorization: ${basic(key)}\r\n\r\n`)
  let said = ''
  socket.on('data', (chunk) => (said += String(chunk)))
  await once(socket, 'close')
  assert.match(said, /^HTTP\/1\.1 405 Method Not Allowed: use http:\/\/ in place of https:\/\/\r\n/)
  assert.match(said, /"error":"no_tunnels".*"message":"Use http:\/\/ in place of https:\/\//)
})

test('without the key of the run under way nothing is passed, not to a route of the runner either', async (t) => {
  const { url, get, host, run } = await reaching(t)
  for (const headers of [
    {},
    { 'proxy-authorization': basic('x') },
    { 'proxy-authorization': 'Basic' },
  ] as Ask['headers'][]) {
    const reply = await ask(url, `http://localhost:${host.port}/`, { headers: headers! })
    assert.deepEqual([reply.status, codeOf(reply)], [407, 'proxy_key_refused'])
    assert.equal(reply.headers['proxy-authenticate'], 'Basic realm="egress"')
  }
  assert.equal((await ask(url, `${url}/runner/worker/x/poll`)).status, 407)
  assert.equal(codeOf(await get('/runner/egress', { headers: { host: 'localhost' } })), 'invalid_target')
  run.end()
  assert.equal((await get(`http://localhost:${host.port}/`)).status, 407)
  assert.deepEqual(host.asked, [])
})

test('the end of the run cuts what is under way, and sixteen requests at once are all there may be', async (t) => {
  const { get, host, run } = await reaching(t, {}, ({ target }, response) => {
    if (target === '/hang') response.writeHead(200).write('x')
    else response.end('pong')
  })
  const at = `http://localhost:${host.port}`
  const hanging = Array.from({ length: requestsAtOnce }, () => get(`${at}/hang`).catch((error: Error) => error.message))
  await until(() => host.asked.length === requestsAtOnce, 'all of them hang')
  const refused = await get(`${at}/more`)
  assert.deepEqual(
    [refused.status, codeOf(refused), refused.headers['retry-after']],
    [429, 'too_many_egress_requests', '1'],
  )
  run.end()
  assert.deepEqual([...new Set(await Promise.all(hanging))], ['aborted'])
})

test('an answer of more than 64 MiB is refused when its length says so, and cut when it does not', async (t) => {
  const mebibyte = Buffer.alloc(1024 * 1024)
  const { get, host } = await reaching(t, {}, ({ target }, response) => {
    if (target === '/said') return void response.writeHead(200, { 'content-length': 65 * mebibyte.length }).write('x')
    const all = Array.from({ length: 66 }, () => mebibyte)
    pipeline(Readable.from(all), response).catch(() => {})
  })
  assert.equal(codeOf(await get(`http://localhost:${host.port}/said`)), 'egress_answer_too_large')
  await assert.rejects(get(`http://localhost:${host.port}/unsaid`), /aborted|socket hang up/)
  const large = await get(`http://localhost:${host.port}/`, {
    method: 'POST',
    body: Buffer.alloc(33 * mebibyte.length),
  }).catch((error: Error) => ({ body: JSON.stringify({ error: error.message }) }))
  assert.match(String(codeOf(large)), /body_too_large|EPIPE|ECONNRESET|hang up/)
})
