import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type IncomingMessage, request as httpRequest } from 'node:http'
import { test, type TestContext } from 'node:test'
import { Type } from '@sinclair/typebox'
import { access, AppError, definePlugin, unauthorized, unavailable } from '#kernel'
import { type Caller, InternalGuard, Tokens } from '#contracts/auth'
import { signedHeaders, type SignedParts, type Signer, Signers } from '#contracts/signing'
import { createPeers, serve } from '#kit'
import { fake, testKernel } from '#testing'
import auth from '../index.ts'

const tokens = fake(Tokens, {} as Tokens)

/** Accepts a request if the header `signed` repeats the received bytes, so that a test sees which bytes the guard verifies. */
const echoSigner: Signer = {
  sign: ({ tenant, method, target, body }) => ({
    tenant,
    signed: `${method} ${target} ${Buffer.from(body).toString('hex')}`,
  }),
  async verify(headers, parts) {
    const tenant = String(headers['tenant'])
    if (headers['signed'] !== echoSigner.sign({ tenant, ...parts })['signed']) throw unauthorized()
    return { tenant }
  },
}

const routes = (levels: readonly string[] = ['service', 'member', 'admin', 'owner']) =>
  definePlugin({
    name: 'routes',
    requires: { guard: InternalGuard },
    async setup({ deps, routes }) {
      routes('internal', async (app) => {
        deps.guard.protect(app)
        for (const level of levels) app.get(`/${level}`, access(level), async (request) => deps.guard.callerOf(request))
        app.post(
          '/echo',
          { ...access('service'), schema: { body: Type.Object({ a: Type.Number() }) } },
          async (request) => request.body,
        )
        app.delete('/gone', access('service'), async (_request, reply) => reply.code(204).send())
      })
      routes('internal', async (app) => {
        app.get('/open', access('public'), async () => 'open')
        app.get('/forgotten', access('public'), async (request) => deps.guard.callerOf(request))
      })
      return {}
    },
  })

async function signedKernel(t: TestContext, signer: Signer = echoSigner, listen = false) {
  const kernel = await testKernel(t, [auth, tokens, routes(), fake(Signers, { 'chat-gateway': signer })], { listen })
  const call = (method: 'GET' | 'POST' | 'DELETE', url: string, body = '', change: Partial<SignedParts> = {}) =>
    kernel.listeners['internal']!.inject({
      method,
      url,
      headers: {
        ...echoSigner.sign({ tenant: 'acme', method, target: url, body: Buffer.from(body), ...change }),
        ...(body === '' ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === '' ? {} : { body }),
    })
  return { kernel, call }
}

test('a signed request acts as admin of the signed tenant', async (t) => {
  const { call } = await signedKernel(t)
  for (const level of ['service', 'member', 'admin']) {
    const reply = await call('GET', `/${level}`)
    assert.deepEqual(reply.json(), { tenantId: 'acme', role: 'admin', keyId: 'service:chat-gateway' })
  }
  assert.equal((await call('GET', '/owner')).statusCode, 403)
})

test('the signature covers the body as sent, not as parsed', async (t) => {
  const { call } = await signedKernel(t)
  const body = '{ "a":\n1 }'
  assert.deepEqual((await call('POST', '/echo', body)).json(), { a: 1 })
  assert.equal((await call('POST', '/echo', body, { body: Buffer.from('{"a":1}') })).statusCode, 401)
  assert.equal((await call('POST', '/echo', '{"a":"1"}')).statusCode, 400)
})

test('the signature covers the request-target as received, query and escapes included', async (t) => {
  const { call } = await signedKernel(t)
  assert.equal((await call('GET', '/member?x=1&y')).statusCode, 200)
  assert.equal((await call('GET', '/%6dember')).statusCode, 200)
  assert.equal((await call('GET', '/%6dember', '', { target: '/member' })).statusCode, 401)
  assert.equal((await call('GET', '/member?x=1', '', { target: '/member' })).statusCode, 401)
})

test('a request without a body verifies over an empty one, and a body on DELETE is covered', async (t) => {
  const { call } = await signedKernel(t)
  assert.equal((await call('DELETE', '/gone')).statusCode, 204)
  assert.equal((await call('DELETE', '/gone', '{"a":1}')).statusCode, 204)
  assert.equal((await call('DELETE', '/gone', '{"a":1}', { body: Buffer.alloc(0) })).statusCode, 401)
})

test('an unsigned request is 401, however its path is written', async (t) => {
  const { kernel } = await signedKernel(t)
  for (const url of ['/service', '/%73ervice', '/service?x', '/echo']) {
    const reply = await kernel.listeners['internal']!.inject({ method: url === '/echo' ? 'POST' : 'GET', url })
    assert.equal(reply.statusCode, 401, url)
    assert.equal(reply.json().error, 'unauthorized')
  }
  assert.equal((await kernel.listeners['internal']!.inject({ method: 'HEAD', url: '/service' })).statusCode, 401)
})

test('when the nonce store is away the answer is 503', async (t) => {
  const { call } = await signedKernel(t, { ...echoSigner, verify: () => Promise.reject(unavailable()) })
  assert.equal((await call('GET', '/service')).statusCode, 503)
})

test('X-Tenant-ID is ignored: the signed tenant is the tenant', async (t) => {
  const { kernel } = await signedKernel(t)
  const headers = {
    ...echoSigner.sign({ tenant: 'acme', method: 'GET', target: '/service', body: Buffer.alloc(0) }),
    'X-Tenant-ID': 'globex',
  }
  const reply = await kernel.listeners['internal']!.inject({ url: '/service', headers })
  assert.equal(reply.json().tenantId, 'acme')
})

test('a body over 1 MiB is 413 before anything is verified, also over a socket', async (t) => {
  const { kernel } = await signedKernel(t, echoSigner, true)
  const status = await new Promise<number | undefined>((resolve, reject) => {
    const sending = httpRequest(`${kernel.urls['internal']}/echo`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
    })
    sending.on('error', reject)
    sending.on('response', (reply) => {
      resolve(reply.statusCode)
      sending.destroy()
    })
    sending.write(Buffer.alloc(1024 * 1024 + 1, ' '))
  })
  assert.equal(status, 413)
})

test('other scopes of the listener are not touched, and a route that was never protected fails loudly', async (t) => {
  const { kernel } = await signedKernel(t)
  assert.equal((await kernel.listeners['internal']!.inject('/open')).body, 'open')
  assert.equal((await kernel.listeners['internal']!.inject('/forgotten')).statusCode, 500)
})

test('a public route inside the protected scope refuses the boot', async (t) => {
  const signers = fake(Signers, { 'chat-gateway': echoSigner })
  await assert.rejects(
    testKernel(t, [auth, tokens, routes(['public']), signers]),
    /GET \/public is on the signed plane/,
  )
})

test('with the internal listener on and no signing key, boot is refused with the variable to set', async (t) => {
  await assert.rejects(testKernel(t, [auth, tokens]), /CHAT_GATEWAY_SIGNING_KEY_CURRENT/)
  const other = fake(Signers, { vfs: echoSigner })
  await assert.rejects(testKernel(t, [auth, tokens, other]), /CHAT_GATEWAY_SIGNING_KEY_CURRENT/)
})

test('with the internal listener off it boots without a key', async (t) => {
  await testKernel(t, [auth, tokens], { listeners: ['conductor'] })
})

const who = {
  method: 'GET',
  path: '/who',
  access: 'service',
  tags: ['test'],
  summary: 'Who calls.',
  reply: { status: 200, json: Type.Object({ tenantId: Type.String(), role: Type.String(), keyId: Type.String() }) },
} as const
const owner = { ...who, path: '/owner', access: 'owner' } as const

/** Signs with a new nonce each time, and accepts each nonce only once. */
function nonceSigner(): Signer {
  const used = new Set<string>()
  let last = 0
  const signature = ({ tenant, method, target }: SignedParts, nonce: string): string =>
    `${tenant} ${method} ${target} ${nonce}`
  return {
    sign(parts) {
      const nonce = String(++last)
      const { tenant } = parts
      return {
        [signedHeaders.tenant]: tenant,
        [signedHeaders.nonce]: nonce,
        [signedHeaders.signature]: signature(parts, nonce),
      }
    },
    async verify(headers, parts) {
      const tenant = String(headers[signedHeaders.tenant])
      const nonce = String(headers[signedHeaders.nonce])
      if (headers[signedHeaders.signature] !== signature({ ...parts, tenant }, nonce) || used.has(nonce))
        throw unauthorized()
      used.add(nonce)
      return { tenant }
    },
  }
}

async function listening(t: TestContext, signer: Signer) {
  const routes = definePlugin({
    name: 'routes',
    requires: { guard: InternalGuard },
    async setup({ deps: { guard }, routes }) {
      routes('internal', async (app) => {
        guard.protect(app)
        const answer = ({ caller }: { readonly caller: Caller }) => ({ json: { ...caller } })
        serve(app, who, answer, guard)
        serve(app, owner, answer, guard)
      })
      return {}
    },
  })
  const plugins = [auth, tokens, routes, fake(Signers, { 'chat-gateway': signer })]
  return testKernel(t, plugins, { listeners: ['internal'], listen: true })
}

/** The status with which an upgrade with these headers is answered. */
async function upgrade(url: string, headers: Record<string, string>): Promise<number> {
  const link = { connection: 'Upgrade', upgrade: 'agent-orc-link', 'x-agent-orc-link': '1' }
  const asking = httpRequest(`${url}/link`, { headers: { ...link, ...headers }, agent: false })
  asking.end()
  const [answer] = (await Promise.race([once(asking, 'response'), once(asking, 'upgrade')])) as [IncomingMessage]
  answer.socket.destroy()
  return answer.statusCode!
}

test('a link needs a signature of its own, and takes each nonce once', async (t) => {
  const signer = nonceSigner()
  const url = (await listening(t, signer)).urls['internal']!
  const nothing = new Uint8Array()
  const headers = signer.sign({ tenant: 'default', method: 'GET', target: '/link', body: nothing })
  assert.equal(await upgrade(url, {}), 401)
  assert.equal(await upgrade(url, { ...headers, [signedHeaders.signature]: 'x' }), 401)
  const other = signer.sign({ tenant: 'default', method: 'GET', target: '/who', body: nothing })
  assert.equal(await upgrade(url, other), 401)
  assert.equal(await upgrade(url, headers), 101)
  assert.equal(await upgrade(url, headers), 401)
  assert.equal(await upgrade(url, { ...headers, 'x-agent-orc-link': '2' }), 404, 'another version is no link')
})

test('on a link each exchange names its tenant, and may do what a signature may', async (t) => {
  const signer = nonceSigner()
  const url = (await listening(t, signer)).urls['internal']!
  const peers = createPeers({
    connectMs: 2_000,
    timeoutMs: 5_000,
    identity: {
      tenantHeader: signedHeaders.tenant,
      signatures: () => [{ sign: (parts) => signer.sign({ ...parts, tenant: parts.tenant || 'default' }), taken() {} }],
    },
    faults: { lost: ({ cause }) => new AppError('lost', 502, { cause }), failed: () => new AppError('failed', 502) },
  })
  t.after(() => peers.close())
  const peer = peers.at(url)
  while (!peer.linked) await peer.ask(who, { tenant: 'acme' })
  for (const tenant of ['acme', 'globex']) {
    assert.deepEqual(await peer.ask(who, { tenant }), {
      tenantId: tenant,
      role: 'admin',
      keyId: 'service:chat-gateway',
    })
  }
  await assert.rejects(peer.ask(owner, { tenant: 'acme' }), { code: 'forbidden', status: 403 })
  await assert.rejects(peer.ask(who, {}), { code: 'unauthorized', status: 401 })
  await assert.rejects(peer.ask(who, { tenant: 'a b' }), { code: 'unauthorized', status: 401 })
  assert.equal(peer.linked, true)
})
