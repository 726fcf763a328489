import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { createMcpHandler, ProtocolError, Server } from '@modelcontextprotocol/server'
import { startExternalServer, type TestBody } from '#testing'
import { namesOf, speaker, tokenOf } from './speaker.ts'
import { catalog, stage } from './stage.ts'

// What the endpoint of the catalog shows of its servers.

/** A server with resources and prompts beside its tool. */
async function startFullServer(t: TestContext): Promise<string> {
  const handler = createMcpHandler(() => {
    const server = new Server(
      { name: 'full', version: '1' },
      { capabilities: { tools: {}, resources: {}, prompts: {} } },
    )
    const [text, uri] = ['the static text', 'test://static-text']
    server.setRequestHandler('tools/list', async () => ({
      tools: [{ name: 'test_simple_text', inputSchema: { type: 'object' as const } }],
    }))
    server.setRequestHandler('resources/list', async () => ({ resources: [{ uri, name: 'text' }] }))
    server.setRequestHandler('resources/read', async ({ params }) => {
      if (params.uri !== uri) throw new ProtocolError(-32_602, 'Resource not found', { uri: params.uri })
      return { contents: [{ uri, text }] }
    })
    server.setRequestHandler('prompts/list', async () => ({ prompts: [{ name: 'test_simple_prompt' }] }))
    server.setRequestHandler('prompts/get', async () => ({
      messages: [{ role: 'user' as const, content: { type: 'text' as const, text: 'a simple prompt' } }],
    }))
    return server
  })
  const http = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const headers = Object.entries(request.headers) as [string, string][]
    const asked = new Request('http://full/mcp', { method: 'POST', headers, body: Buffer.concat(chunks) })
    const answer = await handler.fetch(asked)
    response.writeHead(answer.status, Object.fromEntries(answer.headers)).end(await answer.text())
  })
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    http.closeAllConnections()
    http.close()
  })
  return `http://127.0.0.1:${(http.address() as AddressInfo).port}/mcp`
}

test('the tools of all active entries are one endpoint, in both revisions; calls go out as the entry says', async (t) => {
  const files = await startExternalServer(t, { read: {}, write: {} })
  const web = await startExternalServer(t, { look: { run: async ({ q }) => `found ${String(q)}` } })
  const at = await stage(t, { own: [files.url, web.url] })
  await at.call('POST', '/api/secrets', { name: 'web', value: 's3cret' })
  await at.call('POST', catalog, { name: 'files', url: files.url, allowedTools: ['read'] })
  await at.call('POST', catalog, { name: 'web', url: web.url, headers: { authorization: 'Bearer secret://web' } })
  await at.call('POST', catalog, { name: 'off', url: files.url, active: false })
  const speak = speaker(at, await tokenOf(at.call))
  assert.deepEqual(namesOf(await speak.tools()), ['files__read', 'web__look'])
  assert.deepEqual(await speak.call('web__look', { q: 'x' }), { text: 'found x', isError: false })
  assert.deepEqual([...new Set(web.authorizations)], ['Bearer s3cret'])
  assert.deepEqual(await speak.call('files__write'), { code: -32_602 })
  assert.deepEqual(await speak.call('off__read'), { text: 'The entry of this MCP server is inactive.', isError: true })

  const initialized = (await speak.ask('initialize', {
    protocolVersion: '2025-06-18',
    capabilities: {},
    clientInfo: { name: 'c', version: '1' },
  })) as { result: TestBody }
  assert.equal(initialized.result['protocolVersion'], '2025-06-18')
  const discovered = await speak.modern('server/discover')
  const { supportedVersions } = discovered.body['result'] as { supportedVersions: string[] }
  assert.ok(supportedVersions.includes('2026-07-28'))
  const { result } = (await speak.modern('tools/call', { name: 'web__look', arguments: { q: 'y' } })).body as {
    result: { content: TestBody[] }
  }
  assert.equal(result.content[0]!['text'], 'found y')
  // All requests used one session with the server, apart from those of discoveries.
  assert.ok(web.opened.length <= 2, String(web.opened.length))
  assert.match(await at.metrics(), /mcp_catalog_calls_total\{entry="of_tenants",outcome="ok"\} 2/)
  assert.match(await at.metrics(), /mcp_catalog_sessions 1/)
})

test('an endpoint for one entry passes resources and prompts on, unless tools alone are allowed', async (t) => {
  const url = await startFullServer(t)
  const plain = await startExternalServer(t, { read: {} })
  const at = await stage(t, { own: [url, plain.url] })
  await at.call('POST', catalog, { name: 'open', url })
  await at.call('POST', catalog, { name: 'bound', url, allowedTools: ['test_simple_text'] })
  await at.call('POST', catalog, { name: 'reviewed', url, toolPolicy: 'review' })
  await at.call('POST', catalog, { name: 'plain', url: plain.url })
  const token = await tokenOf(at.call)
  const answered = async (entry: string, method: string, params: TestBody = {}, key = token): Promise<string> => {
    const { result, error } = (await speaker(at, key, `/mcp/catalog/${entry}`).ask(method, params)) as TestBody
    return JSON.stringify(result ?? error)
  }
  const read = { uri: 'test://static-text' }
  assert.match(await answered('open', 'resources/list'), /static-text/)
  assert.match(await answered('open', 'resources/read', read), /the static text/)
  assert.match(await answered('open', 'prompts/get', { name: 'test_simple_prompt' }), /a simple prompt/)
  assert.match(await answered('open', 'resources/read', { uri: 'test://none' }), /-32602.*Resource not found/)
  const bounded = await tokenOf(at.call, { mcpToolPermissions: { open: ['test_simple_text'] } })
  for (const [entry, key] of [
    ['bound', token],
    ['plain', token],
    ['open', bounded],
  ] as const) {
    assert.equal(await answered(entry, 'resources/list', {}, key), '{"resources":[]}', entry)
    assert.equal(await answered(entry, 'prompts/list', {}, key), '{"prompts":[]}', entry)
    assert.match(await answered(entry, 'resources/read', read, key), /-32602.*no such resource/, entry)
  }
  assert.match(await answered('reviewed', 'resources/read', read), /None of its tools has been accepted/)
  // The endpoint for all servers together serves only tools.
  assert.match(JSON.stringify(await speaker(at, token).ask('resources/list')), /-32601/)
})

test('an endpoint for one entry has its tools as its server names them', async (t) => {
  const files = await startExternalServer(t, { read: {} })
  const at = await stage(t, { own: [files.url] })
  await at.call('POST', catalog, { name: 'files', url: files.url })
  const token = await tokenOf(at.call)
  const speak = speaker(at, token, '/mcp/catalog/files')
  assert.deepEqual(namesOf(await speak.tools()), ['read'])
  assert.deepEqual(await speak.call('read'), { text: 'read done', isError: false })
  const foreign = await at.other('initech')
  for (const [key, name] of [
    [token, 'nobody'],
    [await tokenOf(foreign), 'files'],
  ] as const) {
    const { status, body } = await speaker(at, key, `/mcp/catalog/${name}`).post({ method: 'tools/list' }, {})
    assert.deepEqual([status, body['error']], [404, 'not_found'])
  }
  assert.deepEqual(await speaker(at, await tokenOf(foreign)).tools(), [])
  assert.deepEqual(files.calls, ['read'])
})

test('names stay within what clients accept, are the same every time, and lead back', async (t) => {
  const odd = { 'créer une issue': {}, [`long_${'x'.repeat(80)}`]: {}, _b: {}, b_0123abcd: {} }
  const server = await startExternalServer(t, odd)
  const at = await stage(t, { own: [server.url] })
  const entries = ['a', 'a_', 'a__b', 's'.repeat(64)]
  for (const name of entries) await at.call('POST', catalog, { name, url: server.url })
  const speak = speaker(at, await tokenOf(at.call))
  const names = namesOf(await speak.tools())
  assert.equal(new Set(names).size, entries.length * Object.keys(odd).length)
  assert.ok(
    names.every((name) => /^[A-Za-z0-9_-]{1,64}$/.test(name)),
    String(names),
  )
  assert.deepEqual(namesOf(await speak.tools()), names)
  for (const name of names) assert.equal(((await speak.call(name)) as { isError?: boolean }).isError, false, name)
  assert.deepEqual(server.calls.toSorted(), entries.flatMap(() => Object.keys(odd)).toSorted())
  assert.deepEqual(await speak.call('a__b_99999999'), { code: -32_602 })
})
