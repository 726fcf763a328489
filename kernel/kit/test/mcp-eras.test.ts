import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { createMcpHandler, Server } from '@modelcontextprotocol/server'
import { listTools, McpEras, openMcp } from '../mcp/index.ts'

/** A server of both revisions, or of one: `initialize` or `server/discover` is refused then. */
async function startServer(t: TestContext) {
  const served = { asked: [] as string[], refuses: '', url: '' }
  const handler = createMcpHandler(() => {
    const server = new Server({ name: 'both', version: '1' }, { capabilities: { tools: {} } })
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
