import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { decodeJwt, decodeProtectedHeader, SignJWT } from 'jose'
import { BootError, definePlugin } from '#kernel'
import { WorkerTokens } from '#contracts/workers'
import { testKernel } from '#testing'
import workerTokens from '../index.ts'

async function tokensWith(t: TestContext, config: Record<string, string>): Promise<WorkerTokens> {
  const found: WorkerTokens[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { tokens: WorkerTokens },
    setup: async ({ deps }) => (found.push(deps.tokens), {}),
  })
  await testKernel(t, [{ name: 'worker-tokens', plugin: workerTokens, config }, probe], { listeners: [] })
  return found[0]!
}

const key = (): string => randomBytes(32).toString('base64')
const claims = { tenantId: 'acme', sessionId: 'sess-00000000-00000001', generation: 7 }
const refusal = (which: string) => ({ code: `invalid or missing worker token: ${which}`, status: 401 })

test('a token says who the worker is, for a day', async (t) => {
  const tokens = await tokensWith(t, { current: key() })
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

test('what is no token of this key, type, issuer and audience is refused, and the case is named', async (t) => {
  const secret = randomBytes(32)
  const tokens = await tokensWith(t, { current: secret.toString('base64') })
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
  // Its age is only said to whoever holds a real one.
  const stranger = await forge({ payload: { exp: past }, key: randomBytes(32) })
  await assert.rejects(tokens.verify(`Bearer ${stranger}`), refusal('malformed'))
})

test('the previous key verifies and never signs', async (t) => {
  const [old, young] = [key(), key()]
  const before = await tokensWith(t, { current: old })
  const during = await tokensWith(t, { current: young, previous: old })
  const after = await tokensWith(t, { current: young })
  const { token } = await before.mint(claims)
  assert.equal((await during.verify(`Bearer ${token}`)).generation, 7)
  await assert.rejects(after.verify(`Bearer ${token}`), refusal('malformed'))
  const { token: fresh } = await during.mint(claims)
  assert.equal((await after.verify(`Bearer ${fresh}`)).generation, 7)
  await assert.rejects(before.verify(`Bearer ${fresh}`), refusal('malformed'))
})

test('without a key the role boots, nothing is minted, and the sentence says which variable to set', async (t) => {
  const tokens = await tokensWith(t, {})
  await assert.rejects(tokens.mint(claims), {
    code: 'worker_token_unavailable',
    status: 503,
    message: /AGENT_ORC_WORKER_SIGNING_KEY_CURRENT/,
  })
  await assert.rejects(tokens.verify('Bearer a.b.c'), refusal('malformed'))
})

test('a short key, or a previous one alone, refuses the boot', async (t) => {
  const short = randomBytes(31).toString('base64')
  for (const config of [{ current: short }, { current: key(), previous: short }, { previous: key() }]) {
    await assert.rejects(tokensWith(t, config as Record<string, string>), BootError)
  }
})

test('the name of a key does not tell the key', async (t) => {
  const secret = randomBytes(32)
  const tokens = await tokensWith(t, { current: secret.toString('base64') })
  const { kid } = decodeProtectedHeader((await tokens.mint(claims)).token)
  assert.notEqual(kid, createHash('sha256').update(secret).digest('hex').slice(0, kid!.length))
})
