import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import type { TestBody, TestCall } from '#testing'
import type { stage } from './stage.ts'

type Stage = Awaited<ReturnType<typeof stage>>

interface Tool {
  readonly name: string
  readonly description?: string
}

const meta = {
  'io.modelcontextprotocol/protocolVersion': '2026-07-28',
  'io.modelcontextprotocol/clientCapabilities': {},
}

/** Sends one message as clients of either revision do. */
export function speaker({ kernel }: Stage, token: string, path = '/mcp/catalog') {
  const post = async (message: TestBody, headers: Record<string, string>) => {
    const reply = await kernel.listeners['conductor']!.inject({
      method: 'POST',
      url: path,
      headers: {
        authorization: `Bearer ${token}`,
        accept: 'application/json, text/event-stream',
        'content-type': 'application/json',
        ...headers,
      },
      payload: JSON.stringify({ jsonrpc: '2.0', id: 1, ...message }),
    })
    return { status: reply.statusCode, body: (reply.body === '' ? {} : JSON.parse(reply.body)) as TestBody }
  }
  const ask = async (method: string, params: TestBody = {}): Promise<TestBody> =>
    (await post({ method, params }, {})).body
  return {
    post,
    ask,
    async modern(method: string, params: TestBody = {}) {
      const name = typeof params['name'] === 'string' ? { 'mcp-name': params['name'] } : {}
      const headers = { 'mcp-protocol-version': '2026-07-28', 'mcp-method': method, ...name }
      return post({ method, params: { ...params, _meta: meta } }, headers)
    },
    async tools(): Promise<Tool[]> {
      const tools: Tool[] = []
      let cursor: unknown
      do {
        const { result } = (await ask('tools/list', cursor === undefined ? {} : { cursor })) as { result: TestBody }
        tools.push(...(result['tools'] as Tool[]))
        cursor = result['nextCursor']
      } while (cursor !== undefined)
      return tools
    },
    async call(name: string, args: TestBody = {}): Promise<{ text: string; isError: boolean } | { code: number }> {
      const { result, error } = (await ask('tools/call', { name, arguments: args })) as {
        result?: TestBody
        error?: TestBody
      }
      if (!result) return { code: error!['code'] as number }
      return { text: (result['content'] as { text: string }[])[0]!.text, isError: result['isError'] === true }
    },
  }
}

export const namesOf = (tools: readonly Tool[]): string[] => tools.map(({ name }) => name)
/** A new key, as the API answers it. */
export const issue = async (call: TestCall, body: TestBody = {}): Promise<TestBody> => {
  const { status, body: key } = await call('POST', '/api/api-keys', { label: 'k', role: 'member', ...body })
  assert.equal(status, 201, JSON.stringify(key))
  return key
}
export const tokenOf = async (call: TestCall, body: TestBody = {}): Promise<string> =>
  (await issue(call, body))['token'] as string

/** The library's client at the endpoint, over a connection of its own. */
export async function connected(t: TestContext, at: Stage, token: string): Promise<Client> {
  const app = at.kernel.listeners['conductor']!
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  const client = new Client({ name: 'test', version: '1' })
  const transport = new StreamableHTTPClientTransport(new URL(`${url}/mcp/catalog`), {
    requestInit: { headers: { authorization: `Bearer ${token}` } },
  })
  await client.connect(transport as Parameters<Client['connect']>[0])
  t.after(() => client.close())
  return client
}
