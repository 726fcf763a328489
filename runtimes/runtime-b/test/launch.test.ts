import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testEnvelope } from '#testing'
import { launchOf } from '../launch.ts'

test('a server is given with its tools alone; one that Codex cannot be given is told of', () => {
  const url = 'https://files.test/mcp'
  const envelope = testEnvelope({
    profile: { model: 'openai/gpt-5' },
    mcpServers: [
      { name: 'all', url },
      { name: 'some', url, tools: [{ name: 'read' }, { name: 'list' }] },
      { name: 'held', url, tools: [{ name: 'read', digest: 'd' }] },
      { name: 'old', url, transport: 'sse' },
    ],
    mcpUnavailable: [{ server: 'gone', message: 'It is gone.' }],
  })
  const { config, external, unavailable } = launchOf(envelope, '/tmp/none', { apiKey: 'k', baseUrl: '' }, undefined)
  const servers = config['mcp_servers'] as Record<string, { enabled_tools?: string[] }>
  assert.deepEqual(external, ['all', 'some'])
  assert.deepEqual(
    Object.entries(servers).map(([name, { enabled_tools: only }]) => [name, only]),
    [
      ['all', undefined],
      ['some', ['read', 'list']],
    ],
  )
  assert.deepEqual(unavailable, [
    { server: 'gone', message: 'It is gone.' },
    {
      server: 'held',
      message: 'This runtime cannot withhold tools that need a review; use the runtime general.',
    },
    { server: 'old', message: 'This runtime speaks only streamable HTTP.' },
  ])
})
