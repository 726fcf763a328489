import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { definePlugin, type Entry } from '#kernel'
import { Kv } from '#contracts/kv'
import { type Signer, Signers } from '#contracts/signing'
import { fake, testKernel } from '#testing'
import signing from '../index.ts'

const kv = fake(Kv, {
  backend: 'redis',
  claim: async () => true,
  hit: async () => ({ allowed: true, count: 1, retryAfterMs: 0 }),
  publish() {},
  subscribe: () => () => {},
})

function probe() {
  const found = new Map<string, Signer>()
  const plugin = definePlugin({
    name: 'probe',
    requires: { signers: Signers },
    setup: async ({ deps }) => (deps.signers.forEach((s, name) => found.set(name, s)), {}),
  })
  return { found, plugin }
}

const entry = (name: string, config: Record<string, unknown>): Entry => ({ name, plugin: signing, config })
const secret = (): string => randomBytes(32).toString('base64')

test('one role may hold both key families, each under its own name', async (t) => {
  const { found, plugin } = probe()
  await testKernel(t, [
    kv,
    plugin,
    entry('signing-chat', { family: 'chat-gateway', current: secret() }),
    entry('signing-vfs', { family: 'vfs', current: secret() }),
  ])
  assert.deepEqual([...found.keys()].toSorted(), ['chat-gateway', 'vfs'])
})

test('without a current key the family is absent', async (t) => {
  const { found, plugin } = probe()
  await testKernel(t, [kv, plugin, entry('signing', { family: 'chat-gateway' })])
  assert.equal(found.size, 0)
})

test('a short key, or a previous key alone, refuses the boot', async (t) => {
  const short = entry('signing', { family: 'vfs', current: randomBytes(31).toString('base64') })
  await assert.rejects(testKernel(t, [kv, short]), /signing: config\.current/)
  const alone = entry('signing', { family: 'vfs', previous: secret() })
  await assert.rejects(testKernel(t, [kv, alone]), /previous signing key but no current one/)
})

test('a refused signature is logged as signature_invalid, without the caller learning why', async (t) => {
  const { found, plugin } = probe()
  const kernel = await testKernel(t, [kv, plugin, entry('signing', { family: 'chat-gateway', current: secret() })])
  const parts = { method: 'GET', target: '/', body: Buffer.alloc(0) }
  const headers = found.get('chat-gateway')!.sign({ ...parts, tenant: 'acme' })
  const error = await found
    .get('chat-gateway')!
    .verify(headers, { ...parts, target: '/x' })
    .then(
      () => undefined,
      (e: Error) => e,
    )
  assert.equal(error?.message, 'The request carries no valid credentials.')
  const [line] = kernel.logs.filter((l) => l['msg'] === 'signature_invalid')
  assert.equal(line?.['reason'], 'the signature matches no key of this family')
  assert.equal(line?.['keyId'], 'CURRENT')
})
