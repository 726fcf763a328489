import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { request } from 'node:https'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import type { SigningFamily } from '#contracts/signing'
import { connectLink } from '../../kernel/kit/link/caller.ts'
import { createSigner } from '../../plugins/auth/signing/signer.ts'
import { chat } from './client.ts'
import { type Cluster, eventually, startCluster } from './cluster.ts'

// Somebody who reached the ports of a runner and of a sidecar, and knows everything but the key.

type Headers = Readonly<Record<string, string>>
interface Sent {
  readonly method: string
  readonly target: string
  readonly body?: string
  readonly tenant?: string
}

const key = randomBytes(32)
const signerOf = (current: Buffer, family: SigningFamily = 'runner') =>
  createSigner({ family, current, kv: undefined as never, onRefused() {} })

const sign = ({ method, target, body = '', tenant = '' }: Sent, signer = signerOf(key)): Headers =>
  signer.sign({ tenant, method, target, body: Buffer.from(body) })

async function send(url: string, { method, target, body }: Sent, headers: Headers): Promise<number> {
  const type = body === undefined ? {} : { 'content-type': 'application/json' }
  const reply = await fetch(url + target, { method, headers: { ...type, ...headers }, body: body ?? null })
  await reply.body?.cancel()
  return reply.status
}

/** Every route of a listener, as its document shows them, and what the document does not show. */
async function routesOf(listener: string): Promise<Sent[]> {
  const text = await readFile(new URL(`../../docs/openapi/${listener}.json`, import.meta.url), 'utf8')
  const { paths } = JSON.parse(text) as { paths: Record<string, Record<string, object>> }
  const documented = Object.entries(paths).flatMap(([path, operations]) =>
    Object.keys(operations).map((method) => ({
      method: method.toUpperCase(),
      target: path.replaceAll(/\{[^}]+\}/g, 'x'),
      ...(['post', 'put'].includes(method) ? { body: '{}' } : {}),
    })),
  )
  // What comes with it is not looked at, so a body that is no JSON is answered like any other.
  const broken = documented.filter(({ body }) => body !== undefined).map((sent) => ({ ...sent, body: '{' }))
  const long = documented.map((sent) => ({
    ...sent,
    target: sent.target.replace(/\/x(?=\/|$)/, `/${'x'.repeat(200)}`),
  }))
  const others = ['/', '/openapi.json', '/nowhere', '/runner/../runner/info', '/healthz/', '/HEALTHZ', '/%zz']
  others.push(`/runner/sessions/${'x'.repeat(2_000)}`)
  return [...documented, ...broken, ...long, ...others.map((target) => ({ method: 'GET', target }))]
}

/** A cluster whose processes authenticate each other, with an agent that uses a tool. */
async function closedCluster(t: Parameters<typeof startCluster>[0], env: Record<string, string> = {}) {
  const cluster = await startCluster(t, 'four', {
    env: {
      RUNNER_SIGNING_KEY_CURRENT: key.toString('base64'),
      // A runner that starts no sandboxes tells every worker so, whoever it is: the doors of one that does are tried.
      AGENT_ORC_SANDBOX_PROCESS: 'true',
      AGENT_ORC_SANDBOX_TENANTS: '*',
      ...env,
    },
  })
  return { cluster, agent: await cluster.agent('insider', { tools: ['calculate'] }) }
}

/** One chat whose model calls a tool, which goes back from the sidecar to the runner. */
async function chatWithTool(cluster: Cluster, agent: Awaited<ReturnType<Cluster['agent']>>): Promise<void> {
  cluster.model.next(
    { text: '', toolCalls: [{ id: 'call_1', name: 'calculate', arguments: { expression: '6*7' } }] },
    { text: 'It is done.' },
  )
  const answer = await chat(agent, { message: 'What is 6*7?' })
  assert.equal(answer.status, 200, `${JSON.stringify(answer.body)}\n${cluster.output()}`)
  assert.equal(answer.body.message, 'It is done.')
  assert.match(String(cluster.model.requests.at(-1)!.body.messages.at(-1)!.content), /42/)
}

test('whoever reached the ports of a runner and a sidecar gets nothing there but /healthz', async (t) => {
  const { cluster, agent } = await closedCluster(t)
  await chatWithTool(cluster, agent)
  const stranger = signerOf(randomBytes(32))
  const gateway = signerOf(cluster.signingKey, 'chat-gateway')
  for (const [listener, url] of [
    ['runner', cluster.runnerUrl],
    ['sidecar', cluster.sidecarUrl],
  ] as const) {
    assert.equal(await send(url, { method: 'GET', target: '/healthz' }, {}), 200)
    const routes = (await routesOf(listener)).filter(({ target }) => target !== '/healthz')
    assert.ok(routes.length > 8)
    for (const route of routes) {
      const tried: [string, Headers][] = [
        ['without a word', {}],
        ['with a tenant', { 'x-tenant-id': 'default' }],
        ['with the key of an owner', { authorization: `Bearer ${cluster.bootstrap}` }],
        ['with a key of its own', sign(route, stranger)],
        ['as a gateway', sign({ ...route, tenant: 'default' }, gateway)],
      ]
      for (const [how, headers] of tried) {
        assert.equal(await send(url, route, headers), 401, `${listener}: ${route.method} ${route.target} ${how}`)
      }
    }
    const open = (headers: Headers) => connectLink({ origin: url, prefix: '', headers, timeoutMs: 5_000 })
    const opening = { method: 'GET', target: '/link' }
    assert.equal(await open({}), 401)
    assert.equal(await open(sign(opening, stranger)), 401)
    const once = sign(opening)
    const link = await open(once)
    assert.ok(typeof link === 'object', `the link was refused with ${String(link)}`)
    link.close()
    assert.equal(await open(once), 401, 'the opening of a link is heard once')
  }
})

test('a signature is good for one request, as it was signed', async (t) => {
  const { cluster } = await closedCluster(t)
  const { runnerUrl, sidecarUrl } = cluster
  const list = { method: 'GET', target: '/runner/sessions', tenant: 'acme' }
  const once = sign(list)
  assert.equal(await send(runnerUrl, list, once), 200)
  assert.equal(await send(runnerUrl, list, once), 401, 'the same again')
  const cases: [string, Sent, Headers][] = [
    ['for another tenant', list, { ...sign(list), 'x-tenant-id': 'globex' }],
    ['for all tenants', { ...list, target: '/runner/worker/leases' }, withoutTenant(list, '/runner/worker/leases')],
    ['of another path', { ...list, target: '/runner/profiles' }, sign(list)],
    ['of another method', { ...list, method: 'DELETE', target: '/runner/sessions/x' }, sign(list)],
    ['with a query', { ...list, target: '/runner/sessions?x=1' }, sign(list)],
    ['with another nonce', list, { ...sign(list), 'x-agent-orc-nonce': randomBytes(16).toString('base64url') }],
    ['without its digest', list, without(sign(list), 'x-agent-orc-content-sha256')],
  ]
  const profile = { method: 'POST', target: '/runner/profiles', tenant: 'acme', body: JSON.stringify({ name: 'a' }) }
  cases.push(
    ['with another body', { ...profile, body: JSON.stringify({ name: 'b' }) }, sign(profile)],
    ['without its body', { ...profile, body: '' }, sign(profile)],
    ['with a body', profile, sign({ ...profile, body: '' })],
  )
  for (const [how, sent, headers] of cases) assert.equal(await send(runnerUrl, sent, headers), 401, how)
  // The body is read only now, and found to be no profile.
  assert.equal(await send(runnerUrl, profile, sign(profile)), 400)
  // A sidecar's port takes no request that a runner's port took, and nothing from before its time.
  const run = { method: 'POST', target: '/run', body: '{}' }
  assert.equal(await send(sidecarUrl, run, sign(run)), 400)
  const clock = (ms: number) =>
    createSigner({ family: 'runner', current: key, kv: undefined as never, onRefused() {}, now: () => Date.now() + ms })
  for (const ms of [-62_000, 62_000]) assert.equal(await send(sidecarUrl, run, sign(run, clock(ms))), 401)
})

const without = (headers: Headers, name: string): Headers =>
  Object.fromEntries(Object.entries(headers).filter(([one]) => one !== name))
const withoutTenant = (sent: Sent, target: string): Headers => without(sign({ ...sent, target }), 'x-tenant-id')

test('the tools of a session answer to the token of its run alone, and only while that is under way', async (t) => {
  const { cluster, agent } = await closedCluster(t)
  cluster.model.next({ hang: true })
  const answering = chat(agent, { message: 'wait' }).catch(() => undefined)
  await eventually('the run is under way', async () => cluster.model.requests.length > 0)
  const { body: sessions } = await cluster.api<{ id: string }[]>('GET', '/api/sessions')
  const target = `/runner/sessions/${sessions[0]!.id}/mcp`
  const call = { method: 'POST', target, body: '{"jsonrpc":"2.0","id":1,"method":"tools/list"}' }
  for (const headers of [{}, { authorization: `Bearer ${randomBytes(32).toString('base64url')}` }]) {
    for (const method of ['GET', 'DELETE'])
      assert.equal(await send(cluster.runnerUrl, { method, target }, headers), 401)
    assert.equal(await send(cluster.runnerUrl, call, headers), 401)
    assert.equal(await send(cluster.runnerUrl, { ...call, target: '/runner/sessions/sess-none/mcp' }, headers), 401)
  }
  await cluster.model.stop()
  await answering
})

const certificate = (name: string): string => fileURLToPath(new URL(`../certificates/${name}`, import.meta.url).href)
const pem = (name: string): Promise<string> => readFile(certificate(name), 'utf8')

test('with certificates instead of keys all hops are HTTPS, and nobody is answered without one that the authority signed', async (t) => {
  const ca = await pem('ca.pem')
  const cluster = await startCluster(t, 'four', {
    env: {
      AGENT_ORC_TLS_CERT: certificate('server.pem'),
      AGENT_ORC_TLS_KEY: certificate('server.key'),
      AGENT_ORC_TLS_CA: certificate('ca.pem'),
      AGENT_ORC_TLS_CLIENT_CERTS: 'true',
      // Tools of sessions are called by clients of vendors, which go by the authorities of their process.
      NODE_EXTRA_CA_CERTS: certificate('ca.pem'),
    },
    apart: ['sidecar'],
  })
  await chatWithTool(cluster, await cluster.agent('insider', { tools: ['calculate'] }))
  const own = { cert: await pem('client.pem'), key: await pem('client.key') }
  const stranger = { cert: await pem('stranger.pem'), key: await pem('stranger.key') }
  const targets = {
    [cluster.runnerUrl]: '/runner/info',
    [cluster.sidecarUrl]: '/health',
    [cluster.internalUrl]: '/readyz',
  }
  for (const [url, target] of Object.entries(targets)) {
    assert.match(url, /^https:/)
    const get = (path: string, tls: object): Promise<number> => statusOf(url + path, { ca, ...tls })
    assert.deepEqual(
      [await get(target, own), await get(target, {}), await get(target, stranger), await get('/healthz', {})],
      [200, 401, 401, 200],
      url,
    )
    await assert.rejects(statusOf(url + target, own), 'its certificate is of an authority that nobody knows')
    await assert.rejects(fetch(url.replace('https', 'http') + '/healthz'))
    const opened = await connectLink({
      origin: url,
      prefix: '',
      headers: {},
      timeoutMs: 5_000,
      tls: { ca, ...stranger },
    })
    assert.equal(opened, 401, 'a link')
  }
})

function statusOf(url: string, tls: object): Promise<number> {
  return new Promise((resolve, reject) => {
    const asking = request(url, { ...tls, agent: false }, (reply) => {
      reply.resume().once('end', () => resolve(reply.statusCode ?? 0))
    })
    asking.once('error', reject).end()
  })
}

test('processes whose keys differ say so to probes, which have a listener of their own', async (t) => {
  const { cluster } = await closedCluster(t)
  const other = { RUNNER_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64') }
  const checks = async (url: string | undefined): Promise<Record<string, string>> => {
    const reply = await fetch(`${url}/readyz`)
    return ((await reply.json()) as { checks: Record<string, string> }).checks
  }
  const differs = /RUNNER_SIGNING_KEY_CURRENT must be the same on both/
  const runner = await cluster.another('runner', { ...other, HEALTH_PORT: '0', SIDECAR_URL: cluster.sidecarUrl })
  assert.match((await checks(runner.urls['health']))['sidecar']!, differs)
  assert.equal((await fetch(`${runner.urls['operations']}/metrics`)).status, 200)
  assert.equal((await fetch(`${runner.urls['runner']}/readyz`)).status, 401)
  const conductor = await cluster.another('conductor', { ...other, RUNNER_URLS: cluster.runnerUrl })
  assert.match((await checks(conductor.urls['conductor']))['runners']!, differs)
  const unsigned = await cluster.another('conductor', {
    RUNNER_SIGNING_KEY_CURRENT: '',
    RUNNER_URLS: cluster.runnerUrl,
  })
  assert.match((await checks(unsigned.urls['conductor']))['runners']!, differs)
  const files = { AGENT_ORC_TLS_CERT: '/no/such.pem', AGENT_ORC_TLS_KEY: '/no/such.key' }
  await assert.rejects(cluster.another('sidecar', files), /tls\.cert: \/no\/such\.pem cannot be read \(ENOENT\)/)
})
