import assert from 'node:assert/strict'
import { createHmac, randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { definePlugin } from '#kernel'
import { Tokens } from '#contracts/auth'
import { testKernel } from '#testing'
import tokens from '../tokens/index.ts'
import { createTokens } from '../tokens/index.ts'

const pepper = Buffer.alloc(32, 7)

test('a token is ao_<env>_, 43 random base62 characters and 6 of checksum', () => {
  const made = createTokens('staging', pepper)
  const token = made.mint()
  assert.match(token, /^ao_staging_[0-9A-Za-z]{49}$/)
  assert.ok(made.wellFormed(token))
  assert.notEqual(made.mint(), token)
})

test('the checksum is the CRC-32 of what stands before it, so tokens in use stay valid', () => {
  const { wellFormed } = createTokens('prod', pepper)
  const body = `ao_dev_${'0'.repeat(43)}`
  assert.ok(wellFormed(`${body}460jpd`))
  assert.equal(wellFormed(`${body}460jpe`), false)
})

test('changing any one character makes a token ill-formed', () => {
  const { mint, wellFormed } = createTokens('dev', pepper)
  const token = mint()
  for (let i = 'ao_dev_'.length; i < token.length; i++) {
    const other = token[i] === 'x' ? 'y' : 'x'
    assert.equal(wellFormed(token.slice(0, i) + other + token.slice(i + 1)), false, `character ${i}`)
  }
  for (const bad of [
    '',
    'ao_dev_',
    token.slice(1),
    `${token}a`,
    ` ${token}`,
    `${token}\n`,
    token.replace('ao_', 'AO_'),
  ]) {
    assert.equal(wellFormed(bad), false)
  }
})

test('every base62 character is equally likely in a token', () => {
  const { mint } = createTokens('dev', pepper)
  const counts = new Map<string, number>()
  for (let i = 0; i < 4_000; i++) {
    for (const c of mint().slice('ao_dev_'.length, -6)) counts.set(c, (counts.get(c) ?? 0) + 1)
  }
  const expected = (4_000 * 43) / 62
  assert.equal(counts.size, 62)
  // Taking bytes modulo 62 would put eight characters 25 % above the rest; 12 % is seven standard deviations.
  for (const [c, n] of counts) assert.ok(Math.abs(n - expected) < expected * 0.14, `${c}: ${n} of ${expected}`)
})

test('the hash is HMAC-SHA256 of domain, NUL and token, so the two kinds of key never match', () => {
  const made = createTokens('dev', pepper)
  const token = made.mint()
  const expected = createHmac('sha256', pepper).update('ao:pub-key:v1').update('\0').update(token).digest()
  assert.deepEqual(made.hash('ao:pub-key:v1', token), expected)
  assert.notDeepEqual(made.hash('ao:tenant-key:v1', token), expected)
  assert.notDeepEqual(createTokens('dev', randomBytes(32)).hash('ao:pub-key:v1', token), expected)
})

test('without a pepper the role boots, tokens are still recognised, and hashing says what to set', async (t) => {
  const seen: Tokens[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { tokens: Tokens },
    setup: async ({ deps }) => (seen.push(deps.tokens), {}),
  })
  await testKernel(t, [tokens, probe])
  assert.ok(seen[0]!.wellFormed(seen[0]!.mint()))
  assert.throws(() => seen[0]!.hash('ao:pub-key:v1', 'x'), {
    code: 'key_hashing_unavailable',
    status: 503,
    message: /AGENT_API_KEY_PEPPER/,
  })
})

test('a pepper of less than 32 bytes refuses the boot', async (t) => {
  const short = { name: 'tokens', plugin: tokens, config: { pepper: Buffer.alloc(31).toString('base64') } }
  await assert.rejects(testKernel(t, [short]), /config\.pepper/)
})
