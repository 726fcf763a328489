import assert from 'node:assert/strict'
import { createHash, createHmac, randomBytes } from 'node:crypto'
import { test } from 'node:test'
import fc from 'fast-check'
import { definePlugin, type Entry, unavailable } from '#kernel'
import { Kv } from '#contracts/kv'
import { signedHeaders, type Signer, Signers } from '#contracts/signing'
import { fake, testKernel } from '#testing'
import signing from '../signing/index.ts'
import { createSigner, type SignerOptions } from '../signing/signer.ts'

const key = Buffer.from(Array.from({ length: 32 }, (_, i) => i))
const request = { method: 'POST', target: '/api/runs?x=1', body: Buffer.from('{"profile":"p","runId":"r1"}') }
const time = 1_760_000_000
const vector = {
  [signedHeaders.signature]: 'v1,M+9lfqYvpilGDkCgAVWt2YMugugRR+IokOjFDYsi0CE=',
  [signedHeaders.timestamp]: String(time),
  [signedHeaders.nonce]: 'A'.repeat(22),
  [signedHeaders.keyId]: 'CURRENT',
  [signedHeaders.tenant]: 'acme',
}
const denied = { code: 'unauthorized', status: 401 }

function memoryKv(): Kv {
  const claimed = new Set<string>()
  return {
    backend: 'memory',
    claim: async (name) => !claimed.has(name) && (claimed.add(name), true),
    hit: async () => ({ allowed: true, count: 1, retryAfterMs: 0 }),
    publish() {},
    subscribe: () => () => {},
  }
}

const signer = (more: Partial<SignerOptions> = {}): Signer =>
  createSigner({
    family: 'chat-gateway',
    current: key,
    kv: memoryKv(),
    onRefused() {},
    now: () => time * 1000,
    ...more,
  })

const signed = (by: Signer): Record<string, string> => by.sign({ ...request, tenant: 'acme' })

test('the test vector of the format verifies', async () => {
  assert.deepEqual(await signer().verify(vector, request), { tenant: 'acme' })
})

test('what is signed is nine lines: format, family, key id, timestamp, nonce, tenant, method, target, body hash', () => {
  const headers = signed(signer())
  const bodyHash = createHash('sha256').update(request.body).digest('hex')
  const nonce = headers[signedHeaders.nonce]
  const text = `AO-HMAC-SHA256-V1\nchat-gateway\nCURRENT\n${time}\n${nonce}\nacme\nPOST\n/api/runs?x=1\n${bodyHash}`
  assert.equal(headers[signedHeaders.signature], `v1,${createHmac('sha256', key).update(text).digest('base64')}`)
  assert.match(nonce!, /^[A-Za-z0-9_-]{22}$/)
})

test('a request that was signed verifies once: its nonce cannot be replayed', async () => {
  const one = signer()
  const headers = signed(one)
  await one.verify(headers, request)
  await assert.rejects(one.verify(headers, request), denied)
})

test('a nonce used at one conductor is refused by another that shares the store', async () => {
  const kv = memoryKv()
  const [a, b] = [signer({ kv }), signer({ kv })]
  const headers = signed(a)
  await a.verify(headers, request)
  await assert.rejects(b.verify(headers, request), denied)
})

test('a refused request does not use up its nonce', async () => {
  const one = signer()
  const headers = signed(one)
  await assert.rejects(one.verify(headers, { ...request, target: '/api/runs?x=2' }), denied)
  await one.verify(headers, request)
})

test('changing any one character of any signed header is refused', async () => {
  const one = signer()
  const headers = signed(one)
  for (const [name, value] of Object.entries(headers)) {
    for (let i = 0; i < value.length; i++) {
      for (const c of ['0', '1', 'B', 'z', ' ', '\n', '']) {
        if (value[i] === c) continue
        const mutated = { ...headers, [name]: value.slice(0, i) + c + value.slice(i + 1) }
        await assert.rejects(one.verify(mutated, request), denied, `${name} at ${i}`)
      }
    }
  }
  await one.verify(headers, request)
})

test('the bits that base64 does not use are part of the signature', async () => {
  // `0CE=`, `0CF=`, `0CG=` and `0CH=` decode to the same bytes.
  for (const last of ['F', 'G', 'H']) {
    const other = {
      ...vector,
      [signedHeaders.signature]: vector[signedHeaders.signature]!.replace('0CE=', `0C${last}=`),
    }
    await assert.rejects(signer().verify(other, request), denied)
  }
})

test('changing method, target or body is refused', async () => {
  for (const change of [
    { method: 'DELETE' },
    { target: '/api/runs?x=1&' },
    { target: '/api/%72uns?x=1' },
    { target: '/api/runs' },
    { body: Buffer.from('{"profile":"p","runId":"r1"} ') },
    { body: Buffer.alloc(0) },
  ]) {
    await assert.rejects(signer().verify(vector, { ...request, ...change }), denied)
  }
})

test('a missing, repeated or malformed header is refused', async () => {
  for (const name of Object.values(signedHeaders)) {
    const value = vector[name]!
    for (const bad of [
      undefined,
      '',
      [value],
      [value, value],
      `${value}, ${value}`,
      `${value} `,
      ` ${value}`,
      `${value}\0`,
    ]) {
      await assert.rejects(signer().verify({ ...vector, [name]: bad }, request), denied, `${name}: ${String(bad)}`)
    }
  }
})

test('a clock may be 60 s off either way, and not 61', async () => {
  for (const [off, passes] of [
    [60, true],
    [-60, true],
    [61, false],
    [-61, false],
  ] as const) {
    const headers = signed(signer({ now: () => (time + off) * 1000 }))
    const verified = signer().verify(headers, request)
    if (passes) await verified
    else await assert.rejects(verified, denied, `${off} s`)
  }
})

test('a body over 1 MiB is refused', async () => {
  const big = { ...request, body: Buffer.alloc(1024 * 1024 + 1) }
  const one = signer()
  await assert.rejects(one.verify(one.sign({ ...big, tenant: 'acme' }), big), denied)
})

test('a signature of the other key family is refused', async () => {
  const vfs = signer({ family: 'vfs' })
  await assert.rejects(signer().verify(signed(vfs), request), denied)
  await assert.rejects(vfs.verify(signed(signer()), request), denied)
})

test('every order of restarts that the rotation runbook allows verifies', async () => {
  const [old, fresh] = [randomBytes(32), randomBytes(32)]
  const steps = {
    before: { current: old },
    during: { current: fresh, previous: old },
    after: { current: fresh },
  }
  const orders = [
    ['before', 'before'],
    ['before', 'during'],
    ['during', 'during'],
    ['during', 'after'],
    ['after', 'during'],
    ['after', 'after'],
  ] as const
  for (const [gateway, conductor] of orders) {
    const headers = signed(signer(steps[gateway]))
    await signer(steps[conductor]).verify(headers, request)
  }
  await assert.rejects(signer(steps.after).verify(signed(signer(steps.before)), request), denied)
})

test('a key id is a hint: any well-formed one that was signed verifies', async () => {
  const text = [
    'AO-HMAC-SHA256-V1',
    'chat-gateway',
    'PREVIOUS',
    time,
    'A'.repeat(22),
    'acme',
    'GET',
    '/',
    createHash('sha256').digest('hex'),
  ]
  const signature = `v1,${createHmac('sha256', key).update(text.join('\n')).digest('base64')}`
  const headers = { ...vector, [signedHeaders.keyId]: 'PREVIOUS', [signedHeaders.signature]: signature }
  await signer().verify(headers, { method: 'GET', target: '/', body: Buffer.alloc(0) })
})

test('when the nonce store is away the answer is 503, never a pass', async () => {
  for (const error of [unavailable(), new Error('ECONNREFUSED')]) {
    const kv: Kv = { ...memoryKv(), claim: () => Promise.reject(error) }
    await assert.rejects(signer({ kv }).verify(vector, request), { code: 'unavailable', status: 503 })
  }
})

test('a nonce is remembered for as long as its request is valid, and claimed with the time of its signature', async () => {
  const key = `ao:nonce:chat-gateway:${'A'.repeat(22)}`
  for (const [backend, offMs, ttlMs] of [
    ['memory', 0, 65_000],
    ['memory', -60_000, 125_000],
    ['memory', 60_999, 4_001],
    ['postgres', 0, 125_000],
    ['postgres', 60_999, 125_000],
  ] as const) {
    const claims: unknown[] = []
    const kv: Kv = { ...memoryKv(), backend, claim: async (...claim) => claims.push(claim) > 0 }
    await signer({ kv, now: () => time * 1_000 + offMs }).verify(vector, request)
    assert.deepEqual(claims, [[key, ttlMs, time * 1_000]], `${backend}, ${offMs} ms after it`)
  }
})

test('a key of less than 32 bytes is refused', () => {
  assert.throws(() => signer({ current: Buffer.alloc(31) }), /at least 32 bytes/)
  assert.throws(() => signer({ previous: Buffer.alloc(31) }), /at least 32 bytes/)
})

test('A5: of any request with any one part changed none verifies', async () => {
  const text = fc.string({ minLength: 1, maxLength: 20, unit: 'grapheme-ascii' })
  const part = fc.record({
    tenant: fc.stringMatching(/^[A-Za-z0-9_.-]{1,30}$/),
    method: fc.constantFrom('GET', 'POST', 'DELETE'),
    target: text.map((t) => `/${t}`),
    body: fc.uint8Array({ maxLength: 40 }),
  })
  const names = ['timestamp', 'nonce', 'keyId', 'tenant', 'signature'] as const
  const header = (name: (typeof names)[number]): fc.Arbitrary<string> =>
    ({
      timestamp: fc.integer({ min: -60, max: 60 }).map((off) => String(time + off)),
      nonce: fc.stringMatching(/^[A-Za-z0-9_-]{22}$/),
      keyId: fc.stringMatching(/^[A-Za-z0-9_-]{1,64}$/),
      tenant: fc.stringMatching(/^[A-Za-z0-9_.-]{1,128}$/),
      signature: fc.stringMatching(/^v1,[A-Za-z0-9+/]{43}=$/),
    })[name]
  const change = fc.oneof(
    ...names.map((name) => header(name).map((value) => ({ kind: 'header' as const, name, value }))),
    fc.constantFrom('GET', 'POST', 'DELETE').map((value) => ({ kind: 'method' as const, value })),
    text.map((value) => ({ kind: 'target' as const, value: `/${value}` })),
    fc.uint8Array({ maxLength: 40 }).map((value) => ({ kind: 'body' as const, value })),
  )
  await fc.assert(
    fc.asyncProperty(part, change, async (parts, changed) => {
      const verifier = signer()
      const headers = verifier.sign(parts)
      const sent = { method: parts.method, target: parts.target, body: Buffer.from(parts.body) }
      if (changed.kind === 'header') {
        const name = signedHeaders[changed.name]
        fc.pre(headers[name] !== changed.value)
        await assert.rejects(verifier.verify({ ...headers, [name]: changed.value }, sent), denied)
      } else {
        const before = sent[changed.kind]
        const same = typeof before === 'string' ? before === changed.value : before.equals(changed.value as Uint8Array)
        fc.pre(!same)
        await assert.rejects(verifier.verify(headers, { ...sent, [changed.kind]: changed.value }), denied)
      }
      assert.deepEqual(await verifier.verify(headers, sent), { tenant: parts.tenant }, 'the nonce was not used up')
    }),
    { numRuns: 2_000 },
  )
})

test('with a previous key either key signs; without one only the current one can', async () => {
  const previous = randomBytes(32)
  const both = signer({ previous })
  const parts = { ...request, tenant: 'acme' }
  assert.equal(both.sign(parts, 'PREVIOUS')[signedHeaders.keyId], 'PREVIOUS')
  assert.throws(() => signer().sign(parts, 'PREVIOUS'), /no previous key/)
  await signer({ current: previous }).verify(both.sign(parts, 'PREVIOUS'), request)
})

const kvPlugin = fake(Kv, memoryKv())

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
    kvPlugin,
    plugin,
    entry('signing-chat', { family: 'chat-gateway', current: secret() }),
    entry('signing-vfs', { family: 'vfs', current: secret() }),
  ])
  assert.deepEqual([...found.keys()].toSorted(), ['chat-gateway', 'vfs'])
})

test('without a current key the family is absent', async (t) => {
  const { found, plugin } = probe()
  await testKernel(t, [kvPlugin, plugin, entry('signing', { family: 'chat-gateway' })])
  assert.equal(found.size, 0)
})

test('a short key, or a previous key alone, refuses the boot', async (t) => {
  const short = entry('signing', { family: 'vfs', current: randomBytes(31).toString('base64') })
  await assert.rejects(testKernel(t, [kvPlugin, short]), /signing: config\.current/)
  const alone = entry('signing', { family: 'vfs', previous: secret() })
  await assert.rejects(testKernel(t, [kvPlugin, alone]), /previous signing key but no current one/)
})

test('a refused signature is logged as signature_invalid, without the caller learning why', async (t) => {
  const { found, plugin } = probe()
  const kernel = await testKernel(t, [
    kvPlugin,
    plugin,
    entry('signing', { family: 'chat-gateway', current: secret() }),
  ])
  const parts = { method: 'GET', target: '/', body: Buffer.alloc(0) }
  const headers = found.get('chat-gateway')!.sign({ ...parts, tenant: 'acme' })
  const error = await found
    .get('chat-gateway')!
    .verify(headers, { ...parts, target: '/x' })
    .then(
      () => undefined,
      (e: Error) => e,
    )
  assert.equal(error?.message, 'The request has no valid credentials.')
  const [line] = kernel.logs.filter((l) => l['msg'] === 'signature_invalid')
  assert.equal(line?.['reason'], 'the signature matches no key of this family')
  assert.equal(line?.['keyId'], 'CURRENT')
})
