import assert from 'node:assert/strict'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { json as read } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { startSseServer } from '#testing'
import { createModelConnections } from '../models.ts'
import { failureOf, listTools, type McpAddress, openMcp, reasonOf } from '../mcp/index.ts'

interface Message {
  readonly id?: number
  readonly method?: string
  readonly params?: { readonly cursor?: string }
}

/** How a server answers a request that is neither `initialize` nor a notification; and those who listen. */
interface Behaviour {
  answer?(message: Message, response: ServerResponse): void
  listen?(response: ServerResponse): void
}

const asJson = (response: ServerResponse, body: unknown): void =>
  void response
    .writeHead(200, { 'content-type': 'application/json' })
    .end(typeof body === 'string' ? body : JSON.stringify(body))
const asStream = (response: ServerResponse): ServerResponse =>
  response.writeHead(200, { 'content-type': 'text/event-stream' })

/** Opens a session with a server of this behaviour. */
async function sessionWith(t: TestContext, behaviour: Behaviour, more: Partial<McpAddress> = {}) {
  let listened = 0
  const http = createServer(async (request, response) => {
    if (request.method === 'GET') {
      listened++
      return behaviour.listen ? behaviour.listen(asStream(response)) : void response.writeHead(405).end()
    }
    const message = (await read(request)) as Message
    const { id, method } = message
    const said = (result: unknown): void => asJson(response, { jsonrpc: '2.0', id, result })
    if (method === 'server/discover')
      return asJson(response, { jsonrpc: '2.0', id, error: { code: -32_601, message: 'no' } })
    const capabilities = { tools: { listChanged: behaviour.listen !== undefined } }
    const serverInfo = { name: 'odd', version: '1' }
    if (method === 'initialize') return said({ protocolVersion: '2025-06-18', capabilities, serverInfo })
    if (id === undefined) return void response.writeHead(202).end()
    behaviour.answer?.(message, response)
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    http.close()
  })
  const { port } = http.address() as AddressInfo
  const { signal } = new AbortController()
  // As in production. Node's own fetch may join the pieces of an answer.
  const { fetch, close } = createModelConnections()
  t.after(close)
  const session = await openMcp(fetch, { url: `http://127.0.0.1:${port}/mcp`, ...more }, signal)
  t.after(() => session.close())
  return {
    session,
    listened: () => listened,
    list: () => listTools(session, signal),
    call: () => session.call({ name: 'look', input: {}, signal }),
  }
}

const inputSchema = { type: 'object' }

test('a request whose answer is none ends as one whose connection was cut', async (t) => {
  const answers: [string, Behaviour['answer']][] = [
    ['of another request', (_, response) => asJson(response, { jsonrpc: '2.0', id: 4711, result: { content: [] } })],
    ['no message', (_, response) => asJson(response, [])],
    ['heard', (_, response) => void response.writeHead(202).end()],
    [
      'a stream of another request',
      (_, r) => void asStream(r).end('data: {"jsonrpc":"2.0","id":4711,"result":{}}\n\n'),
    ],
  ]
  for (const [what, answer] of answers) {
    const { call } = await sessionWith(t, { answer: answer! })
    await assert.rejects(call(), (error) => failureOf(error, false) === 'cut', what)
  }
  // Some servers write the number of a request as text.
  const text = await sessionWith(t, {
    answer: ({ id }, response) => asJson(response, { jsonrpc: '2.0', id: String(id), result: { content: [] } }),
  })
  assert.deepEqual((await text.call()).content, [])
})

test('an answer that nests too deep, or has too many messages, is too large', async (t) => {
  const nested = (depth: number): Behaviour => ({
    answer: ({ id }, response) =>
      asJson(
        response,
        `{"jsonrpc":"2.0","id":${id},"result":{"content":[],"structuredContent":${'{"a":'.repeat(depth)}{}${'}'.repeat(depth)}}}`,
      ),
  })
  assert.deepEqual((await (await sessionWith(t, nested(100))).call()).content, [])
  const news = 'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":0,"progress":1}}\n\n'
  const many: Behaviour = { answer: (_, response) => void asStream(response).write(news.repeat(6_000)) }
  for (const behaviour of [nested(10_000), many]) {
    const { call } = await sessionWith(t, behaviour)
    await assert.rejects(call(), (error) => reasonOf(error).kind === 'too_large')
  }
})

test('an answer has a bounded number of values, of things to check and of pieces, however short they are', async (t) => {
  const many = (item: string, count: number): string => Array.from({ length: count }, () => item).join(',')
  const saying =
    (result: string, tell: (response: ServerResponse, message: string) => void): Behaviour['answer'] =>
    ({ id }, response) =>
      tell(response, `{"jsonrpc":"2.0","id":${id},"result":${result}}`)
  const inStream = (response: ServerResponse, message: string): void =>
    void asStream(response).end(`data: ${message}\n\n`)
  const inBatch = (response: ServerResponse, message: string): void =>
    asJson(response, `[${many('{"jsonrpc":"2.0","method":"notifications/progress"}', 10_000)},${message}]`)
  const behindOthers = (response: ServerResponse, message: string): void =>
    void asStream(response).end(`${`data: [${many('0', 45_000)}]\n\n`.repeat(5)}data: ${message}\n\n`)
  const byByte = (response: ServerResponse, message: string): void => {
    // Node joins what is written at once.
    asStream(response).flushHeaders()
    response.socket!.write([...`data: ${message}\n\n`].map((byte) => `1\r\n${byte}\r\n`).join('') + '0\r\n\r\n')
  }
  const whole = '{"content":[]}'
  const values = `{"content":[],"x":[${many('{}', 30_000)}]}`
  const toCheck = `{"content":[${many('{}', 1_100)}]}`
  const inItem = `{"content":[{"type":"text","text":"","annotations":{"audience":[${many('0', 1_100)}]}}]}`
  const hostile = [
    saying(values, asJson),
    saying(values, inStream),
    saying(toCheck, asJson),
    saying(toCheck, inStream),
    saying(inItem, asJson),
    saying(whole, inBatch),
    saying(whole, behindOthers),
    saying(`{"content":[{"type":"text","text":"${'x'.repeat(500)}"}]}`, byByte),
  ]
  for (const [i, answer] of hostile.entries()) {
    const { call } = await sessionWith(t, { answer: answer! }, { maxAnswerBytes: i === 7 ? 100_000 : 1024 * 1024 })
    await assert.rejects(call(), (error) => reasonOf(error).kind === 'too_large', String(i))
  }
  const { list } = await sessionWith(t, { answer: saying(`{"tools":[${many('{}', 21_000)}]}`, asJson)! })
  await assert.rejects(list(), (error) => reasonOf(error).kind === 'too_large')
})

test('the rest of an answer that is requested again is bounded like the beginning', async (t) => {
  const cases: [count: number, kind: string | undefined][] = [
    [10, undefined],
    [60_000, 'cut'],
  ]
  for (const [count, kind] of cases) {
    let asked: number | undefined
    const { call } = await sessionWith(t, {
      answer({ id }, response) {
        asked = id
        asStream(response).end('retry: 1\nid: 1\ndata: {"jsonrpc":"2.0","method":"notifications/message"}\n\n')
      },
      listen(response) {
        if (asked === undefined) return
        const result = { content: [], x: Array.from({ length: count }, () => 0) }
        response.write(`id: 2\ndata: ${JSON.stringify({ jsonrpc: '2.0', id: asked, result })}\n\n`)
      },
    })
    const end = await call().then(
      () => undefined,
      (error: unknown) => failureOf(error, false),
    )
    assert.equal(end, kind)
  }
})

test('of a batch only the answer counts, and of a long refusal only the status', async (t) => {
  const { call } = await sessionWith(t, {
    answer: ({ id }, response) =>
      asJson(response, [{ jsonrpc: '2.0', method: 'what' }, {}, { jsonrpc: '2.0', id, result: { content: [] } }]),
  })
  assert.deepEqual((await call()).content, [])
  const refusing = await sessionWith(t, {
    answer: (_, response) =>
      void response.writeHead(503, { 'content-type': 'application/json' }).end(`[${'{},'.repeat(50_000)}{}]`),
  })
  await assert.rejects(refusing.call(), (error) => {
    assert.deepEqual(reasonOf(error), { kind: 'status', status: 503 })
    return (error as Error).message.length < 1_000
  })
})

test('what a server says unasked is bounded: one event, and all of a while; then nobody listens any more', async (t) => {
  const floods = ['data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n', 'x'.repeat(1_000)]
  for (const [i, text] of floods.entries()) {
    const left = Promise.withResolvers<void>()
    const { call, listened } = await sessionWith(t, {
      answer: ({ id }, response) => asJson(response, { jsonrpc: '2.0', id, result: { content: [] } }),
      listen(response) {
        response.on('close', left.resolve)
        const more = (): void => void (response.destroyed || response.write(text, more))
        more()
      },
    })
    await left.promise
    assert.deepEqual((await call()).content, [], 'calls go on')
    assert.equal(listened(), 1, String(i))
  }
})

test(
  'behind a flood nobody waits for an answer that the server would continue in the stream that is given up',
  { timeout: 10_000 },
  async (t) => {
    const left = Promise.withResolvers<void>()
    const { call } = await sessionWith(t, {
      answer: (_, response) => void asStream(response).end('retry: 1\nid: 1\ndata: {"jsonrpc":"2.0","method":"x"}\n\n'),
      listen(response) {
        response.on('close', left.resolve)
        const more = (): void => void (response.destroyed || response.write('x'.repeat(1_000), more))
        more()
      },
    })
    await left.promise
    await assert.rejects(call(), (error) => failureOf(error, false) === 'cut')
  },
)

test('of a list are left out tools that nobody can name and second ones of a name; its pages are one answer', async (t) => {
  const named = (...names: string[]) => names.map((name) => ({ name, inputSchema }))
  const pages: Record<string, object> = {
    first: {
      tools: named('look', '', 'nul\0', 'half\ud800', 'x'.repeat(201), '__proto__', 'a b'),
      nextCursor: 'second',
    },
    second: { tools: [{ name: 'look', description: 'another', inputSchema }, ...named('more')], nextCursor: 'second' },
  }
  let asked = 0
  const odd = await sessionWith(t, {
    answer: ({ id, params }, response) =>
      asJson(response, { jsonrpc: '2.0', id, result: (asked++, pages[params?.cursor ?? 'first']) }),
  })
  const listed = await odd.list()
  assert.deepEqual(
    listed.map(({ name, description }) => [name, description]),
    [
      ['look', undefined],
      ['__proto__', undefined],
      ['a b', undefined],
      ['more', undefined],
    ],
  )
  assert.equal(asked, 2, 'a page that leads to itself is the last one')
  let page = 0
  const description = 'd'.repeat(60_000)
  const fat = await sessionWith(
    t,
    {
      answer: ({ id }, response) =>
        asJson(response, {
          jsonrpc: '2.0',
          id,
          result: { tools: [{ name: `t${page++}`, description, inputSchema }], nextCursor: String(page) },
        }),
    },
    { maxAnswerBytes: 100_000 },
  )
  await assert.rejects(fat.list(), (error) => reasonOf(error).kind === 'too_large')
  assert.equal(page, 2)
})

/** Opens a session with a server of the older transport. */
async function oldSession(t: TestContext, looked: (stream: ServerResponse) => void) {
  const { fetch, close } = createModelConnections()
  t.after(close)
  const { signal } = new AbortController()
  const session = await openMcp(fetch, { url: await startSseServer(t, looked), transport: 'sse' }, signal)
  t.after(() => session.close())
  return { session, call: () => session.call({ name: 'look', input: {}, signal }) }
}

test(
  'the stream of the older transport is bounded by its answers, and not as one answer',
  { timeout: 10_000 },
  async (t) => {
    const news = JSON.stringify({
      jsonrpc: '2.0',
      method: 'notifications/message',
      params: { data: 'x'.repeat(200_000) },
    })
    const { call } = await oldSession(t, (stream) => void stream.write(`data: ${news}\n\n`))
    for (let i = 0; i < 4; i++) assert.deepEqual((await call()).content, [{ type: 'text', text: 'looked' }], String(i))
  },
)

test(
  'a session of the older transport ends with its stream, and nothing is sent any more',
  { timeout: 10_000 },
  async (t) => {
    const ends: ((stream: ServerResponse) => void)[] = [
      (stream) => void stream.end(),
      function flood(stream) {
        if (!stream.destroyed) stream.write('data: {"jsonrpc":"2.0","method":"x"}\n\n'.repeat(100), () => flood(stream))
      },
    ]
    for (const [i, end] of ends.entries()) {
      const { session, call } = await oldSession(t, end)
      await call()
      while (session.client.transport) await setImmediate()
      await assert.rejects(call(), (error) => failureOf(error, false) === 'unreached', String(i))
    }
  },
)
