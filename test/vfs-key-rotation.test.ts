import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import type { Plugin } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { type Signer, Signers } from '#contracts/signing'
import { fake, testKernel, testVfs } from '#testing'
import { createSigner } from '../plugins/auth/signing/signer.ts'
import { createVfsClient } from '../plugins/vfs/client.ts'
import proxy from '../plugins/vfs/proxy/index.ts'
import { frontDoor } from './front-door.ts'

// What is streamed cannot be sent a second time with another key.

interface Keys {
  readonly current: string
  readonly previous?: string
}
const [old, fresh] = [randomBytes(32).toString('base64'), randomBytes(32).toString('base64')]
const before: Keys = { current: old }
const both: Keys = { current: fresh, previous: old }
const after: Keys = { current: fresh }

const signerOf = (family: 'runner' | 'vfs', { current, previous }: Keys): Signer =>
  createSigner({
    family,
    current: Buffer.from(current, 'base64'),
    ...(previous === undefined ? {} : { previous: Buffer.from(previous, 'base64') }),
    kv: undefined as never,
    onRefused() {},
  })

async function* content(): AsyncGenerator<Uint8Array> {
  yield Buffer.from('one ')
  yield Buffer.from('two')
}

/** A conductor that passes requests on to a server. */
async function conductor(t: TestContext, baseUrl: string, keys: Keys): Promise<string> {
  const guard = {
    protect() {},
    callerOf: () => ({ tenantId: 'acme', role: 'owner', keyId: 'tak_test' }),
  } as never
  const plugins = [
    fake(ApiGuard, guard),
    fake(Signers, { vfs: signerOf('vfs', keys) }) as Plugin,
    { name: 'vfs-proxy', plugin: proxy, config: { baseUrl } },
  ]
  const kernel = await testKernel(t, plugins, { listeners: ['conductor'], listen: true })
  return kernel.urls['conductor']!
}

test('the keys of a VirtualFS server rotate without one failed stream, in whatever order it and its callers are restarted', async (t) => {
  const door = await frontDoor(t)
  const start = async (keys: Keys) => {
    const server = await testVfs(t, { keys, settings: { mounts: { files: { kind: 'objects', tenants: ['*'] } } } })
    door.target = server.url
    return server
  }
  const runner = (keys: Keys) => {
    const client = createVfsClient({ baseUrl: door.url, signer: signerOf('runner', keys) })
    t.after(() => client.dispose())
    return client
  }
  const runners = { before: runner(before), both: runner(both), after: runner(after) }
  const conductors = {
    before: await conductor(t, door.url, before),
    both: await conductor(t, door.url, both),
    after: await conductor(t, door.url, after),
  }
  for (const [keys, callers] of [
    [before, ['before', 'both']],
    [both, ['before', 'both', 'after']],
    [after, ['both', 'after']],
    // A rotation that is taken back.
    [both, ['both', 'after', 'before']],
    [before, ['both', 'before']],
  ] as const) {
    const server = await start(keys)
    for (const name of callers) {
      const about = `${name}, at a server with ${JSON.stringify(Object.keys(keys))}`
      const written = await runners[name].write({ tenantId: 'acme' }, 'files', 'streamed', { body: content() })
      assert.equal(written.bytes, 7, about)
      const url = `${conductors[name]}/api/vfs/files/files/passed-on`
      const passedOn = await fetch(url, { method: 'PUT', body: 'one two' })
      assert.ok(passedOn.ok, `${about}: ${await passedOn.text()}`)
      assert.equal(await (await fetch(url)).text(), 'one two', about)
    }
    await server.kernel.stop()
  }
  // Whoever has none of its keys is refused, so all of the above was verified.
  await start(after)
  const refused = runners.before.write({ tenantId: 'acme' }, 'files', 'streamed', { body: content() })
  await assert.rejects(refused, { code: 'vfs upstream unavailable' })
  assert.equal((await fetch(`${conductors.before}/api/vfs/mounts`)).status, 401)
})

test('during a rotation what a tenant sends at once asks once which key the server has', async (t) => {
  let requests = 0
  const server = createServer((_, response) => {
    requests++
    response.setHeader('content-type', 'application/json').end('{"bytes":0,"entries":0,"sessions":0}')
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  const baseUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const client = createVfsClient({ baseUrl, signer: signerOf('vfs', both) })
  t.after(() => client.dispose())
  await Promise.all(['acme', 'acme', 'acme', 'globex'].map((tenantId) => client.knownKey(tenantId)))
  assert.equal(requests, 2, 'one for each tenant')
  assert.equal(await client.knownKey('acme'), 'CURRENT')
  assert.equal(requests, 3, 'an answer of before is not used again')
})
