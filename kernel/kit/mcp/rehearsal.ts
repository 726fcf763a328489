// The MCP library makes its validators at the first message of each kind, which blocks a process for 40 ms, once. A role that loads in advance sends
// itself these messages before it is ready, so that no run waits for it, and no other run beside it.

const modern = '2026-07-28'
/** The only tool. */
export const tool = { name: 'none', description: 'none', inputSchema: { type: 'object' as const } }
const implementation = { name: 'none', version: '1' }
const usual = { accept: 'application/json, text/event-stream', 'content-type': 'application/json' }

/** What a client asks in the revisions before 2026-07-28. */
const asked: Readonly<Record<string, object>> = {
  initialize: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: implementation },
  'tools/list': {},
  'tools/call': { name: tool.name, arguments: {} },
}

/** Requests for a server, in both kinds of revisions. */
export const requests = Object.entries(asked).flatMap(([method, params], id) => {
  const request = { headers: new Headers(usual), body: { jsonrpc: '2.0', id, method, params } }
  if (method === 'initialize') return [request]
  const name = method === 'tools/call' ? { 'mcp-name': tool.name } : {}
  const headers = new Headers({ ...usual, 'mcp-protocol-version': modern, 'mcp-method': method, ...name })
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': modern,
    'io.modelcontextprotocol/clientCapabilities': {},
  }
  return [request, { headers, body: { ...request.body, params: { ...params, _meta } } }]
})

/** Answers of a server, by method. */
const answers: Readonly<Record<string, object>> = {
  initialize: { protocolVersion: '2025-06-18', capabilities: { tools: {} }, serverInfo: implementation },
  'tools/list': { tools: [tool] },
  'tools/call': { content: [{ type: 'text', text: 'none' }] },
}

/** A server for a client: it answers a request as one of the revisions before 2026-07-28 does. */
export function answerTo(body: string): Response {
  const { id, method } = JSON.parse(body) as { id?: number; method: string }
  if (id === undefined) return new Response(null, { status: 202 })
  const result = answers[method]
  const error = { code: -32_601, message: 'Method not found' }
  return Response.json({ jsonrpc: '2.0', id, ...(result ? { result } : { error }) })
}
