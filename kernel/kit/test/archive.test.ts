import assert from 'node:assert/strict'
import { mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { isAppError } from '#kernel'
import { archiveLimits, pack, unpack } from '../archive.ts'

async function folderOf(t: Pick<TestContext, 'after'>, files: Readonly<Record<string, string>>): Promise<string> {
  const root = await mkdtemp(join(tmpdir(), 'state-archive-'))
  t.after(() => rm(root, { recursive: true, force: true }))
  const folder = join(root, 'session')
  await mkdir(folder)
  for (const [name, data] of Object.entries(files)) {
    await mkdir(dirname(join(folder, name)), { recursive: true })
    await writeFile(join(folder, name), data)
  }
  return folder
}

async function filesOf(folder: string): Promise<Record<string, string>> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true })
  const files = entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name))
  const pairs = files
    .toSorted()
    .map(async (file) => [file.slice(folder.length + 1), await readFile(file, 'utf8')] as const)
  return Object.fromEntries(await Promise.all(pairs))
}

const all = (): boolean => true

test('exactly the named files go over to another folder, whole, and readable only by their owner', async (t) => {
  const long = `projects/${'x'.repeat(120)}/${'y'.repeat(100)}.jsonl`
  const files = {
    'projects/a/one.jsonl': '{"a":1}\n'.repeat(50_000),
    'projects/empty': '',
    [long]: 'long',
    ünïcode: 'ü',
  }
  const here = await folderOf(t, { ...files, secret: 'stays' })
  const there = join(dirname(await folderOf(t, {})), 'fresh')
  await unpack(await pack(here, Object.keys(files)), there, all)
  assert.deepEqual(await filesOf(there), await filesOf(await folderOf(t, files)))
  assert.equal((await stat(join(there, 'projects/empty'))).mode & 0o777, 0o600)
  assert.equal((await stat(there)).mode & 0o777, 0o700)
})

test('of a file that is being written what it begins with goes over', async (t) => {
  const here = await folderOf(t, { log: 'whole\nhal', other: 'all of it' })
  const there = join(dirname(await folderOf(t, {})), 'fresh')
  const files = [
    { name: 'log', bytes: 6 },
    { name: 'other', bytes: 1_000 },
  ]
  await unpack(await pack(here, files), there, all)
  assert.deepEqual(await filesOf(there), { log: 'whole\n', other: 'all of it' })
})

test('what the folder held before is gone, and nothing is left beside it', async (t) => {
  const here = await folderOf(t, { new: '1' })
  const there = await folderOf(t, { old: '0', new: '0' })
  await unpack(await pack(here, ['new']), there, all)
  assert.deepEqual(await filesOf(there), { new: '1' })
  assert.deepEqual(await readdir(dirname(there)), ['session'])
})

test('the same files give the same bytes', async (t) => {
  const a = await pack(await folderOf(t, { x: '1', y: '2' }), ['x', 'y'])
  assert.deepEqual(a, await pack(await folderOf(t, { y: '2', x: '1' }), ['y', 'x']))
})

test('a link is not followed, and a file that is not there is no empty one', async (t) => {
  const folder = await folderOf(t, { a: '1' })
  await symlink('/etc/hostname', join(folder, 'link'))
  await assert.rejects(pack(folder, ['a', 'link']))
  await assert.rejects(pack(folder, ['a', 'missing']))
  await assert.rejects(pack(folder, ['a', '../a']))
})

test('a state that is too large is not packed', async (t) => {
  const folder = await folderOf(t, { a: 'x'.repeat(2_000), b: 'y' })
  const tooLarge = (error: unknown): boolean => isAppError(error) && error.code === 'state_too_large'
  await assert.rejects(pack(folder, ['a', 'b'], { ...archiveLimits, unpackedBytes: 2_000 }), tooLarge)
  await assert.rejects(pack(folder, ['a', 'b'], { ...archiveLimits, entries: 1 }), tooLarge)
  await assert.rejects(pack(folder, ['a', 'b'], { ...archiveLimits, packedBytes: 20 }), tooLarge)
})

test('a disk that fails is not the fault of the archive', async (t) => {
  const folder = await folderOf(t, { a: '1' })
  const archive = await pack(folder, ['a'])
  await assert.rejects(unpack(archive, join(folder, 'missing/session'), all), (error) => !isAppError(error))
})
