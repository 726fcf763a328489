import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { McpServer, McpServers } from '#contracts/mcp-servers'
import { maxAttachmentChars } from '#contracts/prompt'
import { endless, eventually, profileNamed, result, stage, type Stage, text } from './stage.ts'

const post = async (s: Stage, payload: object) =>
  s.kernel.listeners['conductor']!.inject({ method: 'POST', url: '/api/runs', payload })
const ended = (s: Stage, id: string) =>
  eventually('the run ends', async () => !['queued', 'running'].includes((await s.store.findRun('acme', id))!.status))

const attachments = [{ mediaType: 'image/png', data: 'aGVsbG8=', name: 'a.png' }]
const responseFormat = { type: 'json_schema', name: 'answer', schema: { type: 'object', properties: {} } }
const run = { profile: 'writer', prompt: 'look', attachments, responseFormat }
const shown = {
  attachments: [{ mediaType: 'image/png', name: 'a.png', bytes: 5 }],
  responseFormat: { type: 'json_schema', name: 'answer' },
}

test('attachments and the form of the answer reach the runner; the run shows them without content, a list not at all', async (t) => {
  const s = await stage(t)
  const reply = await post(s, run)
  assert.equal(reply.statusCode, 202, reply.body)
  const { runId, sessionId } = reply.json<{ runId: string; sessionId: string }>()
  await ended(s, runId)
  const executed = s.runner.executed[0]!
  assert.deepEqual([executed.attachments, executed.responseFormat], [attachments, responseFormat])
  const conductor = s.kernel.listeners['conductor']!
  const found = (await conductor.inject(`/api/runs/${runId}`)).json<{ subTask: object }>()
  assert.deepEqual(found.subTask, { id: runId, sessionId, profile: 'writer', prompt: 'look', ...shown })
  const listed = (await conductor.inject('/api/runs')).json<{ subTask: object }[]>()
  assert.deepEqual(listed[0]!.subTask, { id: runId, sessionId, profile: 'writer', prompt: 'look' })
})

test('a run that waits in line keeps what it was given', async (t) => {
  const s = await stage(t)
  s.runner.script = endless
  const first = (await post(s, { profile: 'writer', prompt: 'x' })).json<{ runId: string; sessionId: string }>()
  const waits = await post(s, { ...run, sessionId: first.sessionId, whenBusy: 'enqueue' })
  assert.equal(waits.json<{ status: string }>().status, 'queued')
  s.runner.script = async function* () {
    yield result('done')
  }
  await s.dispatch.cancel('acme', first.runId)
  await ended(s, waits.json<{ runId: string }>().runId)
  assert.deepEqual(s.runner.executed[1]!.attachments, attachments)
  assert.deepEqual(s.runner.executed[1]!.responseFormat, responseFormat)
})

test('a run that is tried again is given the same, and servers as they are by then', async (t) => {
  let key = 0
  const asked: unknown[] = []
  const mcpServers: McpServers = {
    unknown: async () => [],
    names: async () => [],
    unknownSecrets: async () => [],
    async resolve(tenantId, names) {
      asked.push([tenantId, names])
      const servers = names.map((name): McpServer => ({
        name,
        url: 'http://mcp.test',
        headers: { authorization: `key ${++key}` },
      }))
      return { servers, unavailable: [{ server: 'gone', message: 'It is gone.' }] }
    },
  }
  const profile = { ...profileNamed('writer'), onCrash: 'retry' as const, mcpServers: ['files'] }
  const s = await stage(t, { profiles: [profile], mcpServers })
  let attempt = 0
  s.runner.script = async function* () {
    yield text('so ')
    if (attempt++ > 0) yield result('done')
  }
  const { runId } = (await post(s, run)).json<{ runId: string }>()
  await ended(s, runId)
  assert.deepEqual(
    s.runner.executed.map((body) => [
      body.attachments,
      body.mcpServers?.[0]?.headers,
      body.mcpUnavailable?.[0]?.server,
    ]),
    [
      [attachments, { authorization: 'key 1' }, 'gone'],
      [attachments, { authorization: 'key 2' }, 'gone'],
    ],
  )
  assert.deepEqual(asked[0], ['acme', ['files']])
  const stored = [await s.store.findRun('acme', runId), await s.store.readLog('acme', runId, 0)]
  assert.doesNotMatch(JSON.stringify([stored, s.kernel.logs]), /key 1|mcp\.test/)
})

test('a profile without MCP servers costs no look-up', async (t) => {
  const mcpServers: McpServers = {
    unknown: () => assert.fail('not asked'),
    names: () => assert.fail('not asked'),
    unknownSecrets: () => assert.fail('not asked'),
    resolve: () => assert.fail('not asked'),
  }
  const s = await stage(t, { mcpServers })
  const { runId } = (await post(s, { profile: 'writer', prompt: 'x' })).json<{ runId: string }>()
  await ended(s, runId)
  assert.equal('mcpServers' in s.runner.executed[0]!, false)
  assert.equal('attachments' in s.runner.executed[0]!, false)
})

test('what would only fail once a model is called is refused at once', async (t) => {
  const s = await stage(t)
  const image = (data: string) => ({ mediaType: 'image/png', data })
  const half = 'A'.repeat(Math.ceil(maxAttachmentChars / 8) * 4)
  const schema = (one: object) => ({ responseFormat: { type: 'json_schema', schema: one } })
  const cases: [object, number, string][] = [
    [{ attachments: [image('not base64!')] }, 400, 'invalid_attachment'],
    [{ attachments: [image('abc')] }, 400, 'invalid_attachment'],
    [{ attachments: [image('')] }, 400, 'invalid_request'],
    [{ attachments: [{ mediaType: 'png', data: 'AAAA' }] }, 400, 'invalid_request'],
    [{ attachments: [{ mediaType: 'image/png', url: 'http://x' }] }, 400, 'invalid_request'],
    [{ attachments: Array.from({ length: 21 }, () => image('AAAA')) }, 400, 'invalid_request'],
    [{ attachments: [image(half), image(half), image('AAAA')] }, 413, 'attachments_too_large'],
    [{ attachments: [image('A'.repeat(9_000_000))] }, 413, 'body_too_large'],
    [schema({ type: 'nonsense' }), 400, 'invalid_response_format'],
    [schema({ $ref: 'https://elsewhere.test/schema' }), 400, 'invalid_response_format'],
    [schema({ $schema: 'http://json-schema.org/draft-03/schema#' }), 400, 'invalid_response_format'],
    [schema({ $async: true }), 400, 'invalid_response_format'],
    [schema({ pattern: '(' }), 400, 'invalid_response_format'],
    [schema({ enum: Array.from({ length: 20_000 }, (_, i) => `value ${i}`) }), 400, 'invalid_response_format'],
    [{ responseFormat: { type: 'json_object' } }, 400, 'invalid_request'],
  ]
  for (const [more, status, error] of cases) {
    const reply = await post(s, { profile: 'writer', prompt: 'x', ...more })
    assert.equal(reply.statusCode, status, reply.body.slice(0, 300))
    assert.equal(reply.json<{ error: string }>().error, error)
  }
  assert.equal(s.runner.executed.length, 0)
  const full = await post(s, {
    profile: 'writer',
    prompt: '\u0001'.repeat(200_000),
    attachments: [image(half), image(half.slice(8))],
  })
  assert.equal(full.statusCode, 202, 'as much as may be fits the request')
  await s.dispatch.cancel('acme', full.json<{ runId: string }>().runId)
})

test('both drafts of JSON Schema are taken', async (t) => {
  const s = await stage(t)
  const schemas = [
    { $schema: 'https://json-schema.org/draft/2020-12/schema', prefixItems: [{ type: 'string' }] },
    { $schema: 'http://json-schema.org/draft-07/schema#', items: [{ type: 'string', format: 'date-time' }] },
    { $id: 'https://same.test/id', $defs: { a: { type: 'null' } }, $ref: '#/$defs/a' },
    { $id: 'https://same.test/id', type: 'string' },
  ]
  for (const schema of schemas) {
    const reply = await post(s, { profile: 'writer', prompt: 'x', responseFormat: { type: 'json_schema', schema } })
    assert.equal(reply.statusCode, 202, reply.body)
  }
})
