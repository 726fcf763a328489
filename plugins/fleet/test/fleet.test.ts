import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { type AppError, definePlugin } from '#kernel'
import { fake, testKernel, testProfile } from '#testing'
import { ApiGuard, type Guard, InternalGuard } from '#contracts/auth'
import { type ReadinessCheck, ReadinessChecks } from '#contracts/health'
import { runnerHash } from '#contracts/ids'
import { Kv } from '#contracts/kv'
import type { Profile } from '#contracts/profiles'
import { type ExecuteRun, Fleet, LocalRunners, type RunnerLink } from '#contracts/runner'
import fleetPlugin from '../index.ts'

type Answer = (request: IncomingMessage, body: string, response: ServerResponse) => void | Promise<void>

interface Runner {
  readonly url: string
  readonly server: Server
  answer: Answer
  capabilities: string[]
  probes: number
}

/** A runner as its wire shows it. */
async function runnerAt(t: TestContext, hash?: string): Promise<Runner> {
  const server = createServer((request, response) => {
    void (async () => {
      let body = ''
      for await (const part of request) body += String(part)
      if (request.url !== '/runner/info') return runner.answer(request, body, response)
      runner.probes++
      const { capabilities } = runner
      const info = { instance: 'i-1', capabilities, capabilitiesKnown: true, substrates: [], substratesKnown: true }
      response.end(JSON.stringify({ hash: hash ?? runnerHash(runner.url), ...info }))
    })()
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const runner: Runner = { url, server, answer: (_q, _b, response) => void response.end(), capabilities: [], probes: 0 }
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  return runner
}

const guard: Guard = { protect() {}, callerOf: () => ({ tenantId: 'acme', role: 'member', keyId: 'tak_test' }) }
const kv = { hit: async () => ({ allowed: true, count: 1, retryAfterMs: 0 }) } as unknown as Kv
const around = [fake(ApiGuard, guard), fake(InternalGuard, guard), fake(Kv, kv)]

async function fleetOf(t: TestContext, urls: string, local: Record<string, RunnerLink> = {}, probeInterval = '50ms') {
  const got: { fleet?: Fleet; ready?: ReadinessCheck } = {}
  const grab = definePlugin({
    name: 'grab',
    requires: { fleet: Fleet, checks: ReadinessChecks },
    async setup(ctx) {
      got.fleet = ctx.deps.fleet
      got.ready = ctx.deps.checks.get('runners')!
      return {}
    },
  })
  const entry = { name: 'fleet', plugin: fleetPlugin, config: { urls, probeInterval } }
  const kernel = await testKernel(t, [entry, fake(LocalRunners, local), grab, ...around])
  return { fleet: got.fleet!, ready: got.ready!, kernel }
}

async function until(check: () => boolean): Promise<void> {
  while (!check()) await new Promise((resolve) => setTimeout(resolve, 5))
}

const run: ExecuteRun = { runId: 'r1', sessionId: 'sess-1', prompt: 'x', firstSeq: 2, timeoutMs: 1_000 }
const signal = new AbortController().signal
const live = (fleet: Fleet, runtime = 'general'): boolean => {
  try {
    return fleet.place({ runtime }) !== undefined
  } catch {
    return false
  }
}

test('a session is placed on a live runner that supports its runtime and has the fewest running runs', async (t) => {
  const [a, b] = [await runnerAt(t), await runnerAt(t)]
  b.capabilities = ['runtime_a']
  const { fleet, ready } = await fleetOf(t, `${a.url}, ${b.url}`)
  await ready()
  assert.equal(fleet.place({ runtime: 'general' }).hash, runnerHash(a.url))
  const busy = fleet.all()[0]!
  a.answer = (_request, _body, response) => void response.write('{"type":"progress"}\n')
  const stop = new AbortController()
  const stream = busy.execute('acme', run, stop.signal)[Symbol.asyncIterator]()
  await stream.next()
  for (let i = 0; i < 4; i++) assert.equal(fleet.place({ runtime: 'runtime_a' }).hash, runnerHash(b.url))
  stop.abort()
  await assert.rejects(stream.next())
  const placed = new Set(Array.from({ length: 4 }, () => fleet.place({ runtime: 'runtime_a' }).hash))
  assert.equal(placed.size, 2)
})

test('a session belongs to the runner whose hash is in its id, by what the runner reports', async (t) => {
  const a = await runnerAt(t, '0123abcd')
  const { fleet } = await fleetOf(t, a.url)
  assert.equal(fleet.owner('sess-0123abcd-11111111'), fleet.all()[0])
  assert.equal(fleet.owner(`sess-${runnerHash(a.url)}-11111111`), undefined)
  assert.equal(fleet.owner('whatever'), undefined)
})

test('a runner that was never reached is not live, does not fail the boot, and is taken in when it answers', async (t) => {
  const a = await runnerAt(t)
  a.server.close()
  const { fleet, ready } = await fleetOf(t, a.url)
  assert.throws(
    () => fleet.place({ runtime: 'general' }),
    (e: AppError) => e.code === 'no_runner' && e.status === 503,
  )
  await assert.rejects(ready(), /no runner is live/)
  a.server.listen(Number(new URL(a.url).port), '127.0.0.1')
  await until(() => live(fleet))
  await ready()
})

test('a runner that goes away is noticed, and one that comes back is taken in again', async (t) => {
  const a = await runnerAt(t)
  const { fleet } = await fleetOf(t, a.url)
  assert.ok(live(fleet))
  a.server.close()
  a.server.closeAllConnections()
  await until(() => !live(fleet))
  a.server.listen(Number(new URL(a.url).port), '127.0.0.1')
  await until(() => live(fleet))
})

test('a local runner is live without being asked, even before it knows its address', async (t) => {
  const local = {
    get hash(): string {
      throw new Error('not listening yet')
    },
    info: async () => {
      throw new Error('not listening yet')
    },
  } as unknown as RunnerLink
  const { fleet, ready } = await fleetOf(t, '', { local })
  await ready()
  assert.equal(fleet.all().length, 1)
  assert.ok(fleet.place({ runtime: 'anything' }))
})

test('a run streams whole lines, and its abort reaches the runner', async (t) => {
  const a = await runnerAt(t)
  const { fleet } = await fleetOf(t, a.url)
  const link = fleet.all()[0]!
  let asked: { url: string | undefined; tenant: unknown; body: unknown } | undefined
  const closed = new Promise<void>((resolve) => {
    a.answer = (request, body, response) => {
      asked = { url: request.url, tenant: request.headers['x-tenant-id'], body: JSON.parse(body) }
      response.on('close', resolve)
      response.write('{"type":"prog')
      setImmediate(() => response.write('ress"}\n{"type":"assistant"}\n'))
    }
  })
  const stop = new AbortController()
  const stream = link.execute('acme', run, stop.signal)[Symbol.asyncIterator]()
  const { value } = await stream.next()
  assert.equal(String(value), '{"type":"progress"}\n{"type":"assistant"}\n')
  assert.deepEqual(asked, { url: '/runner/runs', tenant: 'acme', body: run })
  stop.abort()
  await assert.rejects(stream.next())
  await closed
})

test('errors of a runner keep their code; one that cannot be reached says so', async (t) => {
  const a = await runnerAt(t)
  const { fleet } = await fleetOf(t, a.url)
  const link = fleet.all()[0]!
  const attempt = () => link.execute('acme', run, signal)[Symbol.asyncIterator]().next()
  a.answer = (_request, _body, response) => void response.writeHead(404).end('{"error":"unknown_session"}')
  await assert.rejects(attempt(), (e: AppError) => e.code === 'unknown_session' && e.status === 404)
  a.answer = (_request, _body, response) => void response.writeHead(500).end('<html>')
  await assert.rejects(attempt(), (e: AppError) => e.code === 'runner_failed' && e.status === 502)
  a.server.close()
  a.server.closeAllConnections()
  // The first one may still be sent into a connection that is closing, and could have arrived.
  for (let certain = false; !certain;) {
    await assert.rejects(attempt(), (e: AppError) => {
      certain = e.retryable
      return e.code === 'runner_unreachable'
    })
  }
})

test('sessions and state travel as the wire has them', async (t) => {
  const a = await runnerAt(t)
  const { fleet } = await fleetOf(t, a.url)
  const link = fleet.all()[0]!
  const calls: string[] = []
  a.answer = (request, body, response) => {
    calls.push(`${request.method} ${request.url} ${String(request.headers['x-tenant-id'])} ${body}`)
    if (request.url === '/runner/sessions/sess-1/state') {
      response.setHeader('x-runtime-session-id', 'vendor-1')
      response.setHeader('content-type', 'application/gzip')
      response.end(Buffer.from([0, 1, 255]))
    } else if (request.url === '/runner/sessions/sess-1' && request.method === 'GET') {
      const at = '2026-01-01T00:00:00.000Z'
      const session = { id: 'sess-1', tenantId: 'acme', profile: testProfile('p'), runtime: 'general' }
      response.end(JSON.stringify({ ...session, status: 1, tools: [], createdAt: at, lastUsedAt: at }))
    } else response.writeHead(request.url?.includes('none') ? 404 : 204).end()
  }
  const profile = { name: 'p' } as Profile
  await link.deleteSession('acme', 'none')
  await link.hydrate('acme', 'sess-1', profile, {
    bytes: Buffer.from('hi'),
    contentType: 'application/json',
    runtimeSessionId: 'vendor-1',
  })
  assert.deepEqual(calls, [
    'DELETE /runner/sessions/none acme ',
    'POST /runner/sessions/hydrate acme {"profileName":"p","sessionId":"sess-1","profile":{"name":"p"},"stateB64":"aGk=","contentType":"application/json","runtimeSessionId":"vendor-1"}',
  ])
  assert.equal((await link.getSession('acme', 'sess-1'))?.status, 'running')
  assert.equal(await link.getSession('acme', 'none'), undefined)
  const state = await link.exportState('acme', 'sess-1')
  assert.deepEqual([...state!.bytes], [0, 1, 255])
  assert.equal(state!.contentType, 'application/gzip')
  assert.equal(state!.runtimeSessionId, 'vendor-1')
  assert.equal(await link.exportState('acme', 'none'), undefined)
})

test('a runner takes the broadcast in pages; one that has no such route is told one by one', async (t) => {
  const a = await runnerAt(t)
  const { fleet } = await fleetOf(t, a.url)
  const link = fleet.all()[0]!
  const calls: string[] = []
  let pages = true
  a.answer = (request, body, response) => {
    calls.push(`${request.method} ${request.url} ${String(request.headers['x-tenant-id'])} ${body}`)
    if (!request.url?.startsWith('/runner/broadcast')) response.writeHead(request.method === 'POST' ? 204 : 404).end()
    else if (!pages) response.writeHead(404).end('{"error":"not_found"}')
    else response.end(request.url.endsWith('behind') ? '{"tenants":["acme"]}' : '{"revision":2}')
  }
  const page = {
    after: 4,
    revision: 7,
    changes: [
      { revision: 5, kind: 'profile' as const, key: 'p', profile: { name: 'p' } as Profile },
      { revision: 6, kind: 'profile' as const, key: 'p q' },
      { revision: 7, kind: 'pool' as const, key: 'pool_1', pool: { id: 'pool_1' } },
    ],
  }
  assert.equal(await link.takeBroadcast('acme', page), 2)
  assert.deepEqual(await link.behind({ acme: 7 }), ['acme'])
  assert.deepEqual(calls.splice(0), [
    `POST /runner/broadcast acme ${JSON.stringify(page)}`,
    'POST /runner/broadcast/behind undefined {"revisions":{"acme":7}}',
  ])
  pages = false
  assert.equal(await link.takeBroadcast('acme', page), 7)
  assert.deepEqual(await link.behind({ acme: 7 }), [])
  assert.deepEqual(calls.slice(1, 4), [
    'POST /runner/profiles acme {"name":"p"}',
    'DELETE /runner/profiles/p%20q acme ',
    'POST /runner/pools acme {"id":"pool_1"}',
  ])
})

test('a role with no runner at all does not boot', async (t) => {
  await assert.rejects(testKernel(t, [fleetPlugin, ...around]), /no runner is configured; set RUNNER_URLS/)
})

test('tenants read the topology on the public listener, operators change it on the signed one', async (t) => {
  const a = await runnerAt(t)
  const { kernel } = await fleetOf(t, a.url)
  const { conductor, internal } = kernel.listeners
  const states = async () => (await conductor!.inject('/api/topology')).json<{ state: string }[]>()
  const drain = { method: 'POST', url: '/internal/topology/drain', payload: { hash: runnerHash(a.url) } } as const
  assert.equal((await conductor!.inject(drain)).statusCode, 404)
  assert.equal((await internal!.inject('/api/topology')).statusCode, 404)
  assert.deepEqual((await internal!.inject(drain)).json(), {
    url: a.url,
    hash: runnerHash(a.url),
    state: 'draining',
  })
  assert.deepEqual(
    (await states()).map(({ state }) => state),
    ['draining'],
  )
})
