import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { decodeJwt, decodeProtectedHeader, SignJWT } from 'jose'
import { BootError } from '#kernel'
import { fake, testKernel } from '#testing'
import { SandboxProviders } from '#contracts/sandbox'
import { workerPaths } from '#contracts/wire/worker'
import { WrongKeys } from '#kit'
import { createHub } from '../hub/hub.ts'
import { createWorkerTokens, type WorkerTokens } from '../hub/tokens.ts'
import sandboxes from '../index.ts'
import { startHub } from './hub.ts'

const key = (): Buffer => randomBytes(32)
const claims = { tenantId: 'acme', sessionId: 'sess-00000000-00000001', generation: 7 }
const refusal = (which: string) => ({ code: `invalid or missing worker token: ${which}`, status: 401 })

test('a token says who the worker is, for a day', async () => {
  const tokens = createWorkerTokens(key(), undefined)
  const { token, expiresAt } = await tokens.mint(claims)
  const day = 24 * 60 * 60 * 1_000
  assert.ok(Math.abs(expiresAt - Date.now() - day) < 60_000)
  assert.deepEqual(await tokens.verify(`Bearer ${token}`), { ...claims, expiresAt })
  const { alg, typ, kid } = decodeProtectedHeader(token)
  assert.deepEqual({ alg, typ }, { alg: 'HS256', typ: 'ao-worker+jwt' })
  assert.equal(typeof kid, 'string')
  const { iss, aud, sub, tid, sid, gen, jti, iat, exp } = decodeJwt(token)
  assert.deepEqual(
    { iss, aud, sub, tid, sid, gen },
    { iss: 'ao-runner', aud: 'ao-worker', sub: claims.sessionId, tid: 'acme', sid: claims.sessionId, gen: 7 },
  )
  assert.equal(exp! - iat!, day / 1_000)
  assert.notEqual(jti, decodeJwt((await tokens.mint(claims)).token).jti)
})

test('what is no token of this key, type, issuer and audience is refused, and the case is named', async () => {
  const secret = randomBytes(32)
  const tokens = createWorkerTokens(secret, undefined)
  const { token } = await tokens.mint(claims)
  const { kid } = decodeProtectedHeader(token)
  interface Forged {
    readonly header?: Record<string, unknown>
    readonly payload?: Record<string, unknown>
    readonly key?: Uint8Array
  }
  const forge = ({ header = {}, payload = {}, key = secret }: Forged): Promise<string> =>
    new SignJWT({ ...decodeJwt(token), ...payload })
      .setProtectedHeader({ alg: 'HS256', typ: 'ao-worker+jwt', kid, ...header } as { alg: string })
      .sign(key)
  const without = async (claim: string): Promise<string> => {
    const { [claim]: _, ...payload } = decodeJwt(token)
    return new SignJWT(payload).setProtectedHeader({ alg: 'HS256', typ: 'ao-worker+jwt', kid: kid! }).sign(secret)
  }
  const unsigned = (alg: string): string => {
    const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url')
    return `${part({ alg, typ: 'ao-worker+jwt', kid })}.${part(decodeJwt(token))}.`
  }
  const [header, , signature] = token.split('.') as [string, string, string]
  const changed = Buffer.from(JSON.stringify({ ...decodeJwt(token), tid: 'globex' })).toString('base64url')
  const malformed: Record<string, string> = {
    'no token at all': 'Bearer',
    'another scheme': `Basic ${token}`,
    garbage: 'Bearer a.b.c',
    'four parts': `Bearer ${token}.x`,
    'alg none': `Bearer ${unsigned('none')}`,
    'alg none with a signature': `Bearer ${unsigned('none')}${signature}`,
    'no signature': `Bearer ${unsigned('HS256')}`,
    'another payload': `Bearer ${header}.${changed}.${signature}`,
    'another key': `Bearer ${await forge({ key: randomBytes(32) })}`,
    'another algorithm of the family': `Bearer ${await forge({ header: { alg: 'HS512' }, key: Buffer.concat([secret, secret]) })}`,
    'a key that nobody has': `Bearer ${await forge({ header: { kid: '0000000000000000' } })}`,
    'no key named': `Bearer ${await forge({ header: { kid: undefined } })}`,
    'another type': `Bearer ${await forge({ header: { typ: 'JWT' } })}`,
    'another issuer': `Bearer ${await forge({ payload: { iss: 'ao-conductor' } })}`,
    'another audience': `Bearer ${await forge({ payload: { aud: 'ao-runner' } })}`,
    'a subject that is another session': `Bearer ${await forge({ payload: { sub: 'sess-00000000-00000002' } })}`,
    'a generation that is no number': `Bearer ${await forge({ payload: { gen: '7' } })}`,
    'a tenant that is no text': `Bearer ${await forge({ payload: { tid: 7 } })}`,
    NUL: 'Bearer \0',
    'a long one': `Bearer ${'a'.repeat(4 * 1024 * 1024)}`,
  }
  for (const claim of ['sub', 'tid', 'sid', 'gen', 'jti', 'iat', 'exp', 'iss', 'aud']) {
    malformed[`no ${claim}`] = `Bearer ${await without(claim)}`
  }
  for (const [name, header] of Object.entries(malformed)) {
    await assert.rejects(tokens.verify(header), refusal('malformed'), name)
  }
  await assert.rejects(tokens.verify(undefined), refusal('missing'))
  await assert.rejects(tokens.verify(''), refusal('missing'))
  const past = Math.floor(Date.now() / 1_000) - 1
  await assert.rejects(tokens.verify(`Bearer ${await forge({ payload: { exp: past } })}`), refusal('expired'))
  // Only the holder of a genuine token is told that it has expired.
  const stranger = await forge({ payload: { exp: past }, key: randomBytes(32) })
  await assert.rejects(tokens.verify(`Bearer ${stranger}`), refusal('malformed'))
})

test('the previous key verifies and never signs', async () => {
  const [old, young] = [key(), key()]
  const before = createWorkerTokens(old, undefined)
  const during = createWorkerTokens(young, old)
  const after = createWorkerTokens(young, undefined)
  const { token } = await before.mint(claims)
  assert.equal((await during.verify(`Bearer ${token}`)).generation, 7)
  await assert.rejects(after.verify(`Bearer ${token}`), refusal('malformed'))
  const { token: fresh } = await during.mint(claims)
  assert.equal((await after.verify(`Bearer ${fresh}`)).generation, 7)
  await assert.rejects(before.verify(`Bearer ${fresh}`), refusal('malformed'))
})

test('without a key the role boots, nothing is minted, and the sentence says which variable to set', async () => {
  const tokens = createWorkerTokens(undefined, undefined)
  await assert.rejects(tokens.mint(claims), {
    code: 'worker_token_unavailable',
    status: 503,
    message: /AGENT_ORC_WORKER_SIGNING_KEY_CURRENT/,
  })
  await assert.rejects(tokens.verify('Bearer a.b.c'), refusal('malformed'))
})

test('a short key, or a previous one alone, refuses the boot', async (t) => {
  const text = (bytes: number): string => randomBytes(bytes).toString('base64')
  const bad = [{ current: text(31) }, { current: text(32), previous: text(31) }, { previous: text(32) }]
  for (const signingKey of bad) {
    const entry = { name: 'sandboxes', plugin: sandboxes, config: { signingKey } }
    await assert.rejects(testKernel(t, [entry, fake(SandboxProviders, {})], { listeners: ['runner'] }), BootError)
  }
})

test('a token that cannot be minted, or is empty, opens no channel, and the sentence names the setting', async () => {
  const mints: Record<string, WorkerTokens['mint']> = {
    fails: () => Promise.reject(new Error('secret inside')),
    'gives nothing': async () => ({ token: '', expiresAt: Date.now() + 60_000 }),
  }
  for (const [how, mint] of Object.entries(mints)) {
    const hub = createHub({ mint, verify: () => Promise.reject(new Error('not asked')) }, 1_000)
    const refused = { code: 'worker_token_failed', status: 503, message: /AGENT_ORC_WORKER_SIGNING_KEY_CURRENT/ }
    await assert.rejects(hub.open('acme', claims.sessionId), refused, how)
  }
})

test('the name of a key does not tell the key', async () => {
  const secret = randomBytes(32)
  const tokens = createWorkerTokens(secret, undefined)
  const { kid } = decodeProtectedHeader((await tokens.mint(claims)).token)
  assert.notEqual(kid, createHash('sha256').update(secret).digest('hex').slice(0, kid!.length))
})

test('an address that tries wrong tokens is not looked up further, and no good token behind it notices', async (t) => {
  let verified = 0
  const tokens = createWorkerTokens(key(), undefined)
  const counting: WorkerTokens = { ...tokens, verify: (text) => (verified++, tokens.verify(text)) }
  const { open, hub, urls } = await startHub(t, { tokens: counting, wrongKeys: new WrongKeys(3) })
  const [{ channel: first }, { channel: late }] = [await open(), await open()]
  const ask = async (token: string | undefined, { sessionId } = first, header = 'authorization'): Promise<unknown> => {
    const value = header === 'authorization' ? `Bearer ${token}` : token
    const headers = token === undefined ? {} : { [header]: value! }
    const reply = await fetch(`${urls['workers']}${workerPaths(sessionId).models('openai')}/models`, { headers })
    const { error } = (await reply.json()) as { error: string }
    return [reply.status, error]
  }
  const admitted = [404, 'unknown_model_provider']
  const refused = (which: string) => [401, refusal(which).code]
  assert.deepEqual(await ask(first.token), admitted)
  // Neither a request without a token nor a token that was once good is an attempt to guess.
  const { token: former } = await tokens.mint({ ...claims, sessionId: first.sessionId })
  for (let i = 0; i < 4; i++) {
    assert.deepEqual(await ask(undefined), refused('missing'))
    assert.deepEqual(await ask(former), refused('superseded'))
    assert.deepEqual(await ask(first.token, late), refused('other session'))
  }
  for (const wrong of ['a.b.c', `${first.token}x`]) assert.deepEqual(await ask(wrong), refused('malformed'), wrong)
  assert.deepEqual(await ask('a.b.d', late, 'x-api-key'), refused('malformed'))
  const before = verified
  for (const wrong of ['a.b.c', 'a.b.e', former])
    assert.deepEqual(await ask(wrong), [429, 'too_many_wrong_keys'], wrong)
  assert.equal(verified, before, 'nothing is verified for the address')
  assert.deepEqual(await ask(first.token), admitted)
  assert.deepEqual(await ask(late.token, late), admitted, 'a token that was never used before')
  hub.close()
  assert.deepEqual(await ask(late.token, late), refused('superseded'))
})
