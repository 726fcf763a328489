import assert from 'node:assert/strict'
import { readdir, readFile, stat, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { definePlugin } from '#kernel'
import { TenantData, type TenantDataStore } from '#contracts/retention'
import { testVfs, until } from '#testing'

const mounts = {
  files: { kind: 'objects', tenants: ['*'], copyOnWrite: true },
  other: { kind: 'objects', prefix: 'other/', tenants: ['*'] },
}
const acme = { tenantId: 'acme' }
const one = { tenantId: 'acme', sessionId: 's1' }
const bytes = (count: number) => ({ body: Buffer.alloc(count, 'x') })

test('a lease says which mounts a session may use; an empty one says all', async (t) => {
  const { client } = await testVfs(t, { settings: { mounts } })
  await client.write(acme, 'other', 'a', bytes(1))
  await client.open('acme', 's1', { allowedMounts: ['files'], profile: 'coder', runtime: 'general' })
  assert.deepEqual(
    (await client.mounts(one)).map(({ name }) => name),
    ['files', 'scratch'],
  )
  for (const mount of ['other', 'unknown']) {
    await assert.rejects(client.list(one, mount, ''), {
      code: 'mount_not_allowed',
      message: 'The session may use these mounts: files, scratch.',
    })
    await assert.rejects(client.write(one, mount, 'b', bytes(1)), { code: 'mount_not_allowed' })
  }
  assert.deepEqual(
    (await client.search(one, { q: 'a', in: 'name' })).matches.map(({ mount }) => mount),
    ['files'],
  )
  for (const lease of [{ allowedMounts: [] }, {}]) {
    assert.deepEqual((await client.open('acme', 's1', lease)).allowedMounts, [])
    assert.equal((await client.list(one, 'other', '')).entries.length, 1)
  }
  const shown = await client.open('acme', 's1', { profile: 'coder', runtime: 'general', allowedMounts: ['files'] })
  assert.deepEqual(
    [shown.profile, shown.runtime, shown.state, shown.allowedMounts],
    ['coder', 'general', 'open', ['files']],
  )
})

test('bytes, files and sessions have limits, which uploads at once do not pass together', async (t) => {
  const settings = { mounts, sessionBytes: 100, sessionEntries: 3, fileBytes: 60 }
  const { client } = await testVfs(t, { settings })
  await client.open('acme', 's1', { limits: { bytes: 150, entries: 100, sessions: 2 } })
  await assert.rejects(client.write(one, 'scratch', 'large', bytes(61)), { code: 'body_too_large' })
  const stream = async function* () {
    for (let i = 0; i < 100; i++) yield Buffer.alloc(10)
  }
  await assert.rejects(client.write(one, 'scratch', 'large', { body: stream() }), { code: 'body_too_large' })
  const tried = await Promise.allSettled(['a', 'b', 'c'].map((path) => client.write(one, 'scratch', path, bytes(40))))
  assert.equal(tried.filter(({ status }) => status === 'fulfilled').length, 2)
  for (const result of tried)
    if (result.status === 'rejected') assert.equal((result.reason as { code: string }).code, 'limit_exceeded')
  assert.deepEqual(await client.usage('acme'), { bytes: 80, entries: 2, sessions: 1 })
  const [kept] = (await client.list(one, 'scratch', '')).entries
  await client.write(one, 'scratch', kept!.path, bytes(10))
  assert.equal((await client.usage('acme')).bytes, 50)
  await client.open('acme', 's2', {})
  await client.write({ ...acme, sessionId: 's2' }, 'scratch', 'a', bytes(60))
  await client.write(one, 'scratch', 'e', bytes(40))
  // The session has room, its tenant has not.
  await assert.rejects(client.write({ ...acme, sessionId: 's2' }, 'scratch', 'b', bytes(1)), {
    code: 'limit_exceeded',
    message: /vfsBytes/,
  })
  await assert.rejects(client.write(one, 'scratch', 'f', bytes(0)), { code: 'limit_exceeded', message: /3 files/ })
  await assert.rejects(client.open('acme', 's3', {}), { code: 'limit_exceeded', message: /vfsSessions/ })
  await client.close('acme', 's2')
  await until(async () => (await client.usage('acme')).bytes === 90, 'what the closed session had is given back')
  await client.open('acme', 's3', {})
})

test('a mount over objects has the limits of objects that came with the newest lease, or those of the role file', async (t) => {
  const { client } = await testVfs(t, { settings: { mounts } })
  await client.write(acme, 'other', 'a', bytes(40))
  await client.open('acme', 's1', { limits: { objects: 2, objectBytes: 100 } })
  await assert.rejects(client.write(acme, 'other', 'b', bytes(61)), { code: 'limit_exceeded', message: /objectBytes/ })
  await client.write(acme, 'other', 'b', bytes(60))
  await assert.rejects(client.write(one, 'other', 'c', bytes(0)), { code: 'limit_exceeded', message: /objects/ })
  await client.write({ tenantId: 'globex' }, 'other', 'a', bytes(200))
  // A runner of an earlier release sends none of objects.
  await client.open('acme', 's1', { limits: { sessions: 5 } })
  await client.write(acme, 'other', 'c', bytes(200))
})

test('uploads that a tenant has under way have so many bytes together, and others have room', async (t) => {
  const { client, dir } = await testVfs(t, { settings: { mounts, fileBytes: 60 } })
  const gate = Promise.withResolvers<void>()
  const body = async function* () {
    yield Buffer.alloc(50)
    await gate.promise
  }
  const slow = ['a', 'b'].map((path) => client.write(acme, 'files', path, { body: body() }))
  const incoming = join(dir, 'objects/.incoming')
  const arrived = async (): Promise<number[]> => {
    const names = await readdir(incoming).catch(() => [])
    return Promise.all(names.map(async (name) => (await stat(join(incoming, name))).size))
  }
  await until(async () => (await arrived()).join() === '50,50', 'both are under way')
  await assert.rejects(client.write(acme, 'files', 'more', bytes(30)), { code: 'limit_reached' })
  await client.write({ tenantId: 'globex' }, 'files', 'more', bytes(30))
  gate.resolve()
  await Promise.all(slow)
  await client.write(acme, 'files', 'more', bytes(60))
})

test('uploads under way have so many bytes over all tenants, and who has none finds room', async (t) => {
  const gate = Promise.withResolvers<void>()
  t.after(() => gate.resolve())
  const { client, dir } = await testVfs(t, { settings: { mounts, fileBytes: 100, uploadBytes: 240 } })
  const stream = async function* (count: number, parts = 1) {
    for (let i = 0; i < parts; i++) yield Buffer.alloc(count)
    await gate.promise
  }
  const incoming = join(dir, 'objects/.incoming')
  const arrived = async (): Promise<number> => {
    const names = await readdir(incoming).catch(() => [])
    return (await Promise.all(names.map(async (name) => (await stat(join(incoming, name))).size))).reduce(
      (a, b) => a + b,
      0,
    )
  }
  const writes: Promise<unknown>[] = []
  for (const [i, tenantId] of ['acme', 'globex', 'initech'].entries()) {
    writes.push(client.write({ tenantId }, 'files', 'slow', { body: stream(60) }))
    await until(async () => (await arrived()) === 60 * (i + 1), 'it is under way')
  }
  const full = { code: 'storage_unavailable', status: 503, message: /no room for this one/ }
  // Of the 60 bytes that are left, one who has some gets no more, and one who has none gets half, announced or not.
  await assert.rejects(client.write(acme, 'files', 'more', bytes(1)), full)
  await assert.rejects(client.write({ tenantId: 'hooli' }, 'files', 'more', bytes(31)), full)
  await assert.rejects(client.write({ tenantId: 'hooli' }, 'files', 'more', { body: stream(10, 4) }), full)
  await client.write({ tenantId: 'hooli' }, 'files', 'more', bytes(30))
  gate.resolve()
  await Promise.all(writes)
  await client.write(acme, 'files', 'more', bytes(100))
  await assert.rejects(testVfs(t, { settings: { mounts, fileBytes: 100, uploadBytes: 199 } }), /twice `fileBytes`/)
})

test('what a session read and wrote is on record, the newest first, also after its end', async (t) => {
  const { client, url, signer } = await testVfs(t, { settings: { mounts } })
  await client.open('acme', 's1', {})
  await client.write(one, 'files', 'a', bytes(5))
  for await (const _ of (await client.read(one, 'files', 'a', { range: { from: 1, to: 2 } }))!.body);
  await client.read(one, 'files', 'none')
  await client.list(one, 'files', '')
  await client.search(one, { q: 'word' })
  await client.remove(one, 'files', 'a')
  const { createVfsClient } = await import('../client.ts')
  assert.ok(createVfsClient({ baseUrl: url, signer }))
  const ask = async (query: string) => {
    const { proofHeaders } = await import('../client.ts')
    const target = `/vfs/sessions/s1/audit${query}`
    const reply = await fetch(url + target, {
      headers: proofHeaders(signer, { tenant: 'acme', method: 'GET', target, session: '', digest: '' }),
    })
    return {
      status: reply.status,
      body: (await reply.json()) as { entries: Record<string, unknown>[]; cursor?: string },
    }
  }
  await client.close('acme', 's1')
  const { body } = await ask('')
  assert.deepEqual(
    body.entries.map(({ operation, mount, path, bytes: count, outcome }) =>
      [operation, mount, path, count, outcome].filter((one) => one !== undefined),
    ),
    [
      ['delete', 'files', 'a', 'ok'],
      ['search', 'word', 'ok'],
      ['list', 'files', '', 'ok'],
      ['read', 'files', 'none', 'not_found'],
      ['read', 'files', 'a', 2, 'ok'],
      ['write', 'files', 'a', 5, 'ok'],
    ],
  )
  const first = await ask('?limit=4')
  const second = await ask(`?limit=4&cursor=${first.body.cursor}`)
  assert.deepEqual([...first.body.entries, ...second.body.entries], body.entries)
  assert.equal(second.body.cursor, undefined)
})

test('nothing is kept of a session that never was, whatever else is wrong with the request', async (t) => {
  const { client, dir } = await testVfs(t, { settings: { mounts } })
  const never = { ...acme, sessionId: 'never' }
  const unknown = { code: 'no vfs session' }
  await assert.rejects(client.list(never, 'files', 'a\\b'), unknown)
  await assert.rejects(client.write(never, 'files', 'a\\b', bytes(1)), unknown)
  await assert.rejects(client.search(never, { q: 'a', path: 'a\\b' }), unknown)
  await client.open('acme', 's1', {})
  await assert.rejects(client.list(one, 'files', 'a\\b'), { code: 'invalid_path' })
  const audits = async () => readdir(join(dir, 'vfs/tenants/+acme/audit')).catch(() => [])
  await until(async () => (await audits()).length > 0, 'the operation of the open session is on record')
  assert.deepEqual(await audits(), ['s1.jsonl'])
})

test('sessions and their files outlive the server; what a killed one left half done is swept', async (t) => {
  const before = await testVfs(t, { settings: { mounts } })
  await before.client.open('acme', 's1', { allowedMounts: ['files'] })
  await before.client.write(one, 'scratch', 'kept', bytes(3))
  await before.client.open('acme', 's2', {})
  await before.client.write({ ...acme, sessionId: 's2' }, 'scratch', 'lost', bytes(3))
  await before.kernel.stop()
  const records = join(before.dir, 'vfs/tenants/+acme/sessions')
  // This is what a process leaves that dies while it closes a session, writes a record, takes an upload, or appends to the audit.
  const { rm } = await import('node:fs/promises')
  await rm(join(records, 's2.json'))
  await writeFile(join(records, 's1.json.1234'), '{"sess')
  await writeFile(join(before.dir, 'vfs/files/.incoming/half'), 'half')
  const audit = join(before.dir, 'vfs/tenants/+acme/audit/s1.jsonl')
  await writeFile(audit, `${await readFile(audit, 'utf8')}{"n":9,"at":"20`)
  const { client } = await testVfs(t, { settings: { mounts }, dir: before.dir })
  assert.deepEqual((await client.session('acme', 's1'))?.allowedMounts, ['files'])
  assert.deepEqual(
    (await client.list(one, 'scratch', '')).entries.map(({ path }) => path),
    ['kept'],
  )
  await until(
    async () => (await client.usage('acme')).bytes === 3,
    'the files of the session that was being closed are gone',
  )
  assert.deepEqual(await readdir(records), ['s1.json'])
  assert.deepEqual(await readdir(join(before.dir, 'vfs/files/.incoming')), [])
  await client.write(one, 'scratch', 'more', bytes(1))
})

test('of an opening and a closing at once the last one holds, also after a restart', async (t) => {
  const { client, dir, kernel } = await testVfs(t, { settings: { mounts } })
  await client.open('acme', 's1', {})
  await Promise.all([client.open('acme', 's1', { allowedMounts: ['files'] }), client.close('acme', 's1')])
  const open = (await client.session('acme', 's1')) !== undefined
  await kernel.stop()
  assert.equal((await readdir(join(dir, 'vfs/tenants/+acme/sessions'))).length > 0, open)
})

test('a session that nobody uses is closed, and one that is erased leaves nothing', async (t) => {
  const before = await testVfs(t, { settings: { mounts } })
  for (const id of ['s1', 's2']) await before.client.open('acme', id, {})
  await before.client.write(one, 'scratch', 'a', bytes(3))
  await before.kernel.stop()
  const old = new Date(Date.now() - 3_600_000)
  await utimes(join(before.dir, 'vfs/tenants/+acme/sessions/s1.json'), old, old)
  const found: ReadonlyMap<string, TenantDataStore>[] = []
  const probe = definePlugin({
    name: 'data-probe',
    requires: { data: TenantData },
    setup: async ({ deps }) => (found.push(deps.data), {}),
  })
  const { client } = await testVfs(t, { settings: { mounts, idle: '10m' }, dir: before.dir, plugins: [probe] })
  await until(
    async () => (await client.usage('acme')).sessions === 1 && (await client.usage('acme')).bytes === 0,
    'the idle session is closed',
  )
  assert.equal(await client.session('acme', 's1'), undefined)
  assert.ok(await client.session('acme', 's2'))
  const { erase } = found[0]!.get('vfs')!
  assert.deepEqual(await erase('acme', new AbortController().signal), { deleted: 1, more: false })
  assert.deepEqual(await readdir(join(before.dir, 'vfs/tenants')), [])
  assert.equal(await client.session('acme', 's2'), undefined)
})

test('under a legal hold nothing is deleted by age, also after a start at which nobody says so', async (t) => {
  const before = await testVfs(t, { settings: { mounts } })
  await before.client.open('acme', 's1', {})
  await before.client.write(one, 'scratch', 'a', bytes(3))
  await before.client.hold('acme', true)
  await before.kernel.stop()
  const old = new Date(Date.now() - 3_600_000)
  const audit = join(before.dir, 'vfs/tenants/+acme/audit/s1.jsonl')
  for (const file of [audit, join(before.dir, 'vfs/tenants/+acme/sessions/s1.json')]) await utimes(file, old, old)
  const settings = { mounts, idle: '1s', auditFor: '10m', sweepEvery: '1s' }
  const { client } = await testVfs(t, { settings, dir: before.dir })
  // A session of another tenant is closed by one sweep, and the next one by another: so the first has been everywhere.
  for (const id of ['g1', 'g2']) {
    await client.open('globex', id, {})
    await until(async () => (await client.usage('globex')).sessions === 0, 'an idle session is closed')
  }
  assert.equal((await client.session('acme', 's1'))?.bytes, 3)
  assert.ok((await stat(audit)).size > 0)
  await assert.rejects(client.erase('acme'), { status: 409, code: 'legal_hold' })
  await client.hold('acme', false)
  await until(async () => (await client.usage('acme')).bytes === 0, 'the hold is lifted')
  assert.equal(await client.session('acme', 's1'), undefined)
  await until(async () => (await stat(audit).catch(() => undefined)) === undefined, 'the audit expires')
})

test('the audits of a tenant have so many bytes, closed sessions included; the oldest go first, and none under a hold', async (t) => {
  const block = 4_096
  const before = await testVfs(t, { settings: { mounts } })
  const used = async ({ client }: typeof before, tenantId: string, id: string) => {
    await client.open(tenantId, id, {})
    await client.write({ tenantId, sessionId: id }, 'scratch', 'a', bytes(1))
    await client.close(tenantId, id)
  }
  const folder = (tenantId: string) => join(before.dir, `vfs/tenants/+${tenantId}/audit`)
  const kept = async (tenantId: string) => (await readdir(folder(tenantId))).toSorted()
  const names = (from: number, to: number) =>
    Array.from({ length: to - from + 1 }, (_, i) => `s${from + i}.jsonl`).toSorted()
  await used(before, 'globex', 's1')
  for (let i = 1; i <= 10; i++) {
    await used(before, 'acme', `s${i}`)
    const at = new Date(Date.now() - (100 - i) * 60_000)
    await utimes(join(folder('acme'), `s${i}.jsonl`), at, at)
  }
  assert.deepEqual(await kept('acme'), names(1, 10))
  await before.kernel.stop()
  const settings = { mounts, auditBytes: 8 * block }
  const server = await testVfs(t, { settings, dir: before.dir })
  // Six of eight stay, so that not each further one makes all be looked at.
  await until(async () => (await kept('acme')).join() === names(5, 10).join(), 'the start has removed the oldest')
  await used(server, 'acme', 's11')
  assert.deepEqual(await kept('acme'), names(5, 11))
  await used(server, 'acme', 's12')
  await until(
    async () => (await kept('acme')).join() === names(7, 12).join(),
    'a further one takes the place of the oldest',
  )
  await server.client.hold('acme', true)
  await used(server, 'acme', 's13')
  await used(server, 'acme', 's14')
  await server.client.open('acme', 's15', {})
  await server.client.write({ ...acme, sessionId: 's15' }, 'scratch', 'a', bytes(1))
  const held = { code: 'limit_exceeded', message: /a legal hold keeps them/ }
  await assert.rejects(server.client.open('acme', 'more', {}), held)
  await server.client.open('acme', 's15', {})
  await server.client.write({ ...acme, sessionId: 's15' }, 'scratch', 'b', bytes(1))
  assert.deepEqual(await kept('acme'), names(7, 15))
  await server.kernel.stop()
  let opened = 0
  const again = await testVfs(t, { settings, dir: before.dir })
  await until(
    () =>
      again.client.open('acme', `more${opened++}`, {}).then(
        () => false,
        ({ code }) => code === held.code,
      ),
    'the start counts under a hold as well',
  )
  await again.client.hold('acme', false)
  await again.client.open('acme', 'more', {})
  assert.ok((await kept('acme')).length <= 6)
  assert.deepEqual(await kept('globex'), ['s1.jsonl'])
})

test('search finds names and lines within its bounds, and no text in what is none', async (t) => {
  const { client } = await testVfs(t, { settings: { mounts } })
  const put = (path: string, text: string | Buffer) => client.write(acme, 'files', path, { body: Buffer.from(text) })
  await put('notes/Marmalade.md', 'first\nsecond')
  await put('notes/b.md', `${'x'.repeat(100_000)}\nThe jar of MARMALADE is empty.\n`)
  await put('image.bin', Buffer.from('\0marmalade'))
  // The match lies across two chunks, in a line that is longer than the part that is searched at once.
  await put('notes/long.md', `one\n${'x'.repeat(131_064)}Pectin${'y'.repeat(70_000)} sugar${'z'.repeat(70_000)}`)
  await put('ü/c', 'nothing')
  const found = await client.search(acme, { q: 'marmalade', mount: 'files' })
  assert.deepEqual(found, {
    matches: [
      { mount: 'files', path: 'notes/Marmalade.md', bytes: 12 },
      { mount: 'files', path: 'notes/b.md', bytes: 100_032, line: 2, text: 'The jar of MARMALADE is empty.' },
    ],
    complete: true,
  })
  for (const q of ['pectin', 'SUGAR']) {
    const { matches } = await client.search(acme, { q, mount: 'files' })
    assert.deepEqual([matches[0]?.path, matches[0]?.line], ['notes/long.md', 2], q)
  }
  assert.equal((await client.search(acme, { q: 'marmalade', in: 'text' })).matches.length, 1)
  assert.equal((await client.search(acme, { q: 'marmalade', path: 'ü', mount: 'files' })).matches.length, 0)
  assert.deepEqual(await client.search(acme, { q: '.', limit: 1, in: 'name', mount: 'files' }), {
    matches: [{ mount: 'files', path: 'image.bin', bytes: 10 }],
    complete: false,
  })
})

test('a list is read page by page, whatever is between', async (t) => {
  const { client } = await testVfs(t, { settings: { mounts } })
  await client.open('acme', 's1', {})
  const paths = ['a', 'a-b', 'a/1', 'a/2', 'b/1/x', 'b/2', 'c', 'd.txt', 'é', '😀'].filter((path) => path !== 'a')
  for (const path of paths.slice(0, 5)) await client.write(acme, 'files', path, bytes(1))
  for (const path of paths.slice(3)) await client.write(one, 'files', path, bytes(2))
  await client.remove(one, 'files', 'a/1')
  for (const recursive of [true, false]) {
    const seen: string[] = []
    for (let cursor: string | undefined, more = true; more;) {
      const page = await client.list(one, 'files', '', {
        recursive,
        limit: 1,
        ...(cursor === undefined ? {} : { cursor }),
      })
      seen.push(...page.entries.map(({ path, kind }) => (kind === 'folder' ? `${path}/` : path)))
      cursor = page.cursor
      more = cursor !== undefined
    }
    const wanted = recursive ? paths.filter((path) => path !== 'a/1') : ['a-b', 'a/', 'b/', 'c', 'd.txt', 'é', '😀']
    assert.deepEqual(seen, wanted)
  }
  for (const cursor of ['AAAA', Buffer.from('../x').toString('base64url')])
    await assert.rejects(client.list(one, 'files', '', { cursor }), { code: 'invalid_request' })
})
