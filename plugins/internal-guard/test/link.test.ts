import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type IncomingMessage, request } from 'node:http'
import { test, type TestContext } from 'node:test'
import { Type } from '@sinclair/typebox'
import { AppError, definePlugin, unauthorized } from '#kernel'
import { type Caller, InternalGuard } from '#contracts/auth'
import { type SignedParts, signedHeaders, type Signer, Signers } from '#contracts/signing'
import { createPeers, serve } from '#kit'
import { fake, testKernel } from '#testing'
import internalGuard from '../index.ts'

const who = {
  method: 'GET',
  path: '/who',
  access: 'service',
  tags: ['test'],
  summary: 'Who calls.',
  reply: { status: 200, json: Type.Object({ tenantId: Type.String(), role: Type.String(), keyId: Type.String() }) },
} as const
const owner = { ...who, path: '/owner', access: 'owner' } as const

/** Signs what it is given with a nonce of its own, and takes each only once. */
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
  const plugins = [internalGuard, routes, fake(Signers, { 'chat-gateway': signer })]
  return testKernel(t, plugins, { listeners: ['internal'], listen: true })
}

/** What an upgrade with these headers is answered with. */
async function upgrade(url: string, headers: Record<string, string>): Promise<number> {
  const link = { connection: 'Upgrade', upgrade: 'agent-orc-link', 'x-agent-orc-link': '1' }
  const asking = request(`${url}/link`, { headers: { ...link, ...headers }, agent: false })
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
      signatures: () => [{ sign: (parts) => signer.sign(parts), taken() {} }],
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
