import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { decodeJwt, decodeProtectedHeader, type JWTPayload, SignJWT } from 'jose'
import { definePlugin, linesOf } from '#kernel'
import { parseLine } from '#contracts/run-event'
import { LocalRunners, type RunnerLink, type RunnerSession, RunnerSessions } from '#contracts/runner'
import { type SidecarLink, Sidecars } from '#contracts/sidecar'
import { PlatformTools } from '#contracts/tools'
import { workerPaths } from '#contracts/wire/worker'
import { fake, startScriptedWorker, testKernel, testProfile, type WorkerScript } from '#testing'
import runnerPlugin from '../plugins/runner/index.ts'
import sessionMcp from '../plugins/tools/mcp/index.ts'
import tools from '../plugins/tools/index.ts'
import { createWorkerTokens } from '../plugins/sandboxes/hub/tokens.ts'
import { callsOf, hubPlugin, wayOf } from '../plugins/sandboxes/test/hub.ts'
import { operationsOf } from './openapi-operations.ts'

const listeners = ['runner', 'workers'] as const
const secret = randomBytes(32)
const [mine, other, foreign] = ['sess-00000000-00000001', 'sess-00000000-00000002', 'sess-00000000-00000003']

/** The hub as a runner has it, with sessions of two tenants. */
async function runner(t: TestContext) {
  const tokens = createWorkerTokens(secret, undefined)
  const { hub, plugin } = hubPlugin({ tokens, models: { openai: { baseUrl: 'http://127.0.0.1:9' } } })
  const session = (id: string, tenantId: string): [string, RunnerSession] => [
    id,
    {
      id,
      tenantId,
      status: 'idle',
      tools: [],
      profile: testProfile('p', { workerMode: 'sandbox' }),
      createdAt: '',
      lastUsedAt: '',
    },
  ]
  const sessions = new Map([session(mine, 'acme'), session(other, 'acme'), session(foreign, 'globex')])
  const kernel = await testKernel(
    t,
    [
      plugin,
      fake(RunnerSessions, {
        admits: () => false,
        get: (id) => sessions.get(id),
        toolSpecs: () => [],
        invokeTool: async () => ({ ok: true, content: '' }),
      }),
      sessionMcp,
    ],
    { listeners },
  )
  return { kernel, hub }
}

interface Callback {
  readonly method: string
  readonly url: string
}

/** Every operation of a listener that is for workers, in the name of `mine`. */
async function callbacks(kernel: Awaited<ReturnType<typeof runner>>['kernel'], listener: string): Promise<Callback[]> {
  const values: Readonly<Record<string, string>> = {
    id: mine,
    callId: 'call-1',
    provider: 'openai',
    name: 'tickets',
    mount: 'data',
    '*': 'models',
  }
  const operations = await operationsOf(kernel.listeners[listener]!)
  return operations
    .filter(({ path, access }) => access === 'worker' || path.endsWith('/mcp'))
    .map(({ method, path }) => ({
      method,
      url: path.replaceAll(/\{([^}]+)\}/g, (_whole, name: string) => values[name]!),
    }))
}

test('on every route of both listeners a token is of this session, this tenant and the present worker, or of no use', async (t) => {
  const { kernel, hub } = await runner(t)
  const former = await hub.open('acme', mine)
  const present = await hub.open('acme', mine)
  const neighbour = await hub.open('acme', other)
  const stranger = await hub.open('globex', foreign)
  const { kid } = decodeProtectedHeader(present.token)
  const sign = (payload: JWTPayload, header: Record<string, unknown> = {}, key: Uint8Array = secret): Promise<string> =>
    new SignJWT({ ...decodeJwt(present.token), ...payload })
      .setProtectedHeader({ alg: 'HS256', typ: 'ao-worker+jwt', kid, ...header } as { alg: string })
      .sign(key)
  const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url')
  const none = `${part({ alg: 'none', typ: 'ao-worker+jwt', kid })}.${part(decodeJwt(present.token))}.`
  const cases: readonly (readonly [what: string, token: string | undefined, which: string])[] = [
    ['no token', undefined, 'missing'],
    ['garbage', 'garbage', 'malformed'],
    ['alg none', none, 'malformed'],
    ['another key', await sign({}, {}, randomBytes(32)), 'malformed'],
    ['another type', await sign({}, { typ: 'JWT' }), 'malformed'],
    ['another audience', await sign({ aud: 'ao-runner' }), 'malformed'],
    ['another issuer', await sign({ iss: 'somebody' }), 'malformed'],
    ['expired', await sign({ exp: Math.floor(Date.now() / 1_000) - 1 }), 'expired'],
    ["another session's", neighbour.token, 'other session'],
    ["another tenant's session's", stranger.token, 'other session'],
    ['signed for this session of another tenant', await sign({ tid: 'globex' }), 'other tenant'],
    ["the former worker's", former.token, 'superseded'],
    ['of a generation to come', await sign({ gen: present.generation + 1 }), 'superseded'],
  ]
  let asked = 0
  for (const listener of listeners) {
    const routes = await callbacks(kernel, listener)
    const paths = workerPaths(mine)
    for (const path of [paths.poll, paths.events, paths.state, paths.tool('call-1'), paths.sessionMcp]) {
      assert.ok(
        routes.some(({ url }) => url === path),
        `${listener} has ${path}`,
      )
    }
    for (const { method, url } of routes) {
      for (const [what, token, which] of cases) {
        const reply = await kernel.listeners[listener]!.inject({
          method: method as 'GET',
          url: `${url}?runId=run-1`,
          headers: {
            accept: 'application/json, text/event-stream',
            'x-agent-orc-worker-protocol': '1',
            'x-tenant-id': 'acme',
            'mcp-session-id': present.sessionId,
            ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
          },
          ...(method === 'GET' || method === 'DELETE'
            ? {}
            : { payload: { jsonrpc: '2.0', id: 1, method: 'tools/list' } }),
        })
        const said = `${what} at ${listener} ${method} ${url}: ${reply.body}`
        assert.equal(reply.statusCode, 401, said)
        assert.equal(reply.json<{ error: string }>().error, `invalid or missing worker token: ${which}`, said)
        asked++
      }
    }
  }
  assert.ok(asked > 250, `${asked}`)
  // The token that all of them pretend to be opens the same doors.
  const reply = await kernel.listeners['workers']!.inject({
    url: `${workerPaths(mine).poll}?wait=0`,
    headers: { authorization: `Bearer ${present.token}`, 'x-agent-orc-worker-protocol': '1' },
  })
  assert.equal(reply.statusCode, 204)
})

test('there is nothing on the listener of the workers but what takes their token', async (t) => {
  const { kernel } = await runner(t)
  const open = (await operationsOf(kernel.listeners['workers']!)).filter(({ access }) => access !== 'worker')
  assert.deepEqual(open, [])
  for (const url of ['/runner/info', '/runner/sessions', '/runner/sessions/x/state', '/metrics']) {
    assert.equal((await kernel.listeners['workers']!.inject(url)).statusCode, 404)
  }
})

/** A runner whose one sidecar is a polling worker. `lostMs`: how long the worker may be silent; a minute unless given. */
async function withWorker(t: TestContext, script: WorkerScript, lostMs = 60_000) {
  const found: RunnerLink[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { runners: LocalRunners },
    setup: async ({ deps }) => (found.push(deps.runners.get('local')!), {}),
  })
  const { hub, plugin } = hubPlugin({ lostMs })
  const wired: { link?: SidecarLink } = {}
  const kernel = await testKernel(
    t,
    [
      plugin,
      fake(Sidecars, { forRuntime: () => wired.link!, runtimes: async () => ['general'], slots: () => [] }),
      fake(PlatformTools, {}),
      tools,
      runnerPlugin,
      probe,
    ],
    { listeners, listen: true },
  )
  const link = found[0]!
  const channel = await hub.open('acme', mine)
  const url = kernel.urls['workers']!
  wired.link = {
    run: (envelope, signal) => channel.run(envelope, signal, wayOf(url, callsOf({ model: envelope.profile.model }))),
  } as SidecarLink
  const worker = startScriptedWorker(t, { url, sessionId: mine, token: channel.token }, script)
  await channel.connected(AbortSignal.timeout(30_000))
  const run = async function* (): AsyncGenerator<Record<string, unknown>> {
    const sent = {
      runId: 'run-1',
      sessionId: mine,
      prompt: 'hi',
      firstSeq: 1,
      timeoutMs: 60_000,
      create: { profile: testProfile('p') },
    }
    for await (const chunk of link.execute('acme', sent, new AbortController().signal)) {
      for (const line of linesOf(chunk)) yield parseLine(line)!
    }
  }
  return { worker, channel, hub, run }
}

test('whatever becomes of a worker, its run has exactly one ending', async (t) => {
  const speak = { type: 'assistant', text: 'a', delta: true } as const
  const hang: WorkerScript = {
    async *run() {
      yield speak
      await new Promise(() => {})
    },
  }
  const flood: WorkerScript = {
    async *run({ runId, sessionId }) {
      const text = 'x'.repeat(64 * 1024)
      for (let seq = 2; ; seq++) {
        yield `{"type":"assistant","runId":"${runId}","sessionId":"${sessionId}","seq":${seq},"at":"2026-01-01T00:00:00.000Z","text":"${text}","delta":true}\n`
      }
    },
  }
  const endings: [string, WorkerScript, (parts: Awaited<ReturnType<typeof withWorker>>) => void, string][] = [
    ['vanishes', hang, ({ worker }) => worker.stop(), 'sidecar_lost'],
    ['is superseded', hang, ({ hub }) => void hub.open('acme', mine), 'sidecar_lost'],
    ['is closed', hang, ({ channel }) => channel.close(), 'sidecar_lost'],
    [
      'stops without an end',
      {
        async *run() {
          yield speak
        },
      },
      () => {},
      'sidecar_lost',
    ],
    [
      'sends what is no event',
      {
        async *run() {
          yield 'nonsense\n'
        },
      },
      () => {},
      'bad_event',
    ],
    ['sends without end', flood, () => {}, 'event_upload_too_large'],
    [
      'goes on behind its end',
      {
        async *run() {
          for (const code of ['first', 'second']) yield { type: 'error', code, message: '' }
        },
      },
      () => {},
      'first',
    ],
  ]
  for (const [what, script, fault, code] of endings) {
    // Only the worker that vanishes may be found lost: a busy machine keeps any other one silent for a while, too.
    const parts = await withWorker(t, script, what === 'vanishes' ? 200 : undefined)
    const types: string[] = []
    let last: Record<string, unknown> = {}
    for await (const event of parts.run()) {
      types.push(String(event['type']))
      if (event['type'] === 'assistant' && types.filter((type) => type === 'assistant').length === 1) fault(parts)
      last = event
    }
    assert.equal(last['code'], code, what)
    assert.equal(types.filter((type) => type === 'result' || type === 'error').length, 1, what)
    assert.equal(last['retryable'], code === 'sidecar_lost' ? true : undefined, what)
  }
})
