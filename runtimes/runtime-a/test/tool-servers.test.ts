import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testEnvelope } from '#testing'
import { toolServers } from '../tool-servers.ts'

test('a server is given with its tools alone; one whose tools are held back, or that is gone, is told of', () => {
  const url = 'https://files.test/mcp'
  const tools = toolServers(
    testEnvelope({
      mcpServers: [
        { name: 'all', url },
        { name: 'some', url, transport: 'sse', tools: [{ name: 'read' }, { name: 'list' }] },
        { name: 'held', url, tools: [{ name: 'read', digest: 'd' }] },
      ],
      mcpUnavailable: [{ server: 'gone', message: 'It is gone.' }],
    }),
  )
  assert.deepEqual(
    Object.entries(tools.config).map(([name, { type }]) => [name, type]),
    [
      ['all', 'http'],
      ['some', 'sse'],
    ],
  )
  assert.deepEqual(tools.allowed, ['mcp__all__*', 'mcp__some__read', 'mcp__some__list'])
  const connected = { mcp_servers: ['all', 'some'].map((name) => ({ name, status: 'connected' })) }
  assert.deepEqual(tools.unavailable(connected as never), [
    { server: 'gone', message: 'It is gone.' },
    {
      server: 'held',
      message: 'This runtime cannot withhold tools that need a review; use the runtime general.',
    },
  ])
})
