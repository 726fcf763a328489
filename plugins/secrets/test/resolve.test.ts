import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database, Statement } from '#contracts/database'
import { createResolver, PlainCache } from '../resolver.ts'
import { Reads } from '../reads.ts'
import { keyringOf } from '../settings.ts'
import { blocksAnother, type TestBody } from '#testing'
import { masterKey, randomKey, stage } from './stage.ts'

test('whoever signs with the family vfs resolves secrets of the tenant that is signed, and of no other', async (t) => {
  const { owner, other, resolve } = await stage(t)
  await owner('POST', '/api/secrets', { name: 'github', value: 'näïve “value”\n' })
  await other('initech')
  const answer = await resolve('secret://github')
  assert.deepEqual([answer.status, answer.body], [200, { value: 'näïve “value”\n' }])
  assert.equal(answer.headers['cache-control'], 'no-store')
  const foreign = await resolve('secret://github', { tenant: 'initech' })
  const unknown = await resolve('secret://nothing', { tenant: 'initech' })
  const plain = ({ status, body }: { status: number; body: TestBody }) => [status, { ...body, request_id: '' }]
  assert.deepEqual(plain(foreign), plain(unknown))
  assert.deepEqual([foreign.status, foreign.body['error']], [404, 'not_found'])
})

test('what is no reference to a secret is refused, before anybody looks for it', async (t) => {
  const { owner, resolve } = await stage(t)
  await owner('POST', '/api/secrets', { name: 'a', value: 'x' })
  for (const ref of [
    '',
    'a',
    'secret://',
    'secret:/a',
    'SECRET://a',
    ' secret://a',
    'secret://a ',
    'secret://a/b',
    'secret://${GITHUB_TOKEN}',
    'secret://a${B}',
    '${A}',
    'secret://../a',
    'secret://a\n',
    'secret://%61',
    'vault://a',
    `secret://${'a'.repeat(129)}`,
  ]) {
    const { status, body } = await resolve(ref)
    assert.deepEqual([status, body['error']], [400, 'invalid_ref'], JSON.stringify(ref))
  }
  for (const ref of [7, null, undefined, { ref: 'secret://a' }]) {
    const { status, body } = await resolve(ref)
    assert.deepEqual([status, body['error']], [400, 'invalid_request'], JSON.stringify(ref))
  }
})

test('a signature that is missing, malformed, changed, used before or of another family is a 401', async (t) => {
  const { owner, resolve, signers } = await stage(t)
  await owner('POST', '/api/secrets', { name: 'a', value: 'x' })
  const parts = {
    tenant: 'default',
    method: 'POST',
    target: '/internal/secrets/resolve',
    body: Buffer.from(JSON.stringify({ ref: 'secret://a' })),
  }
  const signed = (change: object = {}) => signers.get('vfs')!.sign({ ...parts, ...change })
  const good = signed()
  const cases: Record<string, object> = {
    none: {},
    'of gateways': signers.get('chat-gateway')!.sign(parts),
    malformed: { ...signed(), 'x-chat-gateway-signature': 'v1,no' },
    'for another tenant': { ...signed(), 'x-chat-gateway-tenant': 'acme' },
    'of another body': signed({ body: Buffer.from('{"ref":"secret://b"}') }),
    'of another path': signed({ target: '/internal/topology/reconcile' }),
    'of another method': signed({ method: 'GET' }),
    'from another time': { ...signed(), 'x-chat-gateway-timestamp': '1760000000' },
  }
  for (const [what, headers] of Object.entries(cases)) {
    const { status, body } = await resolve('secret://a', { headers })
    assert.deepEqual([status, body['error']], [401, 'unauthorized'], what)
  }
  const withoutOne = Object.keys(good).map((name) =>
    Object.fromEntries(Object.entries(signed()).filter(([n]) => n !== name)),
  )
  for (const headers of withoutOne) assert.equal((await resolve('secret://a', { headers })).status, 401)
  assert.equal((await resolve('secret://a', { headers: good })).status, 200)
  assert.equal((await resolve('secret://a', { headers: good })).status, 401, 'a nonce is good once')
})

test('while its keys are changed, both keys of the family verify', async (t) => {
  const { owner, resolve, signers } = await stage(t, { VFS_INTERNAL_SIGNING_KEY_PREVIOUS: randomKey() })
  await owner('POST', '/api/secrets', { name: 'a', value: 'x' })
  const [target, body] = ['/internal/secrets/resolve', Buffer.from(JSON.stringify({ ref: 'secret://a' }))]
  for (const key of ['CURRENT', 'PREVIOUS'] as const) {
    const headers = signers.get('vfs')!.sign({ tenant: 'default', method: 'POST', target, body }, key)
    assert.equal((await resolve('secret://a', { headers })).status, 200, key)
  }
})

test('a deleted tenant has no secrets, and has them again when it is brought back', async (t) => {
  const { owner, other, resolve } = await stage(t)
  await (
    await other('initech')
  )('POST', '/api/secrets', { name: 'a', value: 'x' })
  assert.equal((await owner('DELETE', '/api/tenants/initech')).status, 204)
  assert.equal((await resolve('secret://a', { tenant: 'initech' })).status, 404)
  await owner('PATCH', '/api/tenants/initech', { deleted: false })
  assert.equal((await resolve('secret://a', { tenant: 'initech' })).status, 200)
})

test('without the keys of the family vfs nobody resolves anything', async (t) => {
  const { owner, resolve } = await stage(t, { VFS_INTERNAL_SIGNING_KEY_CURRENT: '' })
  await owner('POST', '/api/secrets', { name: 'a', value: 'x' })
  assert.equal((await resolve('secret://a', { family: 'chat-gateway' })).status, 401)
})

test('who has read a secret is counted in memory, and written for many reads at once', async (t) => {
  const { owner, database } = await stage(t)
  const statements: string[] = []
  const counting = {
    ...database,
    batch: (tenantId: string, all: readonly Statement[]) => {
      statements.push(...all.map(({ name = '' }) => name))
      return database.batch(tenantId, all)
    },
  } as unknown as Database
  await owner('POST', '/api/secrets', { name: 'a', value: 'x' })
  await owner('POST', '/api/secrets', { name: 'b', value: 'x' })
  const warnings: unknown[] = []
  const reads = new Reads(counting, { warn: (...told: unknown[]) => void warnings.push(told) })
  const note = (name: string, version: number, reader: string) => reads.note('default', { name, version }, reader)
  for (let i = 0; i < 3; i++) note('a', 1, 'internal')
  note('a', 1, 'webhooks')
  note('a', 2, 'webhooks')
  note('deleted meanwhile', 1, 'webhooks')
  assert.deepEqual(statements, [])
  await reads.flush()
  assert.deepEqual(statements, ['secrets_reads', 'secrets_reads_trim'])
  note('a', 3, 'internal')
  await reads.flush()
  await reads.flush()
  assert.equal(statements.length, 4)
  const seen = (await owner('GET', '/api/secrets/a/reads')).body as unknown as TestBody[]
  assert.deepEqual(
    seen.map(({ reader, version, reads: count }) => [reader, version, count]),
    [
      ['internal', 3, 4],
      ['webhooks', 2, 2],
    ],
  )
  const list = (await owner('GET', '/api/secrets')).body as unknown as TestBody[]
  const last = seen
    .map(({ lastReadAt }) => String(lastReadAt))
    .toSorted()
    .at(-1)
  assert.deepEqual(
    list.map(({ lastReadAt }) => lastReadAt),
    [last, undefined],
  )
  // The number of stored readers is bounded: the most recent ones stay.
  for (let i = 0; i < 120; i++) note('b', 1, `reader ${i}`)
  await reads.flush()
  const readers = async () => ((await owner('GET', '/api/secrets/b/reads')).body as unknown as TestBody[]).length
  assert.equal(await readers(), 100)
  // Who read a secret is evidence, which a legal hold keeps.
  const hold = (held: boolean) =>
    database.systemBatch([{ text: `UPDATE tenants SET legal_hold = $1 WHERE id = 'default'`, values: [held] }])
  await hold(true)
  for (let i = 0; i < 20; i++) note('b', 1, `later reader ${i}`)
  await reads.flush()
  assert.equal(await readers(), 120)
  await hold(false)
  // A hold that is being set is waited for.
  let flush: Promise<void> | undefined
  note('b', 1, 'a reader beside the hold')
  await database.tenant('default', async (tx) => {
    await tx.query({ text: `UPDATE tenants SET legal_hold = true WHERE id = 'default'` })
    flush = reads.flush()
    await Promise.race([flush, blocksAnother(tx)])
  })
  await flush
  assert.equal(await readers(), 121)
  await hold(false)
  note('b', 1, 'the last reader')
  await reads.flush()
  assert.equal(await readers(), 100)
  assert.deepEqual(warnings, [])
})

test('what is asked for again within seconds is no round trip; a write is heard of at once', async (t) => {
  const { owner, database, other } = await stage(t)
  await owner('POST', '/api/secrets', { name: 'a', value: 'one' })
  let asked = 0
  const counting = {
    ...database,
    batch: (tenantId: string, all: readonly Statement[]) => (asked++, database.batch(tenantId, all)),
  } as unknown as Database
  const cache = new PlainCache({ keepMs: 60_000, maxBytes: 1_000_000 })
  const keyring = keyringOf({ masterKey: Buffer.from(masterKey, 'base64') })!
  const outcomes: string[] = []
  const noted: unknown[] = []
  const resolver = createResolver({
    database: counting,
    keyring,
    cache,
    reads: { note: (...read) => void noted.push(read) },
    onOutcome: (outcome) => void outcomes.push(outcome),
  })
  const read = () => resolver.resolve('default', 'a', 'test')
  assert.deepEqual(await read(), { name: 'a', version: 1, value: 'one' })
  await read()
  assert.deepEqual([asked, noted.length], [1, 2])
  await owner('PUT', '/api/secrets/a', { value: 'two' })
  cache.forget('default/a')
  // The party that verifies signatures may not know the new value yet.
  assert.deepEqual(await read(), { name: 'a', version: 2, value: 'two', previous: 'one' })
  const long = { text: `UPDATE secrets SET updated_at = now() - interval '25 hours'` }
  await database.batch('default', [long])
  cache.clear()
  assert.deepEqual(await read(), { name: 'a', version: 2, value: 'two' })
  const lost = { text: `UPDATE secret_versions SET master_key = 'mk_lost' WHERE version = 1` }
  await database.batch('default', [lost, { text: 'UPDATE secrets SET updated_at = now()' }])
  cache.clear()
  assert.deepEqual(await read(), { name: 'a', version: 2, value: 'two' }, 'the current value needs no other')

  await (
    await other('initech')
  )('GET', '/api/secrets')
  await assert.rejects(resolver.resolve('initech', 'a', 'test'), { code: 'unknown_secret: a', status: 400 })
  assert.deepEqual(await resolver.unknown('default', ['a', 'b']), ['b'])
  assert.deepEqual(outcomes, [...Array.from({ length: 5 }, () => 'resolved'), 'refused'])
})

test('headers get the values of what they refer to, and no value that would make two headers of one', async (t) => {
  const { owner, secrets } = await stage(t)
  await owner('POST', '/api/secrets', { name: 'user', value: 'ada$&' })
  await owner('POST', '/api/secrets', { name: 'pass.word', value: 'x:y' })
  await owner('POST', '/api/secrets', { name: 'lines', value: 'canary\r\nx-admin: 1' })
  const headers = (given: Record<string, string>) => secrets.headers('default', given, 'test')
  assert.deepEqual(await headers({ authorization: 'Basic secret://user,secret://pass.word', 'x-plain': 'as it is' }), {
    authorization: 'Basic ada$&,x:y',
    'x-plain': 'as it is',
  })
  const unfit = await headers({ a: 'secret://lines' }).catch((error: Error) => error)
  assert.equal((unfit as { code?: string }).code, 'secret_unfit')
  assert.doesNotMatch(JSON.stringify([String(unfit), unfit]), /canary/)
  await assert.rejects(headers({ a: 'secret://user/x' }), { code: 'invalid_ref' })
  await assert.rejects(headers({ a: 'Bearer secret://nobody' }), { code: 'unknown_secret: nobody' })
})
