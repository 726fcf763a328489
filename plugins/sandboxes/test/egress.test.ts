import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, request as httpRequest, type ServerResponse } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { test, type TestContext } from 'node:test'
import { workerPaths } from '#contracts/wire/worker'
import { begin, startHub, until } from './hub.ts'

const key = 'sk-the-key-of-this-installation'

interface Seen {
  readonly method: string
  readonly target: string
  readonly headers: IncomingHttpHeaders
  readonly body: string
  readonly response: ServerResponse
}

/** The server behind the runner. It answers `pong` unless `respond` does otherwise. */
async function upstreamOf(t: TestContext, respond?: (seen: Seen) => void) {
  const seen: Seen[] = []
  const server = createServer(async (request, response) => {
    const parts: Buffer[] = []
    try {
      for await (const part of request) parts.push(part as Buffer)
    } catch {
      return
    }
    const one = {
      method: request.method!,
      target: request.url!,
      headers: request.headers,
      body: Buffer.concat(parts).toString(),
      response,
    }
    seen.push(one)
    if (respond) respond(one)
    else response.writeHead(200, { 'content-type': 'application/json' }).end('"pong"')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  return { seen, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }
}

async function behind(t: TestContext, respond?: (seen: Seen) => void, path = '/base/v1', model = 'openai/m') {
  const upstream = await upstreamOf(t, respond)
  const models = {
    openai: { apiKey: key, baseUrl: upstream.url + path },
    anthropic: { apiKey: key, baseUrl: upstream.url },
  }
  const hub = await startHub(t, { models })
  const { channel } = await hub.open()
  // Models may only be called during a run.
  const run = new AbortController()
  begin(channel, { profile: { model } }, run.signal)
    .next()
    .catch(() => {})
  const paths = workerPaths(channel.sessionId)
  const origin = hub.urls['workers']!
  const call = (url: string, init: RequestInit = {}) =>
    fetch(origin + url, {
      ...init,
      headers: { authorization: `Bearer ${channel.token}`, ...(init.headers as Record<string, string>) },
    })
  return { ...hub, channel, run, paths, origin, call, upstream }
}

test('a model call gets the key of the runner, and nothing of the worker but what the call is', async (t) => {
  const { call, paths, upstream } = await behind(t, ({ response }) =>
    response
      .writeHead(201, {
        'content-type': 'text/event-stream',
        'retry-after': '3',
        'set-cookie': 'a=b',
        'openai-organization': 'ours',
      })
      .end('data: x\n\n'),
  )
  const reply = await call(`${paths.models('openai')}/chat/completions?x=1`, {
    method: 'POST',
    body: '{"model":"m"}',
    headers: {
      'content-type': 'application/json',
      cookie: 'c=d',
      'openai-organization': 'theirs',
      'x-forwarded-for': '1.2.3.4',
      'openai-beta': 'yes',
    },
  })
  assert.equal(reply.status, 201)
  assert.equal(await reply.text(), 'data: x\n\n')
  assert.equal(reply.headers.get('content-type'), 'text/event-stream')
  assert.equal(reply.headers.get('retry-after'), '3')
  assert.equal(reply.headers.get('set-cookie'), null)
  assert.equal(reply.headers.get('openai-organization'), null)
  const [{ method, target, headers, body }] = upstream.seen as [Seen]
  assert.deepEqual(
    { method, target, body },
    { method: 'POST', target: '/base/v1/chat/completions?x=1', body: '{"model":"m"}' },
  )
  const { host: _, connection: __, 'user-agent': ___, accept: ____, 'accept-encoding': _____, ...rest } = headers
  assert.deepEqual(rest, {
    authorization: `Bearer ${key}`,
    'content-type': 'application/json',
    'content-length': '13',
    'openai-beta': 'yes',
  })
})

test("a vendor's process sends its token as an API key, and finds the API with or without its version", async (t) => {
  const { origin, channel, paths, upstream } = await behind(t, undefined, undefined, 'anthropic/m')
  for (const below of ['messages', 'v1/messages']) {
    const reply = await fetch(`${origin}${paths.models('anthropic')}/${below}?beta=true`, {
      method: 'POST',
      body: '{"model":"m"}',
      headers: { 'x-api-key': channel.token, 'anthropic-version': '2023-06-01' },
    })
    assert.equal(reply.status, 200)
  }
  assert.deepEqual(
    upstream.seen.map(({ target }) => target),
    ['/v1/messages?beta=true', '/v1/messages?beta=true'],
  )
  const { headers } = upstream.seen[0]!
  assert.equal(headers['x-api-key'], key)
  assert.equal(headers['anthropic-version'], '2023-06-01')
  assert.equal(headers.authorization, undefined)
  const refused = await fetch(`${origin}${paths.models('anthropic')}/messages`, {
    method: 'POST',
    headers: { 'x-api-key': 'nonsense' },
  })
  assert.equal(refused.status, 401)
  assert.equal(upstream.seen.length, 2)
})

test('a worker without a run can list models, and call none', async (t) => {
  const { call, paths, run } = await behind(t)
  const ask = () => call(`${paths.models('openai')}/responses`, { method: 'POST', body: '{"model":"m"}' })
  assert.equal((await ask()).status, 200)
  run.abort(new Error('over'))
  const refused = await ask()
  assert.equal(refused.status, 409)
  assert.equal(((await refused.json()) as { error: string }).error, 'no_run_under_way')
  assert.equal((await call(`${paths.models('openai')}/models`)).status, 200)
})

test('a provider that is not configured, or is none, is not there', async (t) => {
  const { open, urls } = await startHub(t, { models: { openai: {} } })
  const { channel } = await open()
  for (const name of ['openai', 'anthropic', 'builtin', '__proto__', 'toString']) {
    const reply = await fetch(`${urls['workers']}${workerPaths(channel.sessionId).models(name)}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${channel.token}` },
    })
    assert.equal(reply.status, 404)
    assert.equal(((await reply.json()) as { error: string }).error, 'unknown_model_provider')
  }
})

test('a provider is there for the workers of the tenants that it names', async (t) => {
  const openai = { baseUrl: 'http://127.0.0.1:1', tenants: { allows: (id: string) => id === 'globex', empty: false } }
  const { open, urls } = await startHub(t, { models: { openai } })
  const { channel } = await open(undefined, 'acme')
  const reply = await fetch(`${urls['workers']}${workerPaths(channel.sessionId).models('openai')}/models`, {
    headers: { authorization: `Bearer ${channel.token}` },
  })
  assert.equal(reply.status, 404)
  assert.equal(((await reply.json()) as { error: string }).error, 'unknown_model_provider')
})

/** Sends exactly these bytes, because a client would normalize the request. */
async function raw(origin: string, text: string): Promise<string> {
  const { hostname, port } = new URL(origin)
  const socket = connect(Number(port), hostname)
  socket.write(text)
  let answer = ''
  for await (const part of socket) answer += String(part)
  return answer
}

test('no target leaves the base of the model server, or reaches the rest of its API', async (t) => {
  const { origin, channel, paths, upstream } = await behind(t)
  const base = paths.models('openai')
  const other = await upstreamOf(t)
  const elsewhere = new URL(other.url).host
  const targets = [
    `${base}/../../files`,
    `${base}/chat/../../files`,
    `${base}/chat/completions/..`,
    `${base}/%2e%2e/files`,
    `${base}/.%2E/models`,
    `${base}/models/..%2f..%2ffiles`,
    `${base}/models/%2e%2e`,
    `${base}/models/..%5c..`,
    `${base}/models/..\\..`,
    `${base}/models/%252e%252e`,
    `${base}/models/a%2fb`,
    `${base}//${elsewhere}/models`,
    `${base}/models//x`,
    `${base}/http://${elsewhere}/models`,
    `${base}/@${elsewhere}/models`,
    `${base}/models;x`,
    `${base}/models#x`,
    `${base}/files`,
    `${base}/files/abc/content`,
    `${base}/responses/resp_1`,
    `${base}/v1/files`,
    `${base}/v1/v1/models`,
    `${base}/`,
    base,
    `http://${elsewhere}${base}/models`,
    `http://${elsewhere}/models`,
  ]
  for (const target of targets) {
    const answer = await raw(
      origin,
      `GET ${target} HTTP/1.1\r\nhost: ${elsewhere}\r\nauthorization: Bearer ${channel.token}\r\nconnection: close\r\n\r\n`,
    )
    assert.match(answer, /^HTTP\/1\.1 40[04] /, target)
  }
  assert.deepEqual(upstream.seen, [])
  assert.deepEqual(other.seen, [])
  const fine = await raw(
    origin,
    `GET ${base}/models/ft:gpt-5:acme::x/y HTTP/1.1\r\nhost: ${elsewhere}\r\nauthorization: Bearer ${channel.token}\r\nconnection: close\r\n\r\n`,
  )
  assert.match(fine, /^HTTP\/1\.1 200 /)
  assert.deepEqual(
    upstream.seen.map(({ target }) => target),
    ['/base/v1/models/ft:gpt-5:acme::x/y'],
  )
})

test('the key is in no answer, whatever the model server says of it', async (t) => {
  let status = 401
  const { call, paths, kernel, upstream } = await behind(t, ({ headers, response }) =>
    response
      .writeHead(status, { 'content-type': 'application/json', 'x-key': key, location: `http://x/?${key}` })
      .end(status === 401 ? JSON.stringify({ error: `Incorrect API key: ${String(headers.authorization)}` }) : '{}'),
  )
  for (status of [401, 307, 500]) {
    const reply = await call(`${paths.models('openai')}/models`, { redirect: 'manual' })
    const text = (await reply.text()) + JSON.stringify([...reply.headers])
    assert.equal(reply.status, status === 401 ? 502 : status)
    assert.ok(!text.includes(key), text)
  }
  assert.equal(upstream.seen.length, 3)
  assert.ok(!JSON.stringify(kernel.logs).includes(key))
})

test('a model server that is away is 502, and one that is cut cuts the answer', async (t) => {
  const { call, paths, kernel } = await behind(t, ({ response, target }) => {
    if (target.endsWith('/models')) return void response.socket!.destroy()
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write('data: 1\n\n', () => response.socket!.destroy())
  })
  const refused = await call(`${paths.models('openai')}/models`)
  assert.equal(refused.status, 502)
  assert.equal(((await refused.json()) as { error: string }).error, 'model_server_unreachable')
  const cut = await call(`${paths.models('openai')}/responses`, { method: 'POST', body: '{"model":"m"}' })
  assert.equal(cut.status, 200)
  await assert.rejects(cut.text())
  assert.ok(!JSON.stringify(kernel.logs).includes(key))
})

test('both ways are streams: the answer begins before the request has ended, and a slow reader holds it back', async (t) => {
  const mebi = 1024 * 1024
  let sent = 0
  const { origin, channel, paths } = await behind(t, ({ response }) => {
    response.writeHead(200, { 'content-type': 'application/octet-stream' })
    const block = Buffer.alloc(64 * 1024)
    const more = (): void => {
      while (sent < 64 * mebi) {
        sent += block.length
        if (!response.write(block)) return void response.once('drain', more)
      }
      response.end()
    }
    more()
  })
  const request = httpRequest(`${origin}${paths.models('openai')}/models`, {
    headers: { authorization: `Bearer ${channel.token}` },
  }).end()
  const [response] = (await once(request, 'response')) as [NodeJS.ReadableStream]
  for (let still = 0, last = -1; still < 10; last = sent) {
    still = sent === last ? still + 1 : 0
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  assert.ok(sent < 32 * mebi, `${sent} bytes were taken from the model server`)
  let read = 0
  for await (const part of response) read += (part as Buffer).length
  assert.equal(read, 64 * mebi)
})

test('a request larger than 32 MiB is refused, with or without its length, and is not sent on whole', async (t) => {
  const { origin, channel, paths, upstream } = await behind(t)
  const first = Buffer.from('{"model":"m","input":"'.padEnd(1024 * 1024, 'x'))
  const block = Buffer.alloc(first.length, 'x')
  for (const length of [{ 'content-length': String(32 * block.length + 1) }, {}]) {
    const status = await new Promise<number | undefined>((resolve, reject) => {
      const request = httpRequest(`${origin}${paths.models('openai')}/chat/completions`, {
        method: 'POST',
        headers: { authorization: `Bearer ${channel.token}`, ...length },
      })
      let written = 0
      request
        .on('error', reject)
        .on('response', (response) => {
          resolve(response.statusCode)
          request.on('error', () => {}).destroy()
        })
        .on('drain', () => void (written++ < 33 && request.write(block)))
      request.write(first)
    })
    assert.equal(status, 413)
  }
  assert.deepEqual(upstream.seen, [])
})

test('a caller that leaves, and a worker that is superseded, close the connection to the model server', async (t) => {
  let closed = 0
  const { origin, channel, paths, upstream, hub } = await behind(t, ({ response }) => {
    response.once('close', () => closed++)
    if (upstream.seen.length > 1) response.writeHead(200, { 'content-type': 'text/event-stream' }).write('data: 1\n\n')
  })
  const ask = () =>
    httpRequest(`${origin}${paths.models('openai')}/responses`, {
      method: 'POST',
      headers: { authorization: `Bearer ${channel.token}` },
    })
      .on('error', () => {})
      .end('{"model":"m"}')
  const before = ask()
  await until(() => upstream.seen.length === 1, 'it waits for headers')
  before.destroy()
  await until(() => closed === 1, 'the model server is left')
  const during = ask()
  await once(during, 'response')
  during.destroy()
  await until(() => closed === 2, 'the model server is left')
  const superseded = ask()
  const [response] = (await once(superseded, 'response')) as [NodeJS.ReadableStream]
  response.on('error', () => {}).resume()
  await hub.open('acme', channel.sessionId)
  await until(() => closed === 3, 'the model server is left')
})

test('an MCP server of the run under way is asked with its own headers, and is gone with the run', async (t) => {
  const upstream = await upstreamOf(t, ({ response, method }) =>
    method === 'POST'
      ? response
          .writeHead(200, { 'content-type': 'application/json', 'mcp-session-id': 'm-1', 'set-cookie': 'x' })
          .end('{}')
      : response.writeHead(method === 'GET' ? 200 : 204, { 'content-type': 'text/event-stream' }).end(),
  )
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const abort = new AbortController()
  const first = begin(
    channel,
    {
      mcpServers: [
        {
          name: 'tickets',
          url: `${upstream.url}/mcp?tenant=acme`,
          headers: { Authorization: 'Bearer of the profile', 'Mcp-Session-Id': 'fixed' },
        },
        { name: 'refuses', url: `${upstream.url}/mcp` },
      ],
    },
    abort.signal,
  ).next()
  const call = (name: string, method: string, body?: string) =>
    fetch(`${urls['workers']}${workerPaths(channel.sessionId).mcpServer(name)}?other=1`, {
      method,
      headers: {
        authorization: `Bearer ${channel.token}`,
        'mcp-session-id': 'from the worker',
        'mcp-protocol-version': '2025-06-18',
        cookie: 'c=d',
      },
      ...(body === undefined ? {} : { body }),
    })
  const reply = await call('tickets', 'POST', '{"jsonrpc":"2.0"}')
  assert.equal(reply.status, 200)
  assert.equal(reply.headers.get('mcp-session-id'), 'm-1')
  assert.equal(reply.headers.get('set-cookie'), null)
  assert.equal((await call('tickets', 'GET')).status, 200)
  assert.equal((await call('tickets', 'DELETE')).status, 204)
  assert.deepEqual(
    upstream.seen.map(({ method, target, body }) => [method, target, body]),
    [
      ['POST', '/mcp?tenant=acme', '{"jsonrpc":"2.0"}'],
      ['GET', '/mcp?tenant=acme', ''],
      ['DELETE', '/mcp?tenant=acme', ''],
    ],
  )
  const { headers } = upstream.seen[0]!
  assert.equal(headers.authorization, 'Bearer of the profile')
  assert.equal(headers['mcp-session-id'], 'fixed')
  assert.equal(headers['mcp-protocol-version'], '2025-06-18')
  assert.equal(headers.cookie, undefined)
  for (const name of ['unknown', '__proto__', '..', encodeURIComponent('../models/openai/models')]) {
    assert.equal((await call(name, 'POST', '{}')).status, 404, name)
  }
  abort.abort(new Error('over'))
  await assert.rejects(first, /over/)
  const gone = await call('tickets', 'POST', '{}')
  assert.equal(((await gone.json()) as { error: string }).error, 'unknown_mcp_server')
})

test('a worker calls the tools that a server is for, and reaches no other address than its entry may have', async (t) => {
  const upstream = await upstreamOf(t, ({ response }) =>
    response.writeHead(200, { 'content-type': 'application/json' }).end('{}'),
  )
  const { open, urls } = await startHub(t)
  const { channel } = await open()
  const tools = [{ name: 'read', digest: 'd' }]
  const mcpServers = [
    { name: 'files', url: `${upstream.url}/mcp`, tools },
    { name: 'literal', url: `${upstream.url}/mcp`, addresses: 'public' as const },
    { name: 'named', url: `${upstream.url.replace('127.0.0.1', 'localhost')}/mcp`, addresses: 'public' as const },
    { name: 'network', url: `${upstream.url}/mcp`, addresses: 'network' as const },
  ]
  const abort = new AbortController()
  const first = begin(channel, { mcpServers }, abort.signal).next()
  const call = async (name: string, body: string) => {
    const reply = await fetch(`${urls['workers']}${workerPaths(channel.sessionId).mcpServer(name)}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${channel.token}` },
      body,
    })
    return [reply.status, ((await reply.json()) as { error?: string }).error]
  }
  const calling = (tool: string) => `{"id":1,"method":"tools/call","params":{"name":"${tool}"}}`
  assert.deepEqual(await call('files', calling('read')), [200, undefined])
  assert.deepEqual(await call('files', '{"id":1,"method":"tools/list"}'), [200, undefined])
  const refused = [
    calling('delete'),
    `[${calling('read')},${calling('delete')}]`,
    '{"method":"tools/call","params":{"name":"read","name":"delete"}}',
    '{"method":"tools/call"}',
    'read',
  ]
  for (const body of refused) assert.deepEqual(await call('files', body), [403, 'tool_not_allowed'], body)
  assert.equal(upstream.seen.length, 2)
  for (const name of ['literal', 'named']) {
    assert.deepEqual(await call(name, calling('any')), [502, 'mcp_server_unreachable'], name)
  }
  assert.deepEqual(await call('network', calling('any')), [200, undefined])
  assert.equal(upstream.seen.length, 3)
  abort.abort(new Error('over'))
  await assert.rejects(first, /over/)
})

test('what a worker sends to be looked into is small, and little of it is under way', async (t) => {
  const waiting: Seen[] = []
  const upstream = await upstreamOf(t, (seen) => void waiting.push(seen))
  const { open, urls } = await startHub(t)
  const tools = [{ name: 'read', digest: 'd' }]
  const mcpServers = [
    { name: 'some', url: `${upstream.url}/mcp`, tools },
    { name: 'any', url: `${upstream.url}/mcp` },
  ]
  const worker = async () => {
    const { channel } = await open()
    begin(channel, { mcpServers })
      .next()
      .catch(() => {})
    return async (name: string, body: string | readonly string[]): Promise<unknown> => {
      const sent = typeof body === 'string' ? body : ReadableStream.from(body.map((part) => Buffer.from(part)))
      const reply = await fetch(`${urls['workers']}${workerPaths(channel.sessionId).mcpServer(name)}`, {
        method: 'POST',
        headers: { authorization: `Bearer ${channel.token}` },
        body: sent,
        duplex: 'half',
      } as RequestInit)
      const { error } = (await reply.json()) as { error?: string }
      return error ?? reply.status
    }
  }
  const answer = (): void => {
    for (const { response } of waiting.splice(0))
      response.writeHead(200, { 'content-type': 'application/json' }).end('{}')
  }
  const mebibyte = 1024 * 1024
  const call = (bytes: number): string => {
    const [head, tail] = ['{"id":1,"method":"tools/call","params":{"name":"read","arguments":{"a":"', '"}}}']
    return head + 'x'.repeat(bytes - head.length - tail.length) + tail
  }
  const [one, other] = [await worker(), await worker()]
  for (const body of [call(mebibyte + 1), [call(mebibyte), ' ']])
    assert.equal(await one('some', body), 'mcp_request_too_large')
  const deep = (levels: number): string => `{"method":"x","params":${'['.repeat(levels)}${']'.repeat(levels)}}`
  assert.equal(await one('some', deep(64)), 'tool_not_allowed')
  assert.equal(upstream.seen.length, 0)

  // Small parallel calls and four of the largest size are under way; a fifth one must wait, and other workers need not.
  const small = Array.from({ length: 20 }, () => one('some', call(200)))
  await until(() => waiting.length === 20, 'they reach the server')
  answer()
  assert.deepEqual(
    await Promise.all(small),
    Array.from({ length: 20 }, () => 200),
  )
  const large = Array.from({ length: 4 }, () => one('some', call(mebibyte)))
  await until(() => waiting.length === 4, 'they reach the server')
  assert.equal(await one('some', call(mebibyte)), 'too_many_mcp_requests')
  const more = [other('some', call(mebibyte)), one('any', call(3 * mebibyte)), one('any', deep(100))]
  await until(() => waiting.length === 7, 'they reach the server')
  answer()
  assert.deepEqual(
    await Promise.all([...large, ...more]),
    Array.from({ length: 7 }, () => 200),
  )
  const again = one('some', call(20_000).match(/.{1,100}/g)!)
  await until(() => waiting.length === 1, 'what was answered counts no longer')
  assert.equal(waiting[0]!.body, call(20_000), 'in whatever parts it came')
  answer()
  assert.equal(await again, 200)
})
