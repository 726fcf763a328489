import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { ApiRequest } from '#testing'
import { command, setUp } from './support.ts'

/** What E2B's documentation speaks of; the rest of the headers is HTTP's own. */
const documented = ['x-api-key', 'x-access-token', 'e2b-sandbox-id', 'e2b-sandbox-port', 'content-type']

/** Behind the five bytes that a message begins with in a stream. */
const messageOf = (body: Buffer): Buffer => (body[0] === 0 ? body.subarray(5) : body)

const shape = ({ method, url, headers, body }: ApiRequest) => ({
  request: `${method} ${url}`,
  headers: Object.fromEntries(documented.filter((name) => name in headers).map((name) => [name, headers[name]])),
  ...(body.length === 0 ? {} : { body: JSON.parse(messageOf(body).toString('utf8')) as unknown }),
})

test('requests are as the documentation of E2B has them', async (t) => {
  const { fake, provider, launch } = await setUp(t, {}, { routeLag: 0 })
  const { order, sandboxId } = await launch({
    name: 'ao-0123456789abcdef',
    owner: '0f1e2d3c',
    tenantId: 'acme',
    sessionId: 'sess-0f1e2d3c-00000001',
    resources: { memoryMb: 512 },
    runnerUrl: 'https://runner.example.com/x',
    env: { AGENT_ORC_WORKER_TOKEN: 'token-1' },
  })
  assert.equal(await provider.status(sandboxId), 'running')
  await provider.list!('a b&c')
  await provider.pause(sandboxId)
  await provider.resume(sandboxId, order)
  const token = fake.sandboxes.get(sandboxId)!.accessToken
  await provider.destroy(sandboxId)

  const json = 'application/json'
  const api = { 'x-api-key': fake.apiKey }
  const inside = { 'x-access-token': token, 'e2b-sandbox-id': sandboxId, 'e2b-sandbox-port': '49983' }
  const start = {
    request: 'POST /process.Process/Start',
    headers: { ...inside, 'content-type': 'application/connect+json' },
    body: {
      process: {
        cmd: '/bin/bash',
        args: ['-l', '-c', `: agent-orc-worker; mkdir -p "$AGENT_ORC_WORKSPACE" && ${command}`],
        envs: {
          AGENT_ORC_WORKSPACE: '/home/user/workspace',
          AGENT_ORC_STATE_DIR: '/home/user/.agent-orc',
          AGENT_ORC_SESSION_ID: 'sess-0f1e2d3c-00000001',
          AGENT_ORC_WORKER_TOKEN: 'token-1',
          AGENT_ORC_RUNNER_URL: 'https://runner.example.com/x',
        },
      },
      stdin: false,
    },
  }
  const list = { request: 'POST /process.Process/List', headers: { ...inside, 'content-type': json }, body: {} }
  const [before, after] = [fake.requests.slice(0, 8).map(shape), fake.requests.slice(8).map(shape)]
  assert.deepEqual(before, [
    {
      request: 'POST /sandboxes',
      headers: { ...api, 'content-type': json },
      body: {
        templateID: 'agent-orc-worker',
        timeout: 600,
        autoPause: true,
        secure: true,
        metadata: {
          'agent-orc-name': 'ao-0123456789abcdef',
          'agent-orc-owner': '0f1e2d3c',
          'agent-orc-tenant': 'acme',
          'agent-orc-session': 'sess-0f1e2d3c-00000001',
        },
        network: { allowPublicTraffic: false, allowOut: ['runner.example.com'], denyOut: ['0.0.0.0/0'] },
      },
    },
    { request: `GET /sandboxes/${sandboxId}`, headers: api },
    start,
    { request: `GET /sandboxes/${sandboxId}`, headers: api },
    list,
    {
      request: 'GET /v2/sandboxes?metadata=agent-orc-owner%3Da%252520b%252526c&state=running,paused&limit=100',
      headers: api,
    },
    { request: `POST /sandboxes/${sandboxId}/pause`, headers: api },
    {
      request: `POST /sandboxes/${sandboxId}/connect`,
      headers: { ...api, 'content-type': json },
      body: { timeout: 600 },
    },
  ])
  // The former worker is killed, and looked for until it is gone.
  assert.deepEqual(after[0], list)
  const { request, headers, body } = after[1]!
  assert.deepEqual([request, headers], ['POST /process.Process/SendSignal', list.headers])
  assert.equal((body as { signal: string }).signal, 'SIGNAL_SIGKILL')
  assert.deepEqual(after.at(-3), list)
  assert.deepEqual(after.at(-2), start)
  assert.deepEqual(after.at(-1), { request: `DELETE /sandboxes/${sandboxId}`, headers: api })
})

test('a sandbox reaches its runner by address or name alone, and more only where the operator says so', async (t) => {
  const networks = async (config: Record<string, unknown>, runnerUrl: string): Promise<unknown> => {
    const { fake, launch } = await setUp(t, config)
    await launch({ runnerUrl })
    return (JSON.parse(fake.requests[0]!.body.toString('utf8')) as { network: unknown }).network
  }
  const only = (host: string) => ({ allowPublicTraffic: false, allowOut: [host], denyOut: ['0.0.0.0/0'] })
  assert.deepEqual(await networks({}, 'http://203.0.113.7:7061'), only('203.0.113.7/32'))
  assert.deepEqual(await networks({}, 'https://workers.example.com'), only('workers.example.com'))
  await assert.rejects(networks({}, 'https://workers.example.com:7061'), /AGENT_ORC_WORKER_BASE_URL/)
  assert.deepEqual(await networks({ internet: true }, 'https://workers.example.com'), { allowPublicTraffic: false })
})

test('a list longer than a page is read to its end', async (t) => {
  const { fake, provider, orderOf, launch } = await setUp(t)
  const ids: string[] = []
  for (let i = 0; i < 3; i++) ids.push((await launch()).sandboxId)
  fake.plan('GET /v2/sandboxes', {
    status: 200,
    headers: { 'x-next-token': '1' },
    body: [{ sandboxID: ids[0] }],
  })
  assert.deepEqual(await provider.list!(orderOf().owner), ids)
  // Labels are found whatever is in them.
  const { sandboxId } = await launch({ owner: 'a b&c=d%' })
  assert.deepEqual(await provider.list!('a b&c=d%'), [sandboxId])
})
