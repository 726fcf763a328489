import assert from 'node:assert/strict'
import test from 'node:test'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { rehearseMcp } from '#kit/mcp'
import { McpEndpoint } from '#kit/mcp-server'
import { requests } from '../mcp/rehearsal.ts'

// Both throw when a message is not answered as it should be.
test('a rehearsal has one message of each kind, and both sides understand all of them', async () => {
  const kinds = requests.map(
    ({ headers, body }) => `${body.method} ${headers.get('mcp-protocol-version') ?? 'earlier'}`,
  )
  assert.deepEqual(kinds, [
    'initialize earlier',
    'tools/list earlier',
    'tools/list 2026-07-28',
    'tools/call earlier',
    'tools/call 2026-07-28',
  ])
  const endpoint = new McpEndpoint({ name: 'rehearsed', listMs: 0 })
  await endpoint.rehearse()
  await endpoint.close()
  await rehearseMcp()
})

test('nothing is begun for a client that has left before: it can neither read the answer nor cancel the call', async () => {
  const endpoint = new McpEndpoint({ name: 'left', listMs: 0 })
  const called: string[] = []
  const tools: Parameters<McpEndpoint['answer']>[2] = {
    list: () => ({ tools: [] }),
    call: async ({ name }) => (called.push(name), { content: [] }),
  }
  const answered: number[] = []
  const reply = {
    raw: { destroyed: true, once() {}, writableFinished: false },
    code: (status: number) => (answered.push(status), reply),
    headers: () => reply,
    send: () => reply,
  }
  for (const { headers, body } of requests) {
    const request = { url: '/', headers: Object.fromEntries(headers), body } as unknown as FastifyRequest
    await endpoint.answer(request, reply as unknown as FastifyReply, tools)
  }
  assert.deepEqual([answered, called], [requests.map(() => 202), []])
  await endpoint.close()
})
