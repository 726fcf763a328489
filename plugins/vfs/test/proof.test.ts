import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { type IncomingMessage, request } from 'node:http'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { type Signer, signedHeaders } from '#contracts/signing'
import { signedForm, vfsDigestHeader, vfsSessionHeader } from '#contracts/vfs'
import { testVfs } from '#testing'
import { createVfsClient, proofHeaders } from '../client.ts'

const mounts = { files: { kind: 'objects', tenants: ['*'] } }
const sha256 = (body: string): string => createHash('sha256').update(body).digest('hex')

test('nothing is answered without proof but /healthz, and a proof is for one request', async (t) => {
  const { url, signer, client } = await testVfs(t, { settings: { mounts } })
  await client.write({ tenantId: 'acme' }, 'files', 'a', { body: Buffer.from('secret') })
  await client.open('acme', 's1', {})
  const ask = async (method: string, path: string, headers: Record<string, string>, body?: string) => {
    const asked = request(url, { method, path, headers })
    asked.end(body)
    const [answer] = (await once(asked, 'response')) as [IncomingMessage]
    return { status: answer.statusCode, body: await text(answer) }
  }
  const proof = (method: string, target: string, { session = '', digest = '', tenant = 'acme' } = {}) =>
    proofHeaders(signer, { tenant, method, target, session, digest })
  const target = '/vfs/files/files/a'
  for (const path of [target, '/vfs/mounts', '/nothing', '/openapi.json', '/metrics', '/vfs/../healthz']) {
    assert.equal((await ask('GET', path, {})).status, 401, path)
  }
  const good = proof('GET', target)
  assert.deepEqual(await ask('GET', target, good), { status: 200, body: 'secret' })
  const refused: [string, Record<string, string>, string?, string?, string?][] = [
    ['used twice', good],
    ['another tenant', { ...proof('GET', target), [signedHeaders.tenant]: 'globex' }],
    ['another path', proof('GET', '/vfs/files/files/b')],
    ['another query', proof('GET', `${target}?x`)],
    ['another method', proof('PUT', target)],
    ['a session that was not signed for', { ...proof('GET', target), [vfsSessionHeader]: 's1' }],
    ['another session', { ...proof('GET', target, { session: 's2' }), [vfsSessionHeader]: 's1' }],
    ['signed as the secret plane is', signer.sign({ tenant: 'acme', method: 'GET', target, body: new Uint8Array() })],
    ['a tenant that is a step up', proof('GET', target, { tenant: '..' })],
    ['a body that was not signed for', proof('PUT', target), 'PUT', target, 'x'],
    ['another body', proof('PUT', target, { digest: sha256('y') }), 'PUT', target, 'x'],
    ['no digest', proof('PUT', target, { digest: 'none' }), 'PUT', target, 'x'],
    [
      'a stream that was signed as bytes',
      { ...proof('PUT', target, { digest: sha256('x') }), [vfsDigestHeader]: 'stream' },
      'PUT',
      target,
      'x',
    ],
  ]
  for (const [what, headers, method = 'GET', path = target, body] of refused) {
    const { status, body: said } = await ask(method, path, headers, body)
    assert.deepEqual([status, (JSON.parse(said) as { error: string }).error], [401, 'unauthorized'], what)
  }
  assert.equal((await ask('PUT', target, proof('PUT', target, { digest: sha256('z') }), 'z')).status, 200)
  assert.equal((await ask('GET', target, proof('GET', target))).body, 'z')
  assert.deepEqual(signedForm('s', ''), Buffer.from('s\n'))
})

test('a tenant finds nothing of another one: files, sessions, audit, mounts, usage', async (t) => {
  const { client } = await testVfs(t, {
    settings: { mounts: { ...mounts, own: { kind: 'objects', tenants: ['acme'] } } },
  })
  const mine = { tenantId: 'acme', sessionId: 's1' }
  await client.open('acme', 's1', {})
  await client.write({ tenantId: 'acme' }, 'files', 'a', { body: Buffer.from('x') })
  await client.write(mine, 'scratch', 'b', { body: Buffer.from('x') })
  const globex = { tenantId: 'globex' }
  assert.equal(await client.read(globex, 'files', 'a'), undefined)
  assert.deepEqual((await client.list(globex, 'files', '', { recursive: true })).entries, [])
  assert.deepEqual(
    (await client.mounts(globex)).map(({ name }) => name),
    ['files'],
  )
  await assert.rejects(client.list(globex, 'own', ''), { code: 'not_found' })
  await assert.rejects(client.list({ ...globex, sessionId: 's1' }, 'scratch', ''), { code: 'no vfs session' })
  assert.equal(await client.session('globex', 's1'), undefined)
  await client.close('globex', 's1')
  // The same id is another session to another tenant.
  await client.open('globex', 's1', {})
  assert.deepEqual((await client.list({ ...globex, sessionId: 's1' }, 'scratch', '')).entries, [])
  assert.equal((await client.list(mine, 'scratch', '')).entries.length, 1)
  assert.deepEqual(await client.usage('globex'), { bytes: 0, entries: 0, sessions: 1 })
  await client.erase('globex')
  assert.deepEqual(await client.usage('acme'), { bytes: 1, entries: 1, sessions: 1 })
})

test('runners sign with their own key, which is for files alone and for one tenant at a time', async (t) => {
  const { url, runnerSigner, signer } = await testVfs(t, { settings: { mounts } })
  const client = createVfsClient({ baseUrl: url, signer: runnerSigner })
  t.after(() => client.dispose())
  await client.open('acme', 's1', {})
  const one = { tenantId: 'acme', sessionId: 's1' }
  await client.write(one, 'scratch', 'a', { body: Buffer.from('x') })
  const stream = async function* () {
    yield Buffer.from('streamed')
  }
  await client.write(one, 'files', 'b', { body: stream() })
  assert.equal((await client.read(one, 'files', 'b'))?.entry.bytes, 8)
  // A missing file is answered differently from a session that is not open.
  assert.equal(await client.read(one, 'files', 'none'), undefined)
  await client.close('acme', 's1')
  await assert.rejects(client.read(one, 'files', 'b'), { code: 'no vfs session' })
  await assert.rejects(client.remove(one, 'files', 'b'), { code: 'no vfs session' })
  // What decides about the tenant as a whole is for conductors.
  const server = createVfsClient({ baseUrl: url, signer })
  t.after(() => server.dispose())
  await server.hold('acme', true)
  const decide = async (by: Signer, method: string, path: string, body = '') => {
    const proof = { tenant: 'acme', method, target: path, session: '', digest: body && sha256(body) }
    const headers = { ...proofHeaders(by, proof), 'content-type': 'application/json' }
    return (await fetch(url + path, body ? { method, headers, body } : { method, headers })).status
  }
  assert.equal(await decide(runnerSigner, 'PUT', '/vfs/tenant/hold', '{"held":false}'), 401)
  assert.equal(await decide(runnerSigner, 'DELETE', '/vfs/tenant'), 401)
  assert.equal((await server.read({ tenantId: 'acme' }, 'files', 'b'))?.entry.bytes, 8)
  assert.equal(await decide(signer, 'PUT', '/vfs/tenant/hold', '{"held":false}'), 204)
  const target = '/vfs/mounts'
  const parts = { tenant: 'acme', method: 'GET', target, session: '', digest: '' }
  const mixed = { ...proofHeaders(runnerSigner, parts), ...proofHeaders(signer, { ...parts, target: '/vfs/usage' }) }
  for (const headers of [mixed, proofHeaders(runnerSigner, { ...parts, tenant: '' })]) {
    assert.equal((await fetch(url + target, { headers })).status, 401)
  }
})
