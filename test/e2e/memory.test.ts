import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { createParser } from 'eventsource-parser'
import { startModelServer } from '#testing'
import { createSigner } from '../../plugins/auth/signing/signer.ts'
import { eventually } from './cluster.ts'
import { gone, type Process, spawnRole } from './roles.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const bootstrap = `bootstrap-${randomBytes(16).toString('hex')}`
const ports = { AGENT_ORC_GATEWAY_PORT: '0', AGENT_ORC_CONDUCTOR_PORT: '0', AGENT_ORC_RUNNER_PORT: '0' }

/** The role `memory` as an operator starts it: nothing is set but the bootstrap key. */
async function start(t: TestContext, env: Record<string, string> = {}) {
  const given = { PATH: process.env['PATH'] ?? '', AGENT_ORC_BOOTSTRAP_KEY: bootstrap, ...ports, ...env }
  const process_: Process = await spawnRole('memory', given)
  t.after(async () => {
    process_.child.kill('SIGKILL')
    await gone(process_.child)
  })
  const call = async <T = Record<string, unknown>>(
    method: string,
    path: string,
    body?: unknown,
    headers: Record<string, string> = {},
    url = process_.urls['conductor']!,
  ): Promise<{ status: number; body: T }> => {
    const response = await fetch(url + path, {
      method,
      headers: {
        authorization: `Bearer ${bootstrap}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    const text = await response.text()
    const isJson = response.headers.get('content-type')?.includes('application/json') ?? false
    return { status: response.status, body: (isJson ? JSON.parse(text) : text) as T }
  }
  return { ...process_, call }
}
type Memory = Awaited<ReturnType<typeof start>>

interface Detail {
  readonly status: string
  readonly result?: string
  readonly sessionId: string
  readonly error?: { readonly code: string }
  readonly events: readonly Record<string, unknown>[]
}
const detail = async ({ call }: Memory, runId: string): Promise<Detail> =>
  (await call<Detail>('GET', `/api/runs/${runId}`)).body
const submit = async ({ call }: Memory, task: object): Promise<{ runId: string; sessionId: string }> => {
  const { status, body } = await call<{ runId: string; sessionId: string }>('POST', '/api/runs', task)
  assert.equal(status, 202, JSON.stringify(body))
  return body
}

/** The events of a run's SSE stream, to its end. */
async function streamed({ urls }: Memory, path: string): Promise<{ event: string | undefined; data: string }[]> {
  const response = await fetch(urls['conductor']! + path, { headers: { authorization: `Bearer ${bootstrap}` } })
  assert.equal(response.status, 200)
  const events: { event: string | undefined; data: string }[] = []
  const parser = createParser({ onEvent: ({ event, data }) => void events.push({ event, data }) })
  const decoder = new TextDecoder()
  for await (const chunk of response.body!) parser.feed(decoder.decode(chunk, { stream: true }))
  return events
}

test('without a database: a profile, a run with a tool, its stream; and after kill -9 the logs are there again, from JSONL', async (t) => {
  const dir = await mkdtemp(join(tmpdir(), 'ao-memory-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  const model = await startModelServer(t)
  const env = { AGENT_ORC_RUNS_DIR: dir, OPENAI_API_KEY: 'stand-in', OPENAI_BASE_URL: model.url }
  const first = await start(t, env)
  const profiles = [
    { name: 'demo', model: 'builtin/demo', tools: ['calculate'] },
    { name: 'writer', model: 'openai/stand-in' },
  ]
  for (const profile of profiles) assert.equal((await first.call('POST', '/api/profiles', profile)).status, 201)

  const sum = await submit(first, { profile: 'demo', prompt: 'What is 6 times 7?' })
  const events = await streamed(first, `/api/runs/${sum.runId}/stream`)
  assert.ok(
    events.some(({ event }) => event === 'tool_call'),
    'the session has its tools',
  )
  assert.equal(events.at(-1)!.event, 'result')
  assert.match(events.at(-1)!.data, /42/)
  const before = await detail(first, sum.runId)
  assert.equal(before.status, 'ok')

  model.next({ text: 'Once upon a time.' })
  const story = await submit(first, { profile: 'writer', prompt: 'Tell me a story.' })
  await streamed(first, `/api/runs/${story.runId}/stream`)
  model.next({ text: 'this is never finished', hangAfter: 2 })
  const cut = await submit(first, { profile: 'writer', prompt: 'Go on.', sessionId: story.sessionId })
  await eventually('its words are on disk', async () =>
    (await readFile(join(dir, 'default', `${cut.runId}.jsonl`), 'utf8')).includes('"assistant"'),
  )
  first.child.kill('SIGKILL')
  await gone(first.child)

  const second = await start(t, env)
  assert.deepEqual(await detail(second, sum.runId), before)
  assert.deepEqual(await streamed(second, `/api/runs/${sum.runId}/stream`), events)
  const lost = await detail(second, cut.runId)
  assert.deepEqual([lost.status, lost.error?.code], ['interrupted', 'interrupted'])
  assert.equal(lost.events.filter(({ type }) => type === 'error' || type === 'result').length, 1)
  assert.equal(lost.events.at(-1)!['type'], 'error')
  const list = await second.call<{ runId: string }[]>('GET', '/api/runs')
  assert.deepEqual(
    list.body.map(({ runId }) => runId),
    [cut.runId, story.runId, sum.runId],
  )

  // Profiles end with their process; a session has a copy of its own, and the conversation is read from its log.
  assert.equal((await second.call('GET', '/api/profiles/writer')).status, 404)
  model.next({ text: 'The end.' })
  const end = await submit(second, { profile: 'writer', prompt: 'And then?', sessionId: story.sessionId })
  await streamed(second, `/api/runs/${end.runId}/stream`)
  assert.equal((await detail(second, end.runId)).result, 'The end.')
  const asked = JSON.stringify(model.requests.at(-1)!.body)
  for (const said of ['Tell me a story.', 'Once upon a time.', 'And then?']) assert.ok(asked.includes(said), said)
})

/** The routes of the public API that need PostgreSQL: every other one works without it. */
const needsDatabase =
  /^\/api\/(approvals|end-users|api-keys|apps|mcp|memory|pools|published|secrets|stats|usage|tenants|webhooks|workflows|audit)(\/|$)|^\/api\/profiles\/\{name\}\/(publish|published|keys|metrics|versions|memories)(\/|$)|^\/v1\/|^\/mcp\//

/** Those of capabilities that this role does not have, and what they say. */
const absent: readonly (readonly [pattern: RegExp, code: string])[] = [
  [/^\/api\/storage\//, 'storage_not_configured'],
  [/^\/api\/attachments$/, 'uploads_unavailable'],
  [/^\/api\/billing\/(?!events\/)/, 'billing_not_configured'],
]

interface Operation {
  readonly method: string
  readonly path: string
}
const operationsOf = (document: { paths: Record<string, object> }): Operation[] =>
  Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => ({ method: method.toUpperCase(), path })),
  )
const documented = async (listener: string): Promise<Operation[]> =>
  operationsOf(JSON.parse(await readFile(join(root, `docs/openapi/${listener}.json`), 'utf8')))

test('every route that needs the database says so with 503, every other works, and an unknown one stays 404', async (t) => {
  const memory = await start(t)
  const { call, urls } = memory
  assert.equal((await call('POST', '/api/profiles', { name: 'x', model: 'builtin/demo' })).status, 201)
  const found: Record<string, number> = {}
  for (const listener of ['conductor', 'gateway']) {
    for (const { method, path } of await documented(listener)) {
      // No body and no name that exists: a route that needs the database says so before it looks at either.
      const filled = path.replaceAll(/\{[^}]+\}/g, 'none')
      const { status, body } = await call(method, filled, undefined, {}, urls[listener]!)
      const name = `${method} ${path}`
      found[name] = status
      if (needsDatabase.test(path)) {
        assert.deepEqual([status, body['error']], [503, 'database_required'], name)
        assert.match(String(body['message']), /PostgreSQL/, name)
      } else {
        const refused = absent.find(([pattern]) => pattern.test(path))
        if (refused) assert.deepEqual([status, body['error']], [503, refused[1]], name)
        else assert.ok(status < 500, `${name}: ${status} ${JSON.stringify(body)}`)
      }
    }
  }
  assert.ok(Object.keys(found).length > 60, 'the documents were walked')
  // The role serves all that is documented, so no 404 above was that of a route that is missing.
  const own = operationsOf((await call<{ paths: Record<string, object> }>('GET', '/openapi.json')).body)
  const missing = (await documented('conductor')).filter(
    ({ method, path }) => !own.some((one) => one.method === method && one.path === path),
  )
  // The way to a VirtualFS server is there where VFS_BASE_URL names one. Specification 4.18.
  const proxied = ['GET', 'PUT', 'DELETE'].map((method) => ({ method, path: '/api/vfs/{*}' }))
  assert.deepEqual(missing, proxied)
  for (const path of ['/api/nothing', '/api/api-keys/a/b/c', '/api/profiles/x/nothing'])
    assert.equal((await call('GET', path)).status, 404, path)
  assert.equal((await call('GET', '/v1/nothing', undefined, {}, urls['gateway']!)).status, 404)
  assert.equal((await call('POST', '/api/runs', { profile: 'x', prompt: 'y' }, { 'idempotency-key': 'k' })).status, 503)
  const told = { profile: 'x', prompt: 'y', webhook: { url: 'https://example.com' } }
  assert.equal((await call('POST', '/api/runs', told)).body['error'], 'database_required')
  assert.equal((await call('GET', '/readyz')).status, 200)
})

test('without a database tenants are kept apart, and nothing but the bootstrap key opens the door', async (t) => {
  const key = randomBytes(32)
  const memory = await start(t, {
    INTERNAL_PORT: '0',
    CHAT_GATEWAY_SIGNING_KEY_CURRENT: key.toString('base64'),
    AGENT_API_KEY_PEPPER: randomBytes(32).toString('base64'),
  })
  const { call, urls } = memory
  for (const authorization of ['', 'Bearer wrong', `Bearer ao_dev_${'a'.repeat(49)}`]) {
    assert.equal((await call('GET', '/api/runs', undefined, { authorization })).status, 401)
    assert.equal((await call('GET', '/api/api-keys', undefined, { authorization })).status, 401)
  }
  assert.equal((await call('POST', '/api/profiles', { name: 'mine', model: 'builtin/demo' })).status, 201)
  const { runId, sessionId } = await submit(memory, { profile: 'mine', prompt: 'Hello' })
  await streamed(memory, `/api/runs/${runId}/stream`)

  const signer = createSigner({ family: 'chat-gateway', current: key, kv: undefined as never, onRefused: () => {} })
  const ask = async (tenant: string, method: string, target: string, body?: object): Promise<string> => {
    const text = body === undefined ? '' : JSON.stringify(body)
    const signed = signer.sign({ tenant, method, target, body: Buffer.from(text) })
    const reply = await call(method, target, body, { ...signed, 'x-tenant-id': 'default' }, urls['internal']!)
    return `${reply.status} ${String(reply.body['error'] ?? reply.body['runId'] ?? reply.body['id'])}`
  }
  for (const [path, id, own] of [
    ['/api/runs', runId, `200 ${runId}`],
    ['/api/sessions', sessionId, `200 ${sessionId}`],
  ] as const) {
    assert.equal(await ask('default', 'GET', `${path}/${id}`), own)
    const foreign = await ask('globex', 'GET', `${path}/${id}`)
    assert.equal(foreign, await ask('globex', 'GET', `${path}/unknown`))
    assert.match(foreign, /^404 /)
  }
  assert.equal(await ask('globex', 'POST', '/api/runs', { profile: 'mine', prompt: 'x' }), '400 unknown_profile: mine')
  const inSession = { profile: 'mine', prompt: 'x', sessionId }
  assert.match(await ask('globex', 'POST', '/api/runs', inSession), /^400 unknown_profile/)
})
