import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { link, mkdir, mkdtemp, readdir, readFile, rename, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import { promisify } from 'node:util'
import { testVfs, until } from '#testing'
import { FolderTree } from '../server/folder.ts'
import { FolderUse } from '../server/folder-use.ts'
import { placeOf } from '../server/tree.ts'

const acme = { tenantId: 'acme' }
const skip = process.platform === 'linux' ? false : 'folders are mounted on Linux alone'

async function withFolder(t: TestContext, settings: object = {}) {
  const outside = await mkdtemp(join(tmpdir(), 'ao-vfs-folder-'))
  t.after(() => rm(outside, { recursive: true, force: true }))
  const folder = join(outside, 'mounted')
  await mkdir(join(folder, 'dir'), { recursive: true })
  await writeFile(join(outside, 'secret'), 'secret')
  await writeFile(join(folder, 'dir/a.md'), 'hello')
  const { client } = await testVfs(t, {
    settings: { mounts: { docs: { kind: 'folder', path: folder, tenants: ['acme'], ...settings } } },
  })
  const read = async (path: string) => {
    const file = await client.read(acme, 'docs', path)
    return file && (await text(file.body as AsyncIterable<Buffer>))
  }
  const all = async () => (await client.list(acme, 'docs', '', { recursive: true })).entries.map(({ path }) => path)
  return { outside, folder, client, read, all }
}

test('a file deeper than one may be written is listed, read and deleted, and not written', { skip }, async (t) => {
  const { folder, client, read, all } = await withFolder(t)
  const [deep, at] = [`${'a/'.repeat(63)}a`, 'a/'.repeat(32).slice(0, -1)]
  await mkdir(join(folder, dirname(deep)), { recursive: true })
  await writeFile(join(folder, deep), 'old')
  assert.deepEqual(await all(), [deep, 'dir/a.md'])
  assert.deepEqual(
    (await client.list(acme, 'docs', at)).entries.map(({ path }) => path),
    [`${at}/a`],
  )
  assert.equal(await read(deep), 'old')
  for (const path of [deep, `${'b/'.repeat(32)}b`])
    await assert.rejects(client.write(acme, 'docs', path, { body: Buffer.from('x') }), { code: 'invalid_path' }, path)
  assert.equal(await read(deep), 'old')
  assert.equal(await client.remove(acme, 'docs', deep), true)
  assert.deepEqual(await all(), ['dir/a.md'])
})

test('a folder: what is in it is read and written whole, and folders go with their last file', { skip }, async (t) => {
  const { folder, client, read, all } = await withFolder(t)
  const found = await client.read(acme, 'docs', 'dir/a.md')
  assert.deepEqual(
    [found?.entry.contentType, await text(found!.body as AsyncIterable<Buffer>)],
    ['text/markdown', 'hello'],
  )
  const broken = async function* (): AsyncGenerator<Buffer> {
    yield Buffer.from('half')
    throw new Error('the sender broke off')
  }
  await assert.rejects(client.write(acme, 'docs', 'dir/a.md', { body: broken() }))
  assert.equal(await read('dir/a.md'), 'hello')
  await client.write(acme, 'docs', 'run.md', { body: Buffer.from('exec'), contentType: 'text/x; executable=1' })
  assert.equal((await stat(join(folder, 'run.md'))).mode & 0o777, 0o755)
  assert.equal((await client.read(acme, 'docs', 'run.md'))?.entry.contentType, 'text/markdown; executable=1')
  await client.remove(acme, 'docs', 'run.md')
  const written = await client.write(acme, 'docs', 'new/b', { body: Buffer.from('b'), ifNoneMatch: '*' })
  await assert.rejects(client.write(acme, 'docs', 'new/b', { body: Buffer.from('c'), ifMatch: found!.entry.etag! }), {
    code: 'precondition_failed',
  })
  await client.write(acme, 'docs', 'new/b', { body: Buffer.from('c'), ifMatch: written.etag! })
  assert.equal(await readFile(join(folder, 'new/b'), 'utf8'), 'c')
  await assert.rejects(client.write(acme, 'docs', 'new', { body: Buffer.from('x') }), { code: 'is_folder' })
  await assert.rejects(client.write(acme, 'docs', 'new/b/c', { body: Buffer.from('x') }), { code: 'is_file' })
  await assert.rejects(client.read(acme, 'docs', 'new'), { code: 'is_folder' })
  await assert.rejects(client.write(acme, 'docs', 'x'.repeat(300), { body: Buffer.from('x') }), {
    code: 'invalid_path',
  })
  assert.deepEqual(await all(), ['dir/a.md', 'new/b'])
  await client.remove(acme, 'docs', 'new/b')
  assert.deepEqual((await readdir(folder)).toSorted(), ['.agent-orc-incoming', 'dir'])
  assert.deepEqual(await readdir(join(folder, '.agent-orc-incoming')), [])
})

test('a folder with more entries than are held at once is walked whole, from any place', { skip }, async (t) => {
  const { folder } = await withFolder(t)
  const files = ['z', 'b-', 'b/1', 'b/2', 'b/c/3', 'é', '\u{1f600}', '\ufb00', 'a', 'dir2/x', 'm1', 'm2', 'm3', 'm4']
  for (const path of files) {
    await mkdir(dirname(join(folder, path)), { recursive: true })
    await writeFile(join(folder, path), path)
  }
  for (let i = 0; i < 9; i++) await mkdir(join(folder, `empty${i}`))
  const walked = async (after: string, recursive: boolean): Promise<string[]> => {
    const paths: string[] = []
    for await (const entry of new FolderTree(folder, 2).walk('', { after, recursive, limit: 1 })) {
      paths.push(placeOf(entry))
    }
    return paths
  }
  const inOrder = (paths: string[]) => paths.sort((a, b) => Buffer.from(a).compare(Buffer.from(b)))
  const all = inOrder(['dir/a.md', ...files])
  const folders = inOrder([...new Set(all.map((path) => path.replace(/\/.*/, '/')))])
  for (const [recursive, whole] of [
    [true, all],
    [false, folders],
  ] as const) {
    for (const from of [-1, ...whole.keys()]) {
      assert.deepEqual(await walked(whole[from] ?? '', recursive), whole.slice(from + 1))
    }
  }
})

test('no link, pipe or step leads out of a folder, or is shown', { skip }, async (t) => {
  const { outside, folder, client, read, all } = await withFolder(t)
  await symlink(join(outside, 'secret'), join(folder, 'link'))
  await symlink(outside, join(folder, 'out'))
  await symlink('..', join(folder, 'dir/up'))
  await promisify(execFile)('mkfifo', [join(folder, 'pipe')])
  assert.deepEqual(await all(), ['dir/a.md'])
  assert.deepEqual(
    (await client.list(acme, 'docs', '')).entries.map(({ path }) => path),
    ['dir'],
  )
  for (const path of [
    'link',
    'out/secret',
    'dir/up/secret',
    'dir/up/mounted/dir/a.md',
    'pipe',
    '.agent-orc-incoming/x',
  ]) {
    assert.equal(await read(path), undefined, path)
    assert.equal(await client.remove(acme, 'docs', path), false, path)
  }
  for (const path of ['out/new', 'dir/up/new', '.agent-orc-incoming/x']) {
    await assert.rejects(
      client.write(acme, 'docs', path, { body: Buffer.from('x') }),
      /is_file|invalid_path|file, so nothing|path is/i,
      path,
    )
  }
  for (const path of ['../secret', 'dir/../../secret', '/etc/passwd', 'dir//a.md', 'a\\b', 'a\nb']) {
    await assert.rejects(client.read(acme, 'docs', path), { code: 'invalid_path' }, path)
    await assert.rejects(client.write(acme, 'docs', path, { body: Buffer.from('x') }), { code: 'invalid_path' }, path)
  }
  // A write replaces the link by a file, and leaves the target of the link as it is.
  await client.write(acme, 'docs', 'link', { body: Buffer.from('mine') })
  assert.equal(await read('link'), 'mine')
  assert.deepEqual(
    [await readFile(join(outside, 'secret'), 'utf8'), (await readdir(outside)).toSorted()],
    ['secret', ['mounted', 'secret']],
  )
  await link(join(folder, 'dir/a.md'), join(folder, 'hard'))
  assert.equal(await read('hard'), 'hello')
})

test(
  'a folder that is swapped for a link while it is read gives nothing away',
  { skip, timeout: 30_000 },
  async (t) => {
    const { outside, folder, read } = await withFolder(t)
    await mkdir(join(outside, 'evil'))
    await writeFile(join(outside, 'evil/a.md'), 'secret')
    let on = true
    const swapping = (async () => {
      while (on) {
        await rename(join(folder, 'dir'), join(folder, 'kept'))
        await symlink(join(outside, 'evil'), join(folder, 'dir'))
        await rm(join(folder, 'dir'))
        await rename(join(folder, 'kept'), join(folder, 'dir'))
      }
    })()
    const seen = new Set<string | undefined>()
    for (let i = 0; i < 300; i++) seen.add(await read('dir/a.md'))
    on = false
    await swapping
    assert.deepEqual(
      [...seen].filter((one) => one !== undefined && one !== 'hello'),
      [],
    )
    assert.ok(seen.has('hello'))
  },
)

test(
  'a mount that is read-only is not written, and with copyOnWrite only in the layer of a session',
  { skip },
  async (t) => {
    const { folder, client, read } = await withFolder(t, { readOnly: true, copyOnWrite: true })
    await assert.rejects(client.write(acme, 'docs', 'b', { body: Buffer.from('x') }), { code: 'read_only_mount' })
    await assert.rejects(client.remove(acme, 'docs', 'dir/a.md'), { code: 'read_only_mount' })
    await client.open('acme', 's1', {})
    const session = { ...acme, sessionId: 's1' }
    assert.equal((await client.mounts(session)).find(({ name }) => name === 'docs')?.readOnly, false)
    await client.write(session, 'docs', 'dir/a.md', { body: Buffer.from('changed') })
    await client.remove(session, 'docs', 'dir/a.md')
    assert.deepEqual((await client.list(session, 'docs', '')).entries, [])
    await assert.rejects(
      client
        .write(session, 'docs', 'dir/a.md/x', { body: Buffer.from('x') })
        .then(() => client.read(session, 'docs', 'dir/a.md')),
      { code: 'is_folder' },
    )
    assert.equal(await read('dir/a.md'), 'hello')
    assert.deepEqual(await readdir(folder), ['dir'])
  },
)

test('a folder has as many bytes and files as its mount says, with those of other programs', { skip }, async (t) => {
  const { folder, client } = await withFolder(t, { mostBytes: 40, mostFiles: 4 })
  await symlink(join(folder, 'dir'), join(folder, 'link'))
  const put = (path: string, size: number) => client.write(acme, 'docs', path, { body: Buffer.alloc(size) })
  const full = (message: RegExp) => ({ code: 'limit_exceeded', status: 409, message })
  // The 5 bytes that another program wrote count.
  await assert.rejects(put('b', 36), full(/may have 40 bytes/))
  await put('b', 35)
  await assert.rejects(put('c', 1), full(/may have 40 bytes/))
  assert.deepEqual(await readdir(join(folder, '.agent-orc-incoming')), [])
  await client.remove(acme, 'docs', 'b')
  const tried = await Promise.allSettled(['b', 'c', 'd', 'e', 'f'].map((path) => put(path, 10)))
  assert.equal(tried.filter(({ status }) => status === 'fulfilled').length, 3, 'not more together either')
  await assert.rejects(put('g', 0), full(/may have 4 files/))
  const [kept] = (await client.list(acme, 'docs', '')).entries.filter(({ kind }) => kind === 'file')
  await client.remove(acme, 'docs', kept!.path)
  await assert.rejects(put('g', 16), full(/may have 40 bytes/))
  await put('g', 15)
})

test('a file that is deeper than one may be written counts as well', { skip }, async (t) => {
  const { folder, client } = await withFolder(t, { mostBytes: 40 })
  const deep = 'a/'.repeat(60)
  await mkdir(join(folder, deep), { recursive: true })
  await writeFile(join(folder, deep, 'old'), Buffer.alloc(30))
  await assert.rejects(client.write(acme, 'docs', 'b', { body: Buffer.alloc(6) }), { code: 'limit_exceeded' })
  await client.write(acme, 'docs', 'b', { body: Buffer.alloc(5) })
})

test(
  'a path that the file system cannot have leaves no folders behind, which nothing would count',
  { skip },
  async (t) => {
    const { folder, client } = await withFolder(t)
    const long = 'x'.repeat(256)
    for (const path of [`new/a/b/${long}`, `new/a/${long}/b`])
      await assert.rejects(client.write(acme, 'docs', path, { body: Buffer.from('x') }), { code: 'invalid_path' }, path)
    assert.equal((await readdir(folder)).includes('new'), false)
    await client.write(acme, 'docs', `new/${long.slice(1)}`, { body: Buffer.from('x') })
  },
)

test('what other programs have done in a folder is counted after ten minutes', async (t) => {
  t.mock.timers.enable({ apis: ['Date'] })
  let [found, times] = [{ bytes: 5, entries: 1 }, 0]
  const use = new FolderUse({ use: async () => (times++, { ...found }) })
  const most = { bytes: 10, entries: 10 }
  const { counts } = await use.account(most)
  counts.bytes += 2
  found = { bytes: 3, entries: 2 }
  await use.account(most)
  t.mock.timers.tick(10 * 60_000 + 1)
  await use.account(most)
  await use.account(most)
  await until(async () => counts.entries === 2, 'it is counted again')
  assert.deepEqual([counts, times], [{ bytes: 3, entries: 2 }, 2])
})

test('a folder that tenants write without bounds is a risk of the role', { skip }, async (t) => {
  const dir = await mkdtemp(join(tmpdir(), 'ao-vfs-each-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  const each = { kind: 'folder', path: join(dir, '{tenant}'), tenants: ['*'] }
  const bounds = { mostBytes: 0, mostFiles: 0 }
  const mounts = {
    open: each,
    half: { ...each, mostBytes: 1_000 },
    bounded: { ...each, ...bounds },
    read: { ...each, readOnly: true },
    objects: { kind: 'objects', tenants: ['*'] },
  }
  const { kernel } = await testVfs(t, { settings: { mounts } })
  const risks = kernel.logs.flatMap(({ risk }) => (typeof risk === 'string' ? [risk] : []))
  assert.deepEqual(
    risks.map((risk) => /^vfs: the mount '(\w+)' .*; set its mostBytes and mostFiles, or readOnly$/.exec(risk)?.[1]),
    ['open', 'half'],
  )
})

test('mounts that would mix the files of tenants do not start', { skip }, async (t) => {
  const start = (mounts: object) => testVfs(t, { settings: { mounts } })
  const shared = { kind: 'folder', path: '/tmp/x', tenants: ['*'] }
  await assert.rejects(start({ docs: shared }), /would be written by several tenants/)
  await assert.rejects(start({ docs: { ...shared, path: 'relative' } }), /needs `path`/)
  await assert.rejects(start({ scratch: { ...shared, readOnly: true } }), /has the name of the scratch space/)
  await assert.rejects(start({ 'a b': { ...shared, readOnly: true } }), /has no name that mounts can have/)
  await assert.rejects(start({ s: { kind: 's3', tenants: ['acme'] } }), /needs `bucket`/)
  await assert.rejects(start({ s: { kind: 'objects', mostBytes: 1, tenants: ['acme'] } }), /bound folders only/)
  const dir = await mkdtemp(join(tmpdir(), 'ao-vfs-each-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  const { client } = await start({ each: { ...shared, path: join(dir, '{tenant}') } })
  for (const tenantId of ['acme', 'globex'])
    await client.write({ tenantId }, 'each', 'a', { body: Buffer.from(tenantId) })
  assert.equal(await readFile(join(dir, 'globex/a'), 'utf8'), 'globex')
})
