import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { createKeyring, createSealer, type Owner, type Sealed } from '../envelope.ts'

const owner: Owner = { tenantId: 'acme', name: 'github', version: 1 }
const value = Buffer.from('swordfish')
const unreadable = { code: 'secret_unreadable', status: 503 }

test('K1: a value opens for its own row alone, and no changed byte goes unseen', () => {
  const ring = createKeyring(randomBytes(32))
  const sealed = ring.seal(owner, value)
  assert.deepEqual(ring.open(owner, sealed), value)
  for (const moved of [{ tenantId: 'globex' }, { name: 'gitlab' }, { version: 2 }]) {
    assert.throws(() => ring.open({ ...owner, ...moved }, sealed), unreadable)
    assert.throws(() => ring.rewrap({ ...owner, ...moved }, sealed), unreadable)
  }
  const flipped = (bytes: Buffer, at: number): Buffer => {
    const copy = Buffer.from(bytes)
    copy[at]! ^= 1
    return copy
  }
  for (const field of ['wrappedKey', 'ciphertext'] as const) {
    for (let at = 0; at < sealed[field].length; at++) {
      assert.throws(() => ring.open(owner, { ...sealed, [field]: flipped(sealed[field], at) }), unreadable)
    }
    for (const length of [0, 5, 12, 27, sealed[field].length - 1]) {
      assert.throws(() => ring.open(owner, { ...sealed, [field]: sealed[field].subarray(0, length) }), unreadable)
    }
  }
  // The data key of another value of the same row does not fit either.
  const other = ring.seal(owner, value)
  assert.throws(() => ring.open(owner, { ...sealed, wrappedKey: other.wrappedKey }), unreadable)
})

test('the same value is never the same bytes, and is nowhere in them', () => {
  const ring = createKeyring(randomBytes(32))
  const [a, b] = [ring.seal(owner, value), ring.seal(owner, value)]
  const bytes = ({ wrappedKey, ciphertext }: Sealed): string =>
    Buffer.concat([wrappedKey, ciphertext]).toString('latin1')
  assert.notEqual(bytes(a), bytes(b))
  assert.ok(!bytes(a).includes('swordfish'))
})

test('K3: both master keys open while they are changed; wrapped anew, a value needs the new one alone', () => {
  const [old, fresh] = [randomBytes(32), randomBytes(32)]
  const before = createKeyring(old)
  const both = createKeyring(fresh, old)
  const sealed = before.seal(owner, value)
  assert.deepEqual(both.open(owner, sealed), value)
  assert.throws(() => createKeyring(fresh).open(owner, sealed), {
    ...unreadable,
    message: `Version 1 of the secret 'github' is encrypted with the master key ${before.current}, and this server has ${both.current}.`,
  })
  const anew = { ...sealed, ...both.rewrap(owner, sealed) }
  assert.deepEqual(createKeyring(fresh).open(owner, anew), value)
  assert.throws(() => before.open(owner, anew), unreadable)
  // During a rollout, an old process can read values under the new key if it was given the new key as its other one.
  assert.deepEqual(createKeyring(old, fresh).open(owner, both.seal(owner, value)), value)
  assert.deepEqual([createKeyring(old, old).previous, both.previous], [undefined, before.current])
})

test('what another plugin keeps opens for its tenant and name alone, and is none where the master key is another one', () => {
  const [first, second] = [randomBytes(32), randomBytes(32)]
  const sealer = createSealer(createKeyring(first))
  const sealed = sealer.seal('acme', 'mcp-tokens/github', 'swordfish')
  assert.doesNotMatch(sealed, /swordfish/)
  assert.equal(sealer.open('acme', 'mcp-tokens/github', sealed), 'swordfish')
  assert.equal(createSealer(createKeyring(second, first)).open('acme', 'mcp-tokens/github', sealed), 'swordfish')
  for (const [tenant, name, text] of [
    ['globex', 'mcp-tokens/github', sealed],
    ['acme', 'mcp-tokens/other', sealed],
    ['acme', 'mcp-tokens/github', sealed.slice(0, -3)],
    ['acme', 'mcp-tokens/github', ''],
  ] as const) {
    assert.equal(sealer.open(tenant, name, text), undefined)
  }
  assert.equal(createSealer(createKeyring(second)).open('acme', 'mcp-tokens/github', sealed), undefined)
})
