import assert from 'node:assert/strict'
import { once } from 'node:events'
import { request as httpRequest } from 'node:http'
import { test, type TestContext } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { AppError } from '#kernel'
import { type RunnerSession, RunnerSessions } from '#contracts/runner'
import { WorkerHub } from '#contracts/workers'
import { fake, testKernel, testProfile } from '#testing'
import sessionMcp from '../mcp/index.ts'

interface Call {
  readonly session: string
  readonly name: string
  readonly input: unknown
  readonly signal: AbortSignal
}

async function endpoint(t: TestContext, hub?: Partial<WorkerHub>) {
  const calls: Call[] = []
  const ending: (() => void)[] = []
  // Before the kernel stops, which waits for what is under way.
  t.after(() => ending.forEach((end) => end()))
  const session = (
    id: string,
    status: RunnerSession['status'],
    tools: string[],
    workerMode: 'static' | 'sandbox' = 'static',
  ) => {
    const profile = testProfile('p', { workerMode })
    return [id, { id, tenantId: 'acme', status, tools, profile } as unknown as RunnerSession] as const
  }
  const known = new Map([
    session('idle', 'idle', ['calculate']),
    session('running', 'running', ['calculate', 'slow', 'lasting']),
    session('errored', 'errored', ['calculate']),
    session('bare', 'idle', []),
    session('sandboxed', 'running', ['calculate'], 'sandbox'),
    session('sandboxed-errored', 'errored', ['calculate'], 'sandbox'),
  ])
  const kernel = await testKernel(
    t,
    [
      sessionMcp,
      ...(hub ? [fake(WorkerHub, hub as WorkerHub)] : []),
      fake(RunnerSessions, {
        admits: (_session, authorization) => authorization === 'Bearer of-the-run',
        get: (id) => known.get(id),
        toolSpecs: ({ tools }) =>
          tools.map((name) => ({
            name,
            description: `Does ${name}.`,
            inputSchema: { type: 'object', properties: { x: { type: 'string' } }, additionalProperties: false },
          })),
        async invokeTool({ id, tools }, name, input, signal) {
          if (!tools.includes(name)) throw new AppError('tool_not_allowed', 403, { message: `Not allowed: ${name}.` })
          calls.push({ session: id, name, input, signal })
          if (name === 'slow') await new Promise((resolve) => signal.addEventListener('abort', resolve))
          // A run that may be tried again does not give up a call because its caller has left.
          if (name === 'lasting') await new Promise<void>((resolve) => ending.push(resolve))
          return { ok: name !== 'calculate' || input !== null, content: `did ${JSON.stringify(input)}` }
        },
      }),
    ],
    { listen: true, listeners: ['runner', 'workers'] },
  )
  const url = (id: string): string => `${kernel.urls['runner']}/runner/sessions/${id}/mcp`
  const list = (listener: 'runner' | 'workers', id: string, authorization?: string) =>
    kernel.listeners[listener]!.inject({
      method: 'POST',
      url: `/runner/sessions/${id}/mcp`,
      headers: {
        accept: 'application/json, text/event-stream',
        ...(authorization === undefined ? {} : { authorization }),
      },
      payload: { jsonrpc: '2.0', id: 1, method: 'tools/list' },
    })
  return { kernel, calls, ending, url, list }
}

async function connect(t: TestContext, url: string): Promise<Client> {
  const client = new Client({ name: 'test', version: '1' })
  const transport = new StreamableHTTPClientTransport(new URL(url))
  await client.connect(transport as Parameters<Client['connect']>[0])
  t.after(() => client.close())
  return client
}

test("an MCP client lists the session's toolkit and calls a tool", async (t) => {
  const { url, calls } = await endpoint(t)
  const client = await connect(t, url('idle'))
  const { tools } = await client.listTools()
  assert.deepEqual(tools, [
    {
      name: 'calculate',
      description: 'Does calculate.',
      inputSchema: { type: 'object', properties: { x: { type: 'string' } }, additionalProperties: false },
      _meta: { 'anthropic/maxResultSizeChars': 500_000 },
    },
  ])
  const result = await client.callTool({ name: 'calculate', arguments: { x: '1+1' } })
  assert.deepEqual(result.content, [{ type: 'text', text: 'did {"x":"1+1"}' }])
  assert.equal(result.isError, false)
  assert.deepEqual(
    calls.map(({ session, name, input }) => ({ session, name, input })),
    [{ session: 'idle', name: 'calculate', input: { x: '1+1' } }],
  )
})

test('a session with an empty toolkit has an endpoint that lists nothing', async (t) => {
  const { url } = await endpoint(t)
  const client = await connect(t, url('bare'))
  assert.deepEqual((await client.listTools()).tools, [])
  await assert.rejects(client.callTool({ name: 'calculate' }), { code: -32602 })
})

test('a tool outside the toolkit is an MCP error', async (t) => {
  const { url, calls } = await endpoint(t)
  const client = await connect(t, url('idle'))
  await assert.rejects(client.callTool({ name: 'slow' }), { code: -32602, message: /Not allowed: slow/ })
  assert.deepEqual(calls, [])
})

test('the endpoint exists only while the session is idle or running', async (t) => {
  const { kernel } = await endpoint(t)
  const bodies = []
  for (const id of ['errored', 'unknown']) {
    const reply = await kernel.listeners['runner']!.inject({
      method: 'POST',
      url: `/runner/sessions/${id}/mcp`,
      payload: { jsonrpc: '2.0', id: 1, method: 'tools/list' },
    })
    assert.equal(reply.statusCode, 404)
    const { request_id: _, ...body } = reply.json<Record<string, unknown>>()
    bodies.push(body)
  }
  assert.deepEqual(bodies, [{ error: 'unknown_session' }, { error: 'unknown_session' }])
})

test('GET and DELETE answer 405', async (t) => {
  const { kernel } = await endpoint(t)
  for (const method of ['GET', 'DELETE'] as const) {
    const reply = await kernel.listeners['runner']!.inject({ method, url: '/runner/sessions/idle/mcp' })
    assert.equal(reply.statusCode, 405)
    assert.equal(reply.headers['allow'], 'POST')
  }
})

test('a malformed message is answered as JSON-RPC, a client without the right Accept is 406', async (t) => {
  const { kernel } = await endpoint(t)
  const send = (payload: object, accept: string) =>
    kernel.listeners['runner']!.inject({
      method: 'POST',
      url: '/runner/sessions/idle/mcp',
      headers: { accept },
      payload,
    })
  const malformed = await send({ hello: 1 }, 'application/json, text/event-stream')
  assert.equal(malformed.statusCode, 400)
  assert.equal(malformed.json<{ error: { code: number } }>().error.code, -32600)
  const refused = await send({ jsonrpc: '2.0', id: 1, method: 'tools/list' }, 'application/json')
  assert.equal(refused.statusCode, 406)
  const notified = await send(
    { jsonrpc: '2.0', method: 'notifications/initialized' },
    'application/json, text/event-stream',
  )
  assert.equal(notified.statusCode, 202)
  assert.equal(notified.body, '')
})

test('a caller that goes away aborts its tool call', async (t) => {
  const { url, calls } = await endpoint(t)
  const request = httpRequest(url('running'), {
    method: 'POST',
    headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream' },
  })
  request.on('error', () => {})
  request.end(JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'slow' } }))
  while (calls.length === 0) await turn()
  request.destroy()
  while (!calls[0]!.signal.aborted) await turn()
})

test('a batch whose requests are cancelled in itself is answered; an empty one is refused, and one that requests two large answers', async (t) => {
  const { kernel } = await endpoint(t)
  const send = (payload: object) =>
    kernel.listeners['runner']!.inject({
      method: 'POST',
      url: '/runner/sessions/idle/mcp',
      headers: { accept: 'application/json, text/event-stream' },
      payload,
    })
  const cancel = { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 4 } }
  const answered = await send([{ jsonrpc: '2.0', id: 4, method: 'tools/call', params: { name: 'calculate' } }, cancel])
  assert.equal(answered.statusCode, 200)
  assert.equal(answered.json<{ id: number }>().id, 4)
  assert.equal((await send([cancel])).statusCode, 202)
  const asks = (...methods: string[]) =>
    send(methods.map((method, id) => ({ jsonrpc: '2.0', id, method, params: { name: 'calculate' } })))
  const pinged = await asks('ping', 'tools/list', 'ping')
  assert.deepEqual([pinged.statusCode, pinged.json<unknown[]>().length], [200, 3])
  for (const second of ['tools/call', 'tools/list', 'resources/read', 'prompts/get', 'prompts/list']) {
    const { statusCode, body } = await asks('tools/call', 'ping', second)
    assert.equal(statusCode, 400, second)
    assert.match(body, /invalid_request.*more than one list, content or call/)
  }
  assert.equal((await send([])).statusCode, 400)
})

test('the session of a sandbox worker is open to the token of that worker alone, on both listeners', async (t) => {
  const asked: unknown[] = []
  const { list } = await endpoint(t, {
    async authorize(...who) {
      asked.push(who)
      if (who[0] !== 'Bearer right') throw new AppError('invalid or missing worker token: malformed', 401)
    },
  })
  for (const listener of ['runner', 'workers'] as const) {
    assert.equal((await list(listener, 'sandboxed', 'Bearer right')).statusCode, 200)
    for (const authorization of ['Bearer wrong', undefined]) {
      const refused = await list(listener, 'sandboxed', authorization)
      assert.equal(refused.statusCode, 401)
      assert.match(refused.json<{ error: string }>().error, /^invalid or missing worker token/)
    }
    assert.equal((await list(listener, 'sandboxed-errored', 'Bearer right')).statusCode, 404)
  }
  assert.deepEqual(asked[0], ['Bearer right', 'acme', 'sandboxed'])
})

test('whoever shows no token is told so before the body is read, whatever it is', async (t) => {
  const { kernel } = await endpoint(t, {
    authorize: async () => Promise.reject(new AppError('invalid or missing worker token: malformed', 401)),
  })
  const bodies = [
    ['application/json', '{'],
    ['application/json', JSON.stringify('x'.repeat(2 * 1024 * 1024))],
    ['text/plain', 'Hi.'],
  ] as const
  for (const listener of ['runner', 'workers'] as const) {
    for (const [type, payload] of bodies) {
      const headers = { 'content-type': type }
      const url = '/runner/sessions/sandboxed/mcp'
      const refused = await kernel.listeners[listener]!.inject({ method: 'POST', url, headers, payload })
      assert.equal(refused.statusCode, 401, `${listener}: ${type}`)
    }
  }
})

test('a role without a worker hub has no worker that could hold a token', async (t) => {
  const { list } = await endpoint(t)
  for (const listener of ['runner', 'workers'] as const) {
    const refused = await list(listener, 'sandboxed', 'Bearer anything')
    assert.equal(refused.statusCode, 401)
    assert.match(refused.json<{ error: string }>().error, /^invalid or missing worker token/)
  }
})

test('a session without a sandbox needs no token on the runner network, and does not exist where workers come in', async (t) => {
  const { list } = await endpoint(t, { authorize: async () => {} })
  assert.equal((await list('runner', 'idle')).statusCode, 200)
  const refused = await list('workers', 'idle', 'Bearer right')
  assert.equal(refused.statusCode, 404)
  assert.equal(refused.json<{ error: string }>().error, 'unknown_session')
})

const jsonRpc = { 'content-type': 'application/json', accept: 'application/json, text/event-stream' }
const callOf = (name: string) => ({ jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name } })

/** A status, and the error if it is one. */
async function post(url: string, body: object, signal?: AbortSignal): Promise<unknown> {
  const init = { method: 'POST', headers: jsonRpc, body: JSON.stringify(body), ...(signal ? { signal } : {}) }
  const reply = await fetch(url, init)
  return ((await reply.json()) as { error?: string }).error ?? reply.status
}

test('a session has 128 requests at once, also those whose caller has left while they go on', async (t) => {
  const { url, calls, ending } = await endpoint(t)
  const leaving = new AbortController()
  const left = Array.from({ length: 64 }, () => post(url('running'), callOf('lasting'), leaving.signal))
  const others = Array.from({ length: 64 }, () => post(url('running'), callOf('lasting')))
  while (calls.length < 128) await turn()
  leaving.abort()
  assert.equal((await Promise.allSettled(left)).filter(({ status }) => status === 'rejected').length, 64)
  while (!calls.every(({ signal }, at) => signal.aborted || at >= 64)) await turn()
  assert.equal(await post(url('running'), callOf('calculate')), 'too_many_session_requests')
  assert.equal(await post(url('idle'), callOf('calculate')), 200)
  for (const end of ending.splice(0)) end()
  assert.deepEqual(new Set(await Promise.all(others)), new Set([200]))
  assert.equal(await post(url('running'), callOf('calculate')), 200)
})

test('bodies of a session have 4 MiB at once, whether they say their length or not', async (t) => {
  const { url, ending } = await endpoint(t)
  const list = { jsonrpc: '2.0', id: 1, method: 'tools/list' }
  const mebibyte = { 'content-length': 1024 * 1024 }
  const bodies = [{ 'transfer-encoding': 'chunked' }, mebibyte, mebibyte, mebibyte].map((length) => {
    const headers = { ...jsonRpc, ...length, expect: '100-continue' }
    const request = httpRequest(url('idle'), { method: 'POST', headers })
    request.on('error', () => {}).flushHeaders()
    ending.push(() => request.destroy())
    return request
  })
  await Promise.all(bodies.map((request) => once(request, 'continue')))
  assert.equal(await post(url('idle'), list), 'too_many_session_requests')
  assert.equal(await post(url('bare'), list), 200)
  for (const request of bodies) request.destroy()
  while ((await post(url('idle'), list)) !== 200) await turn()
})
