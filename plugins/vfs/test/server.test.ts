import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { text } from 'node:stream/consumers'
import type { VfsClient, VfsFile, VfsView } from '#contracts/vfs'
import { testVfs } from '#testing'
import { Sessions } from '../server/sessions.ts'

const acme: VfsView = { tenantId: 'acme' }
const inSession = (sessionId: string, tenantId = 'acme'): VfsView => ({ tenantId, sessionId })

const textOf = async (file: VfsFile | undefined): Promise<string | undefined> =>
  file && (await text(file.body as AsyncIterable<Buffer>))
const pathsIn = async (client: VfsClient, view: VfsView, mount: string, folder = '', recursive = true) =>
  (await client.list(view, mount, folder, { recursive })).entries.map(({ path, kind }) =>
    kind === 'folder' ? `${path}/` : path,
  )

const objects = { files: { kind: 'objects', tenants: ['*'] } }

test('a file is written, read in part, listed, replaced by its etag and deleted', async (t) => {
  const { client } = await testVfs(t, { settings: { mounts: objects } })
  const written = await client.write(acme, 'files', 'a/ü b.txt', {
    body: Buffer.from('hello world'),
    contentType: 'text/plain',
  })
  assert.deepEqual([written.path, written.bytes, written.contentType], ['a/ü b.txt', 11, 'text/plain'])
  assert.equal(await textOf(await client.read(acme, 'files', 'a/ü b.txt')), 'hello world')
  const part = await client.read(acme, 'files', 'a/ü b.txt', { range: { from: 6, to: 8 } })
  assert.deepEqual([await textOf(part), part?.entry.bytes, part?.entry.etag], ['wor', 11, written.etag])
  await assert.rejects(client.read(acme, 'files', 'a/ü b.txt', { range: { from: 11 } }), {
    code: 'range_not_satisfiable',
  })
  assert.deepEqual(await pathsIn(client, acme, 'files', '', false), ['a/'])
  const other = { body: Buffer.from('x') }
  await assert.rejects(client.write(acme, 'files', 'a/ü b.txt', { ...other, ifNoneMatch: '*' }), {
    code: 'precondition_failed',
  })
  await assert.rejects(client.write(acme, 'files', 'a/ü b.txt', { ...other, ifMatch: 'old' }), {
    code: 'precondition_failed',
  })
  await client.write(acme, 'files', 'a/ü b.txt', { ...other, ifMatch: written.etag! })
  await assert.rejects(client.remove(acme, 'files', 'a/ü b.txt', { ifMatch: written.etag! }), {
    code: 'precondition_failed',
  })
  assert.equal(await client.remove(acme, 'files', 'a/ü b.txt'), true)
  assert.equal(await client.remove(acme, 'files', 'a/ü b.txt'), false)
  assert.equal(await client.read(acme, 'files', 'a/ü b.txt'), undefined)
})

test('a stream of any length passes in parts', async (t) => {
  const { client } = await testVfs(t)
  await client.open('acme', 's1', {})
  const body = async function* () {
    for (let i = 0; i < 200; i++) yield Buffer.alloc(64 * 1024, i)
  }
  const { bytes } = await client.write(inSession('s1'), 'scratch', 'large', { body: body() })
  assert.equal(bytes, 200 * 64 * 1024)
  const file = await client.read(inSession('s1'), 'scratch', 'large')
  let at = 0
  for await (const chunk of file!.body) {
    for (const byte of chunk) if (byte !== Math.floor(at++ / 65_536) % 256) assert.fail(`another byte at ${at - 1}`)
  }
  assert.equal(at, bytes)
})

test('a session has its scratch space and its layer; closing drops both, opening again does not', async (t) => {
  const mounts = { files: { kind: 'objects', tenants: ['*'], copyOnWrite: true } }
  const { client } = await testVfs(t, { settings: { mounts } })
  for (const path of ['a', 'dir/b', 'dir/c', 'gone/only'])
    await client.write(acme, 'files', path, { body: Buffer.from(path) })
  await client.open('acme', 's1', { profile: 'coder' })
  await client.open('acme', 's2', {})
  const one = inSession('s1')
  await client.write(one, 'files', 'a', { body: Buffer.from('changed') })
  await client.write(one, 'files', 'dir/new', { body: Buffer.from('new') })
  assert.equal(await client.remove(one, 'files', 'dir/b'), true)
  assert.equal(await client.remove(one, 'files', 'dir/b'), false)
  assert.deepEqual(await client.removeFolder(one, 'files', 'gone'), { deleted: 1, more: false })
  await client.write(one, 'scratch', 'note', { body: Buffer.from('mine') })
  assert.deepEqual(await pathsIn(client, one, 'files'), ['a', 'dir/c', 'dir/new'])
  assert.deepEqual(await pathsIn(client, one, 'files', '', false), ['a', 'dir/'])
  assert.equal(await textOf(await client.read(one, 'files', 'a')), 'changed')
  assert.equal(await client.read(one, 'files', 'dir/b'), undefined)
  for (const view of [acme, inSession('s2')]) {
    assert.deepEqual(await pathsIn(client, view, 'files'), ['a', 'dir/b', 'dir/c', 'gone/only'])
    assert.equal(await textOf(await client.read(view, 'files', 'a')), 'a')
  }
  assert.deepEqual(await pathsIn(client, inSession('s2'), 'scratch'), [])
  // A condition is about what the session sees.
  await assert.rejects(client.write(one, 'files', 'dir/c', { body: Buffer.from('x'), ifNoneMatch: '*' }), {
    code: 'precondition_failed',
  })
  await client.write(one, 'files', 'dir/b', { body: Buffer.from('again'), ifNoneMatch: '*' })
  assert.equal((await client.open('acme', 's1', {})).entries > 0, true)
  assert.equal(await textOf(await client.read(one, 'files', 'dir/b')), 'again')
  await client.close('acme', 's1')
  await client.close('acme', 's1')
  await assert.rejects(client.list(one, 'files', ''), { code: 'no vfs session' })
  const { bytes } = await client.open('acme', 's1', {})
  assert.equal(bytes, 0)
  assert.deepEqual(await pathsIn(client, one, 'files'), ['a', 'dir/b', 'dir/c', 'gone/only'])
  assert.deepEqual(await pathsIn(client, one, 'scratch'), [])
})

/** Sessions whose files are these. */
async function sessionsOver(t: TestContext, files: object): Promise<Sessions> {
  const dir = await mkdtemp(join(tmpdir(), 'ao-vfs-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  return new Sessions({
    dir,
    files: files as never,
    defaults: () => ({ bytes: 1, entries: 1, sessions: 1, objects: 1, objectBytes: 1 }),
    perSession: { bytes: 1, entries: 1 },
    onFailed: assert.fail,
  })
}

test('a part of an erasure ends after about a second with what is gone, and deletes nothing for who has left', async (t) => {
  let asked = 0
  const files = {
    use: async () => ({ bytes: 0, objects: 0 }),
    /** A disk with more files than it could remove in any time. */
    async removeAll(_tenantId: string, _prefix: string, _most: number, signal?: AbortSignal) {
      asked++
      assert.ok(signal, 'it is told when to end')
      let objects = 0
      for (; !signal.aborted; objects++) await new Promise((resolve) => setImmediate(resolve))
      return { bytes: 0, objects, more: true }
    },
  }
  const sessions = await sessionsOver(t, files)
  await sessions.open('acme', 's1', {})
  assert.deepEqual(await sessions.erase('acme', AbortSignal.abort()), { deleted: 0, more: true })
  assert.equal((await sessions.usage('acme')).sessions, 1)
  assert.equal(asked, 0)
  const { deleted, more } = await sessions.erase('acme', new AbortController().signal)
  assert.deepEqual([deleted > 1, more, asked], [true, true, 1])
  assert.equal((await sessions.usage('acme')).sessions, 0)
})

test('a legal hold and an erasure wait for the files of their own tenant only', { timeout: 30_000 }, async (t) => {
  const slow = Promise.withResolvers<void>()
  t.after(() => slow.resolve())
  const files = {
    use: async () => ({ bytes: 0, objects: 0 }),
    async removeAll(tenantId: string) {
      if (tenantId === 'acme') await slow.promise
      return { bytes: 0, objects: 0, more: false }
    },
  }
  const sessions = await sessionsOver(t, files)
  await sessions.open('acme', 's1', {})
  await sessions.close('acme', 's1')
  await sessions.hold('globex', true)
  assert.deepEqual(await sessions.erase('globex', new AbortController().signal), { deleted: 0, more: false })
  const own = sessions.hold('acme', true).then(() => 'held')
  assert.equal(await Promise.race([own, sessions.hold('globex', false).then(() => 'other')]), 'other')
  slow.resolve()
  assert.equal(await own, 'held')
  await sessions.settled()
  // Whoever asked for an erasure may have gone by now.
  const order: string[] = []
  const erased = sessions.unlessHeld('globex', async () =>
    order.push('erased', String(await sessions.isHeld('globex'))),
  )
  await sessions.hold('globex', true)
  assert.deepEqual([order, await erased], [['erased', 'false'], 2])
  assert.equal(await sessions.unlessHeld('globex', assert.fail), undefined)
})
