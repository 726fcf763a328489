import assert from 'node:assert/strict'
import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { createMcpHandler, Server } from '@modelcontextprotocol/server'
import { listTools, McpEras, openMcp, reasonOf } from '../mcp/index.ts'

interface Asked {
  readonly method: string
  readonly headers: IncomingHttpHeaders
}

/** A server of both revisions, or of one: `initialize` or `server/discover` is refused then. */
async function startServer(t: TestContext) {
  const served = {
    asked: [] as string[],
    refuses: '',
    url: '',
    instructions: '',
    before: undefined as ((asked: Asked) => object | undefined) | undefined,
  }
  const handler = createMcpHandler(() => {
    const { instructions } = served
    const server = new Server({ name: 'both', version: '1' }, { capabilities: { tools: {} }, instructions })
    const headers = { type: 'object' as const, properties: { a: { type: 'string', 'x-mcp-header': 'A' } } }
    const hidden = { type: 'object' as const, items: { 'x-mcp-header': 'B', type: 'string' } }
    server.setRequestHandler('tools/list', async () => ({
      tools: [
        { name: 'echo', inputSchema: headers },
        { name: 'hidden', inputSchema: hidden },
      ],
    }))
    server.setRequestHandler('tools/call', async ({ params }) => ({
      content: [{ type: 'text' as const, text: JSON.stringify(params.arguments) }],
    }))
    return server
  })
  const http = createServer(async (request, response) => {
    const body = await text(request)
    const { method = '', id } = JSON.parse(body) as { method?: string; id?: unknown }
    served.asked.push(`${method} ${request.headers['mcp-param-a'] ?? ''}`.trim())
    const instead = served.before?.({ method, headers: request.headers })
    if (instead) {
      response.writeHead('error' in instead ? 400 : 200, { 'content-type': 'application/json' })
      return response.end(JSON.stringify({ jsonrpc: '2.0', id, ...instead }))
    }
    if (method === served.refuses) {
      const error = { code: -32_601, message: 'Method not found' }
      response.writeHead(404, { 'content-type': 'application/json' })
      return response.end(JSON.stringify({ jsonrpc: '2.0', id, error }))
    }
    const headers = Object.entries(request.headers) as [string, string][]
    const answer = await handler.fetch(new Request(served.url, { method: 'POST', headers, body }))
    response.writeHead(answer.status, Object.fromEntries(answer.headers)).end(await answer.text())
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    http.close()
  })
  served.url = `http://127.0.0.1:${(http.address() as AddressInfo).port}/mcp`
  return served
}

test('a server is asked once which revision it speaks; one of 2026-07-28 gets no other question before the first request', async (t) => {
  const server = await startServer(t)
  const eras = new McpEras()
  const { signal } = new AbortController()
  const use = async (): Promise<string[]> => {
    server.asked.length = 0
    const session = await openMcp(fetch, { url: server.url, eras }, signal)
    const tools = await listTools(session, signal)
    const result = await session.call({ name: 'echo', input: { a: 'x' }, signal, definition: tools[0] })
    assert.deepEqual(result.content, [{ type: 'text', text: '{"a":"x"}' }])
    // What a server of that revision could not be told of in its headers is left out.
    assert.equal(tools.length, session.client.getProtocolEra() === 'modern' ? 1 : 2)
    await session.close()
    return server.asked.filter((method) => !method.startsWith('notifications/'))
  }
  assert.deepEqual(await use(), ['server/discover', 'tools/list', 'tools/call x'])
  assert.deepEqual(await use(), ['tools/list', 'tools/call x'])

  // One of the revisions before, which speaks the new one alone later.
  eras.forget({ url: server.url })
  server.refuses = 'server/discover'
  assert.deepEqual(await use(), ['server/discover', 'initialize', 'tools/list', 'tools/call'])
  assert.deepEqual(await use(), ['initialize', 'tools/list', 'tools/call'])
  server.refuses = 'initialize'
  assert.deepEqual(await use(), ['initialize', 'server/discover', 'tools/list', 'tools/call x'])
})

test('a tool that wants arguments in headers is listed once for whoever does not know it, and no further than is kept', async (t) => {
  const server = await startServer(t)
  const mismatch = { error: { code: -32_020, message: 'the header is missing' } }
  server.before = ({ method, headers }) =>
    method === 'tools/call' && headers['mcp-param-a'] === undefined ? mismatch : undefined
  const { signal } = new AbortController()
  const session = await openMcp(fetch, { url: server.url, maxAnswerBytes: 100_000 }, signal)
  t.after(() => session.close())
  const call = () => session.call({ name: 'echo', input: { a: 'x' }, signal })
  server.asked.length = 0
  for (let n = 0; n < 2; n++) assert.deepEqual((await call()).content, [{ type: 'text', text: '{"a":"x"}' }])
  assert.deepEqual(server.asked, ['tools/call', 'tools/list', 'tools/call x', 'tools/call x'])

  // One that is never content, and whose list does not end.
  let pages = 0
  const page = (): object => ({
    tools: [{ name: `t${++pages}`, description: 'x'.repeat(30_000), inputSchema: { type: 'object' } }],
    nextCursor: String(pages),
    resultType: 'complete',
    ttlMs: 0,
    cacheScope: 'private',
  })
  server.before = ({ method }) =>
    method === 'tools/call' ? mismatch : method === 'tools/list' ? { result: page() } : undefined
  await assert.rejects(call(), (error) => reasonOf(error).kind === 'too_large')
  assert.ok(pages < 6, String(pages))
})

test('what a server says of itself is bounded, and remembered when it is short', async (t) => {
  const server = await startServer(t)
  const { signal } = new AbortController()
  const eras = new McpEras()
  const open = async (refuses: string, chars: number): Promise<string[]> => {
    server.asked.length = 0
    Object.assign(server, { refuses, instructions: 'x'.repeat(chars) })
    await (await openMcp(fetch, { url: server.url, eras }, signal)).close()
    return server.asked
  }
  for (const refuses of ['', 'server/discover']) {
    await assert.rejects(open(refuses, 300_000), (error) => reasonOf(error).kind === 'too_large', refuses)
  }
  for (let n = 0; n < 2; n++) assert.deepEqual(await open('', 100_000), ['server/discover'])
  assert.deepEqual(await open('', 100), ['server/discover'])
  assert.deepEqual(await open('', 100), [])
})
