import assert from 'node:assert/strict'
import test from 'node:test'
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
