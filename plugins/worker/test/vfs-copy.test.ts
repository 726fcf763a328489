import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { chmod, mkdir, readdir, readFile, rename, rm, stat, symlink, truncate, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { pino } from 'pino'
import { workerErrors } from '../errors.ts'
import { FilesCopy } from '../vfs/copy.ts'
import { MemoryRemote } from './memory-remote.ts'
import { folder } from './support.ts'

const signal = new AbortController().signal

/** A sandbox with the mounts `data` and, read-only, `docs`. */
async function setup(t: TestContext) {
  const outside = await folder(t)
  const root = join(outside, 'workspace', 'vfs')
  await mkdir(join(outside, 'workspace'))
  const remote = new MemoryRemote('data', 'docs')
  remote.readOnly.add('docs')
  const begin = () =>
    new FilesCopy({ root, remote, memory: () => join(outside, 'state', 's.vfs'), log: pino({ level: 'silent' }) })
  const copy = begin()
  const here = (path: string): Promise<string> => readFile(join(root, path), 'utf8')
  const write = async (path: string, text: string): Promise<void> => {
    await mkdir(join(root, path, '..'), { recursive: true })
    await writeFile(join(root, path), text)
  }
  const files = async (mount: string): Promise<string[]> => {
    const entries = await readdir(join(root, mount), { recursive: true, withFileTypes: true })
    return entries
      .flatMap((one) => (one.isFile() ? [join(one.parentPath, one.name).slice(join(root, mount).length + 1)] : []))
      .toSorted()
  }
  return { outside, root, remote, begin, copy, here, write, files, settle: () => copy.settle(signal) }
}

test('files come, changes and deletions go both ways, and what is the same is not copied again', async (t) => {
  const { remote, settle, copy, here, write, files, root } = await setup(t)
  const data = remote.of('data')
  data.set('a.txt', 'a').set('deep/er/b.txt', 'b').set('empty', '')
  remote.of('docs').set('guide.md', 'read me')
  assert.equal(await settle(), '')
  assert.deepEqual(await files('data'), ['a.txt', 'deep/er/b.txt', 'empty'])
  assert.equal(await here('docs/guide.md'), 'read me')
  remote.asked.length = 0
  assert.equal(await settle(), '')
  assert.deepEqual(remote.asked, ['tree'])
  assert.equal(await copy.settleIfTouched(signal), '')
  assert.deepEqual(remote.asked, ['tree'], 'nothing was touched, so nobody is asked')

  await write('data/a.txt', 'a, changed')
  await write('data/new/größe.txt', 'new')
  await write('data/new/nothing', '')
  await rm(join(root, 'data/deep/er/b.txt'))
  assert.equal(await copy.settleIfTouched(signal), '')
  assert.deepEqual(
    remote.asked.slice(1).filter((one) => one === 'tree'),
    [],
    'what is known is not listed again',
  )
  assert.deepEqual(Object.fromEntries(data), {
    'a.txt': 'a, changed',
    'deep/er/.agent-orc-folder': '',
    'new/größe.txt': 'new',
    'new/nothing': '',
    empty: '',
  })

  data.set('a.txt', 'a of another').set('later.txt', 'later')
  data.delete('new/größe.txt')
  data.delete('new/nothing')
  assert.equal(await settle(), '')
  assert.deepEqual(await files('data'), ['a.txt', 'empty', 'later.txt'])
  assert.equal(await here('data/a.txt'), 'a of another')
  assert.deepEqual(
    (await readdir(join(root, 'data'))).toSorted(),
    ['a.txt', 'deep', 'empty', 'later.txt'],
    'only folders that it emptied went',
  )
  // A folder takes the place of a file, and a file takes the place of a folder.
  await rm(join(root, 'data/a.txt'))
  await write('data/a.txt/inside', 'x')
  assert.equal(await settle(), '')
  assert.deepEqual([...data.keys()].toSorted(), ['a.txt/inside', 'deep/er/.agent-orc-folder', 'empty', 'later.txt'])
})

test('what may be executed and empty folders go both ways', async (t) => {
  const { remote, settle, write, files, root } = await setup(t)
  const data = remote.of('data')
  const modeOf = async (path: string) => ((await stat(join(root, 'data', path))).mode & 0o777).toString(8)
  const marker = (folder: string) => `${folder}/.agent-orc-folder`
  data.set('run', '#!').set('text', 'x').set(marker('there'), '')
  remote.executable.add('run')
  await settle()
  assert.deepEqual([await modeOf('run'), await modeOf('text')], ['755', '644'])
  assert.deepEqual(await readdir(join(root, 'data/there')), [])
  assert.deepEqual(await files('data'), ['run', 'text'])

  await write('data/mine', '#!')
  await chmod(join(root, 'data/mine'), 0o755)
  await chmod(join(root, 'data/run'), 0o644)
  await mkdir(join(root, 'data/a/b'), { recursive: true })
  assert.equal(await settle(), '')
  assert.deepEqual([...remote.executable], ['mine'])
  assert.deepEqual(data.get(marker('a/b')), '')
  remote.asked.length = 0
  assert.equal(await settle(), '')
  assert.deepEqual(remote.asked, ['tree'])

  // A folder with a file is no longer empty, on either side. A removed empty folder also removes its placeholder.
  await write('data/there/file', 'x')
  data.set('a/b/file', 'x')
  assert.equal(await settle(), '')
  assert.deepEqual(await files('data'), ['a/b/file', 'mine', 'run', 'text', 'there/file'])
  assert.equal(data.has(marker('there')), false)
  data.delete('a/b/file')
  await settle()
  await rm(join(root, 'data/a'), { recursive: true })
  await mkdir(join(root, 'data/both'))
  data.set(marker('both'), '')
  assert.equal(await settle(), '')
  assert.deepEqual([...data.keys()].toSorted(), [marker('both'), 'mine', 'run', 'text', 'there/file'])
  data.delete(marker('both'))
  await settle()
  assert.deepEqual((await readdir(join(root, 'data'))).toSorted(), ['mine', 'run', 'text', 'there'])
  await write('data/there/.agent-orc-folder', 'x')
  assert.match(await settle(), /there\/\.agent-orc-folder.*stands for an empty folder/)
})

test('of a file that both have written nothing is lost, and a change goes before a deletion', async (t) => {
  const { remote, settle, copy, here, write, files, root } = await setup(t)
  const data = remote.of('data')
  data.set('both', '1').set('same', '1').set('gone-there', '1').set('gone-here', '1')
  await settle()
  await write('data/both', 'mine')
  data.set('both', 'theirs')
  await write('data/same', 'equal')
  data.set('same', 'equal')
  await write('data/gone-there', 'mine')
  data.delete('gone-there')
  await rm(join(root, 'data/gone-here'))
  data.set('gone-here', 'theirs')
  await write('data/new', 'mine')
  data.set('new', 'theirs')
  const said = await settle()
  assert.match(
    said,
    /'vfs\/data\/both' was also changed on the VirtualFS: that version keeps the name, and yours is 'both\.conflict'/,
  )
  assert.doesNotMatch(said, /same/)
  const expected = {
    both: 'theirs',
    'both.conflict': 'mine',
    same: 'equal',
    'gone-there': 'mine',
    'gone-here': 'theirs',
    new: 'theirs',
    'new.conflict': 'mine',
  }
  assert.deepEqual(Object.fromEntries([...data].toSorted()), Object.fromEntries(Object.entries(expected).toSorted()))
  for (const [path, text] of Object.entries(expected)) assert.equal(await here(`data/${path}`), text)
  assert.equal((await files('data')).length, 7)
  assert.equal(await settle(), '')
  // Another writer changes a file during a tool call, so the list is stale and is requested again.
  await write('data/same', 'mine, late')
  data.set('same', 'theirs, late')
  assert.match(await copy.settleIfTouched(signal), /yours is 'same\.conflict'/)
  assert.deepEqual([data.get('same'), data.get('same.conflict')], ['theirs, late', 'mine, late'])
  assert.equal(await settle(), '')
})

test('in a read-only mount nothing changes, and every call says what only the sandbox has', async (t) => {
  const { remote, settle, here, write, root } = await setup(t)
  remote.of('docs').set('guide.md', 'read me').set('other.md', 'o')
  await settle()
  assert.equal((await stat(join(root, 'docs/guide.md'))).mode & 0o777, 0o444)
  await rm(join(root, 'docs/guide.md'))
  await write('docs/own.md', 'mine')
  const said = "[vfs: only the sandbox has your change of 'vfs/docs/own.md': the mount is read-only.]"
  assert.deepEqual([await settle(), await settle()], [said, said])
  assert.equal(await here('docs/guide.md'), 'read me')
  assert.deepEqual([...remote.of('docs').keys()], ['guide.md', 'other.md'])
  await rm(join(root, 'docs/own.md'))
  assert.equal(await settle(), '')
})

test('what a hostile program leaves is not followed, not kept and named on one line', async (t) => {
  const { remote, settle, write, outside, root } = await setup(t)
  const data = remote.of('data')
  data.set('folder/known', '1').set('kept', '1')
  await settle()
  await writeFile(join(outside, 'secret'), 'secret')
  await symlink('/etc/passwd', join(root, 'data/passwd'))
  await symlink(join(outside, 'secret'), join(root, 'data/relative'))
  await symlink(outside, join(root, 'data/out'))
  // A folder with known files becomes a link: nothing behind it is read, written or taken for deleted.
  await rename(join(root, 'data/folder'), join(outside, 'folder'))
  await symlink(join(outside, 'folder'), join(root, 'data/folder'))
  await writeFile(join(outside, 'folder/known'), 'changed through the link')
  execFileSync('mkfifo', [join(root, 'data/pipe')])
  await write('data/sparse', '')
  await truncate(join(root, 'data/sparse'), 2 ** 40)
  await write('data/two\nlines', 'x')
  await write('data/back\\slash', 'x')
  execFileSync('/bin/sh', ['-c', `printf x > "$(printf 'latin\\351')"`], { cwd: join(root, 'data') })
  await write('stray/x', 'x')
  const before = Object.fromEntries(data)
  const said = await settle()
  assert.deepEqual(Object.fromEntries(data), before)
  assert.doesNotMatch(said, /\n(?!\[vfs: )/)
  for (const part of [
    "'vfs/data/passwd'",
    'links are not kept',
    "'vfs/data/pipe': it is no regular file",
    "'vfs/data/sparse': it is larger than 0.1 MiB",
    'two\\nlines',
    'the virtual file system takes no such name',
    'the name is no UTF-8',
    "'vfs/stray': it is in none of the mounts",
  ])
    assert.ok(said.includes(part), `${part}: ${said}`)
  data.set('folder/known', 'theirs')
  data.set('out/new', 'theirs')
  await settle()
  assert.equal(await readFile(join(outside, 'folder/known'), 'utf8'), 'changed through the link')
  await assert.rejects(stat(join(outside, 'new')))
})

test('a mount or all of them replaced by something else loses nothing there', async (t) => {
  const { remote, settle, here, outside, root } = await setup(t)
  remote.of('data').set('a', '1')
  await settle()
  await rm(join(root, 'data'), { recursive: true })
  assert.equal(await settle(), '')
  assert.deepEqual(
    [await here('data/a'), [...remote.of('data').keys()]],
    ['1', ['a']],
    'a mount point cannot be removed',
  )
  await rm(join(root, 'data'), { recursive: true })
  await symlink(outside, join(root, 'data'))
  assert.match(await settle(), /'vfs\/data' is no folder any more/)
  await rm(root, { recursive: true })
  await symlink(outside, root)
  assert.match(await settle(), /'vfs' is no folder any more/)
  assert.deepEqual([...remote.of('data').keys()], ['a'])
  await rm(root)
  assert.equal(await settle(), '')
  assert.equal(await here('data/a'), '1')
})

test('more than a sandbox may have is left where it is, and said', async (t) => {
  const { remote, settle, copy, write, files } = await setup(t)
  const data = remote.of('data')
  remote.share = { files: 6, bytes: 60, fileBytes: 20 }
  remote.listed = 3
  for (const name of ['a', 'b', 'c', 'd']) data.set(name, name)
  data.set('b', 'x'.repeat(21))
  assert.equal(
    await settle(),
    "[vfs: not all files of 'data' are in the sandbox; vfs_list, vfs_search and vfs_read reach all of them.]",
  )
  assert.deepEqual(await files('data'), ['a', 'c'])
  assert.equal(await settle(), '', 'it is said once')
  // A file that only the VirtualFS has is not overwritten by a new file of the same name, not even behind the end of the list.
  await write('data/b', 'mine')
  await write('data/d', 'mine')
  const said = await settle()
  assert.match(said, /'vfs\/data\/b' was also changed on the VirtualFS/)
  assert.match(said, /'vfs\/data\/d': there is a file of this name that the sandbox does not have/)
  assert.deepEqual([data.get('b')?.length, data.get('d')], [21, 'd'])
  // The scan stops at its limit, and known files that it did not reach are not taken for deleted.
  for (let i = 0; i < 40; i++) await write(`data/0${i}`, 'x')
  assert.match(await copy.settleIfTouched(signal), /more entries than are looked at/)
  assert.ok(data.has('a') && data.has('c'))
  assert.ok(data.size < 10, `${data.size}`)
})

test('folders that refuse, and something else in the place of a file, keep only what is in them from being settled', async (t) => {
  const { remote, settle, here, write, outside, root } = await setup(t)
  const data = remote.of('data')
  data.set('locked/a', '1').set('free', '1')
  await settle()
  // Root may write to every folder, so here a file takes the place of the folder.
  await rm(join(root, 'data/locked'), { recursive: true })
  await write('data/place', 'mine')
  data.set('locked/a', '2').set('place/below', 'theirs').set('free', '2')
  await symlink(outside, join(root, '.incoming'))
  await write('data/locked', 'a file')
  const said = await settle()
  assert.match(
    said,
    /the sandbox does not have .*'vfs\/data\/place\/below'.* as it is by now: something else is in its place/,
  )
  assert.equal(await here('data/free'), '2')
  assert.deepEqual((await readdir(outside)).toSorted(), ['state', 'workspace'], 'nothing was put behind the link')
})

test('case and forms of unicode are different names', async (t) => {
  const { remote, settle, write, here } = await setup(t)
  const names = ['Readme', 'README', 'é'.normalize('NFC'), 'é'.normalize('NFD'), ' spaces ', 'quote\'"`$(x)', '-rf']
  for (const [i, name] of names.entries()) remote.of('data').set(name, `${i}`)
  await settle()
  for (const [i, name] of names.entries()) {
    assert.equal(await here(`data/${name}`), `${i}`)
    await write(`data/${name}`, `${i} here`)
  }
  assert.equal(await settle(), '')
  for (const [i, name] of names.entries()) assert.equal(remote.of('data').get(name), `${i} here`)
})

test('while the VirtualFS is away files stay as they are, and changes are kept when it is back', async (t) => {
  const { remote, settle, copy, write, here, root } = await setup(t)
  const data = remote.of('data')
  data.set('a', '1').set('b', '1')
  await settle()
  remote.away = workerErrors.runnerUnreachable({ message: 'The VirtualFS server cannot be reached.' })
  await write('data/a', '2')
  await rm(join(root, 'data/b'))
  const said = await copy.settleIfTouched(signal)
  assert.match(said, /^\[vfs: the virtual file system cannot be reached, .*The VirtualFS server cannot be reached\.\]$/)
  assert.equal(await here('data/a'), '2')
  remote.away = undefined
  remote.unavailable.set('data', 'The bucket is away.')
  assert.match(await settle(), /the mount data is not available, and stays here as it was: The bucket is away\./)
  assert.deepEqual(Object.fromEntries(data), { a: '1', b: '1' })
  remote.unavailable.clear()
  remote.refused.set('a', 'The limit vfsBytes of this tenant is 1.')
  assert.match(await settle(), /'vfs\/data\/a': the limit vfsBytes of this tenant is 1\.\]$/)
  remote.refused.clear()
  assert.equal(await settle(), '')
  assert.deepEqual(Object.fromEntries(data), { a: '2' })
})

test('a worker that is started again knows what was deleted meanwhile, and recognizes what is the same without that', async (t) => {
  const { remote, settle, begin, files, outside, write } = await setup(t)
  const data = remote.of('data')
  data.set('a', '1').set('b', '1')
  await settle()
  data.delete('b')
  await write('data/own', 'mine')
  assert.equal(await begin().settle(signal), '')
  assert.deepEqual(await files('data'), ['a', 'own'])
  await rm(join(outside, 'state'), { recursive: true })
  assert.equal(await begin().settle(signal), '')
  assert.deepEqual([await files('data'), Object.fromEntries(data)], [['a', 'own'], { a: '1', own: 'mine' }])
  await writeFile(join(outside, 'state', 's.vfs'), '{"version":1,"mounts":[{}]}')
  assert.equal(await begin().settle(signal), '', 'a file of another form is as good as none')
})
