import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { ApiGuard, type Guard } from '#contracts/auth'
import { Database, type TenantTx } from '#contracts/database'
import { defaultLimits, type Limits, TenantLimits } from '#contracts/limits'
import { type LinkedObjects, LinkedObjects as Links, ReservedObjects } from '#contracts/linked-objects'
import { ObjectStore } from '#contracts/object-store'
import { TenantData, type TenantDataStore } from '#contracts/retention'
import { databasePlugin, diskStoragePlugin, fake, freshDatabase, testKernel } from '#testing'
import links from '../links/index.ts'
import { PostgresLinks } from '../links/store.ts'
import storage from '../index.ts'

const openGuard: Guard = {
  protect() {},
  callerOf: ({ headers }) => ({ tenantId: String(headers['tenant'] ?? 'acme'), role: 'owner', keyId: 'tak_test' }),
}

interface Parts {
  readonly links: LinkedObjects
  readonly store: ObjectStore
  readonly reserved: ObjectStore
  readonly data: ReadonlyMap<string, TenantDataStore>
  readonly database: Database
}

/** A conductor with an object store and linked objects, on a real database. */
async function started(
  t: TestContext,
  {
    limits = {},
    dsn,
    dir,
    poolSize = 10,
  }: { limits?: Partial<Limits>; dsn?: string; dir?: string; poolSize?: number } = {},
) {
  const folder = dir ?? (await mkdtemp(join(tmpdir(), 'ao-linked-')))
  t.after(() => rm(folder, { recursive: true, force: true }))
  const found: Parts[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { links: Links, store: ObjectStore, reserved: ReservedObjects, data: TenantData, database: Database },
    setup: async ({ deps }) => (found.push(deps), {}),
  })
  const on = dsn ?? (await freshDatabase(t))
  const { config: ofDatabase, ...database } = await databasePlugin(on)
  const kernel = await testKernel(
    t,
    [
      { ...database, config: { ...(ofDatabase as object), poolSize } },
      fake(ApiGuard, openGuard),
      fake(TenantLimits, { of: () => ({ ...defaultLimits, ...limits }), uses() {} } as unknown as TenantLimits),
      await diskStoragePlugin(folder),
      { name: 'storage', plugin: storage },
      { name: 'linked-objects', plugin: links },
      probe,
    ],
    { listeners: ['conductor'] },
  )
  const parts = found[0]!
  const sql = (tenantId: string, text: string, ...values: unknown[]) =>
    parts.database.batch<[Record<string, unknown>[]]>(tenantId, [{ text, values }]).then(([rows]) => rows)
  const call = (method: 'GET' | 'POST' | 'PUT' | 'DELETE', url: string, tenant = 'acme', payload?: Buffer | string) =>
    kernel.listeners['conductor']!.inject({
      method,
      url,
      headers: { tenant, ...(payload === undefined ? {} : { 'content-type': 'image/png' }) },
      ...(payload === undefined ? {} : { payload }),
    })
  return {
    ...parts,
    dsn: on,
    dir: folder,
    sql,
    call,
    /** Sweeps until nothing is left, as retention does. */
    async sweep(tenantId = 'acme', signal = new AbortController().signal) {
      const some = (tx: TenantTx) => parts.data.get('linked objects')!.sweep!(tx, (ask) => ask(signal))
      for (let deleted = 0; ;) {
        const part = await parts.database.as('reads').tenant(tenantId, some)
        deleted += part.deleted
        if (!part.more) return deleted
      }
    },
    begin: (tenantId: string, id: string) =>
      sql(
        tenantId,
        `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch)
         VALUES ($1, $2, 's', 'p', 'running', 'x', 'x', 1)`,
        tenantId,
        id,
      ),
    /** The keys in the reserved area of a tenant. */
    kept: async (tenantId = 'acme') => (await parts.reserved.list(tenantId, {})).objects.map(({ key }) => key),
  }
}

const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex')
const content = (bytes = randomBytes(100_000)) => ({ bytes, contentType: 'image/png' })

test('equal contents are kept once, for as long as one of their runs is there', async (t) => {
  const s = await started(t)
  const one = content()
  const [first] = await s.links.keep('acme', 'r1', [one])
  await s.begin('acme', 'r1')
  // Another run keeps the same content with another type. The object is stored only once.
  const [again] = await s.links.keep('acme', 'r2', [{ ...one, contentType: 'text/plain' }])
  await s.begin('acme', 'r2')
  assert.deepEqual([first!.sha256, again!.key], [sha256(one.bytes), first!.key])
  assert.equal((await s.kept()).length, 1)
  assert.ok(one.bytes.equals((await s.links.read('acme', 'r2', first!))!))
  // Only a run that has the object can read it: no run of another tenant, and no run that only knows the digest.
  assert.equal(await s.links.read('acme', 'r3', first!), undefined)
  assert.equal(await s.links.read('globex', 'r1', first!), undefined)
  assert.equal(await s.links.read('acme', 'r1', { ...first!, bytes: first!.bytes - 1 }), undefined)

  await s.sql('acme', `DELETE FROM runs WHERE id = 'r1'`)
  assert.equal(await s.sweep(), 0)
  await s.sql('acme', `DELETE FROM runs WHERE id = 'r2'`)
  await assert.rejects(s.sweep('acme', AbortSignal.abort()), { code: 'storage_unavailable' })
  assert.equal((await s.kept()).length, 1)
  assert.equal(await s.sweep(), 1)
  assert.deepEqual(await s.kept(), [])
  assert.deepEqual(await s.sql('acme', 'SELECT bytes::int, objects::int FROM tenant_objects'), [
    { bytes: 0, objects: 0 },
  ])
  // Content that was deleted can be kept again.
  await s.links.keep('acme', 'r4', [one])
  assert.equal((await s.kept()).length, 1)
})

test('content that is kept again while a disk still removes it is there when that has ended', async (t) => {
  const s = await started(t)
  const one = content()
  const disk = Promise.withResolvers<void>()
  let begun = 0
  const objects: ObjectStore = {
    ...s.reserved,
    async remove(...what) {
      begun++
      await disk.promise
      return s.reserved.remove(...what)
    },
  }
  const store = new PostgresLinks(s.database, objects, { above: 1, uploadMs: 1_000, log: { warn() {} } })
  await store.keep('acme', 'r1', [one])
  await store.release('acme', 'r1')
  const silent = new Error('the disk hangs')
  // It is begun, and then given up: the transaction that has locked the row ends.
  const givenUp = (tx: TenantTx) =>
    store.sweep(tx, async (ask) => (void ask(AbortSignal.any([])), Promise.reject(silent)))
  const sweep = () => s.database.as('reads').tenant('acme', givenUp)
  await assert.rejects(sweep(), silent)
  assert.deepEqual(await sweep(), { deleted: 0, more: false })
  assert.equal(begun, 1, 'what is under way is not begun again')
  const kept = store.keep('acme', 'r2', [one])
  // Its row is there by now.
  while ((await s.sql('acme', `SELECT 1 FROM linked_object_runs WHERE run_id = 'r2'`)).length === 0);
  const first = await Promise.race([kept.then(() => 'kept'), s.sql('acme', 'SELECT 1').then(() => 'nothing yet')])
  disk.resolve()
  const [link] = await kept
  assert.ok(one.bytes.equals((await store.read('acme', 'r2', link!))!))
  assert.equal(first, 'nothing yet')
})

test('links of runs that never began go in parts', async (t) => {
  const s = await started(t)
  await s.sql(
    'acme',
    `INSERT INTO linked_object_runs (tenant_id, run_id, key, added_at)
     SELECT 'acme', 'r' || i, 'k', now() - interval '2 hours' FROM generate_series(1, 600) i`,
  )
  const part = (tx: TenantTx) => s.data.get('linked objects')!.sweep!(tx, (ask) => ask(new AbortController().signal))
  const left = async () => (await s.sql('acme', 'SELECT count(*)::int AS n FROM linked_object_runs'))[0]!['n']
  const more = { deleted: 0, more: true }
  assert.deepEqual([await s.database.as('reads').tenant('acme', part), await left()], [more, 100])
  assert.equal(await s.sweep(), 0)
  assert.equal(await left(), 0)
})

test('what was kept for a run that did not begin goes, also when its process died, and not before', async (t) => {
  const s = await started(t)
  const [link] = await s.links.keep('acme', 'r1', [content()])
  await s.sweep()
  assert.equal((await s.kept()).length, 1, 'its run may be about to begin')
  await s.links.release('acme', 'r1')
  await s.sweep()
  assert.deepEqual(await s.kept(), [])

  await s.links.keep('acme', 'r2', [content()])
  await s.begin('acme', 'r2')
  await s.links.release('acme', 'r2')
  await s.links.keep('acme', 'r3', [content()])
  await s.sql('acme', `UPDATE linked_object_runs SET added_at = now() - interval '2 hours'`)
  await s.sweep()
  assert.equal((await s.kept()).length, 1, 'only that of the run which is there')
  assert.equal(await s.links.read('acme', 'r1', link!), undefined)
})

test('a sweep has one connection, of a process that has one for reads', async (t) => {
  const s = await started(t, { poolSize: 5 })
  await s.links.keep('acme', 'r1', [content()])
  await s.links.release('acme', 'r1')
  assert.equal(await s.sweep(), 1)
})

test('sweeps and runs that begin with the same content do not lose it', async (t) => {
  const s = await started(t)
  const one = content()
  for (let round = 0; round < 10; round++) {
    const [[link]] = await Promise.all([s.links.keep('acme', `r${round}`, [one]), s.sweep(), s.sweep()])
    assert.ok(await s.links.read('acme', `r${round}`, link!), `round ${round}`)
    await s.links.release('acme', `r${round}`)
  }
})

test('an upload is its tenant’s, waits for a run, and is kept with it', async (t) => {
  const s = await started(t)
  const bytes = randomBytes(3_000_000)
  const answer = await s.call('POST', '/api/attachments', 'acme', bytes)
  assert.equal(answer.statusCode, 201, answer.body)
  const upload = answer.json<{ id: string; sha256: string; bytes: number; mediaType: string }>()
  assert.deepEqual([upload.sha256, upload.bytes, upload.mediaType], [sha256(bytes), bytes.length, 'image/png'])
  await assert.rejects(s.links.use('globex', 'r1', upload.id), { code: 'unknown_upload' })
  await assert.rejects(s.links.use('acme', 'r1', 'att_none'), { code: 'unknown_upload' })
  // The digest of an object is not the id of an upload.
  const [kept] = await s.links.keep('acme', 'r0', [content()])
  await assert.rejects(s.links.use('acme', 'r1', kept!.key), { code: 'unknown_upload' })
  const link = await s.links.use('acme', 'r1', upload.id)
  await s.begin('acme', 'r1')
  await s.sql('acme', `UPDATE linked_objects SET expires_at = now() - interval '1 second'`)
  await s.sweep()
  assert.ok(bytes.equals((await s.links.read('acme', 'r1', link))!), 'its run has it')
  await s.sql('acme', `DELETE FROM runs WHERE id = 'r1'`)
  await assert.rejects(s.links.use('acme', 'r2', upload.id), { code: 'unknown_upload' })
  await s.sweep()
  assert.equal(await s.links.read('acme', 'r1', link), undefined)

  for (const [payload, status, error] of [
    [Buffer.alloc(4 * 1024 * 1024 + 1), 413, 'upload_too_large'],
    ['', 400, 'empty_upload'],
  ] as const) {
    const refused = await s.call('POST', '/api/attachments', 'acme', payload)
    assert.deepEqual([refused.statusCode, refused.json<{ error: string }>().error], [status, error])
  }
})

test('what arrived of an upload whose process died goes when it expires, and nobody has it before', async (t) => {
  const s = await started(t)
  let key = ''
  const body = async function* () {
    const [row] = await s.sql('acme', 'SELECT key FROM linked_objects')
    key = String(row!['key'])
    await assert.rejects(s.links.use('acme', 'r1', key), { code: 'unknown_upload' })
    yield Buffer.from('half')
    throw new Error('the sender has left')
  }
  await assert.rejects(s.links.upload('acme', body(), 'image/png'))
  assert.deepEqual([await s.sql('acme', 'SELECT 1 FROM linked_objects'), await s.kept()], [[], []])
  // This is what a process leaves that dies after the last byte of an upload.
  await s.reserved.put('acme', key, { body: [Buffer.from('half')] as never, contentType: 'image/png' })
  const row = `INSERT INTO linked_objects (tenant_id, key, sha256, bytes, content_type, expires_at)
               VALUES ('acme', $1, '', 0, 'image/png', now() - interval '1 second')`
  await s.sql('acme', row, key)
  await s.sweep()
  assert.deepEqual(await s.kept(), [])
  const waiting = `INSERT INTO linked_objects (tenant_id, key, sha256, bytes, content_type, expires_at)
                   SELECT 'acme', 'att_' || n, '', 0, 'image/png', now() + interval '1 day' FROM generate_series(1, 1000) n`
  await s.sql('acme', waiting)
  const refused = await s.call('POST', '/api/attachments', 'acme', Buffer.from('x'))
  assert.equal(refused.json<{ error: string }>().error, 'too_many_uploads')
  assert.equal((await s.call('POST', '/api/attachments', 'globex', Buffer.from('x'))).statusCode, 201)
})

test('a run’s content is downloaded by its tenant, and by nobody else', async (t) => {
  const s = await started(t)
  const one = content()
  const [link] = await s.links.keep('acme', 'r1', [one])
  await s.begin('acme', 'r1')
  await s.begin('globex', 'r1')
  const path = `/api/runs/r1/objects/${link!.sha256}`
  const found = await s.call('GET', path)
  assert.deepEqual([found.statusCode, found.headers['content-type']], [200, 'image/png'])
  assert.match(String(found.headers['content-security-policy']), /sandbox/)
  assert.ok(one.bytes.equals(found.rawPayload))
  for (const [url, tenant] of [
    [path, 'globex'],
    [path.replace('r1', 'r2'), 'acme'],
    [path.replace(/.$/, 'x'), 'acme'],
    [`/api/runs/r1/objects/${'0'.repeat(64)}`, 'acme'],
  ] as const)
    assert.equal((await s.call('GET', url, tenant)).statusCode, 404, url)
})

test('reserved keys are none to the tenant and its agents, count as its own, and go with it', async (t) => {
  const s = await started(t)
  const [link] = await s.links.keep('acme', 'r1', [content()])
  for (const key of ['a', '.zz', '~']) await s.call('PUT', `/api/storage/objects/${key}`, 'acme', 'x')
  const reserved = `.agent-orc/${link!.key}`
  assert.equal((await s.call('GET', `/api/storage/objects/${reserved}`)).statusCode, 404)
  assert.equal((await s.call('DELETE', `/api/storage/objects/${reserved}`)).statusCode, 404)
  assert.equal((await s.call('PUT', `/api/storage/objects/${reserved}`, 'acme', 'x')).json().error, 'invalid_key')
  assert.deepEqual((await s.call('DELETE', '/api/storage/objects/.agent-orc/')).json(), { deleted: 0, more: false })
  for (const query of ['', '?prefix=.', '?delimiter=/', '?prefix=.agent-orc/', '?limit=1']) {
    const listed = (await s.call('GET', `/api/storage/objects${query}`)).body
    assert.doesNotMatch(listed, /agent-orc/, query)
  }
  const keys: string[] = []
  for (let cursor = ''; ;) {
    const page = (await s.call('GET', `/api/storage/objects?limit=1${cursor}`)).json()
    keys.push(...page.objects.map(({ key }: { key: string }) => key))
    if (!page.cursor) break
    cursor = `&cursor=${encodeURIComponent(page.cursor)}`
  }
  assert.deepEqual(keys, ['.zz', 'a', '~'])
  assert.deepEqual(await s.store.removeAll('acme', ''), { deleted: 3, more: false })
  assert.equal((await s.kept()).length, 1)
  assert.deepEqual(await s.data.get('objects')!.erase('acme', new AbortController().signal), {
    deleted: 1,
    more: false,
  })
  assert.deepEqual(await s.kept(), [])
})

test('all processes keep a limit together, and a nightly count mends what one left that died', async (t) => {
  const limits = { objectBytes: 1_000_000, objects: 5 }
  const a = await started(t, { limits })
  const b = await started(t, { limits, dsn: a.dsn, dir: a.dir })
  const puts = await Promise.all(
    Array.from({ length: 8 }, (_, i) =>
      (i % 2 ? a : b).call('PUT', `/api/storage/objects/k${i}`, 'acme', Buffer.alloc(300_000)),
    ),
  )
  assert.equal(puts.filter(({ statusCode }) => statusCode === 201).length, 3)
  assert.ok(puts.some((answer) => answer.json().limit === 'objectBytes'))
  const count = () => a.sql('acme', 'SELECT bytes::int, objects::int FROM tenant_objects')
  assert.deepEqual(await count(), [{ bytes: 900_000, objects: 3 }])
  // A linked attachment counts for the limit as well.
  await assert.rejects(b.links.keep('acme', 'r1', [content(randomBytes(200_000))]), { code: 'limit_exceeded' })
  // This is what a process leaves that dies after it reserved room.
  await a.sql('acme', 'UPDATE tenant_objects SET bytes = 999999, objects = 5')
  await b.data.get('objects')!.recount!('acme')
  assert.deepEqual(await count(), [{ bytes: 900_000, objects: 3 }])
  // An upload of unknown length finally counts only for its real size.
  const parts = async function* () {
    for (let i = 0; i < 9; i++) yield Buffer.alloc(10_000)
  }
  await a.store.put('acme', 'small', { body: parts(), contentType: 'text/plain' })
  assert.deepEqual(await count(), [{ bytes: 990_000, objects: 4 }])
  await a.store.remove('acme', 'small')
  assert.deepEqual(await count(), [{ bytes: 900_000, objects: 3 }])
})
