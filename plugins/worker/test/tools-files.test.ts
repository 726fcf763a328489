import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdir, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { maxEntries, maxReadBytes } from '../tools/files.ts'
import { startTools } from './support.ts'

const timeout = 30_000

test('a file is written with its folders, appended to and read again', { timeout }, async (t) => {
  const { call, workspace } = await startTools(t)
  assert.deepEqual(await call('write_file', { path: 'a/b/c.txt', content: 'größe\n' }), {
    ok: true,
    content: "Wrote 8 bytes to 'a/b/c.txt'.",
  })
  await call('write_file', { path: 'a/b/c.txt', content: 'more', append: true })
  assert.equal(await readFile(join(workspace, 'a/b/c.txt'), 'utf8'), 'größe\nmore')
  await call('write_file', { path: join(workspace, 'a/b/c.txt'), content: 'new' })
  assert.deepEqual(await call('read_file', { path: './a/../a/b/c.txt' }), { ok: true, content: 'new' })
})

test('every way out of the workspace is refused, for reading and for writing', { timeout }, async (t) => {
  const { call, workspace, outside } = await startTools(t)
  await writeFile(join(outside, 'secret'), 'secret')
  await mkdir(join(outside, 'deep', 'workspace-of-another'))
  await symlink(join(outside, 'secret'), join(workspace, 'link'))
  await symlink(outside, join(workspace, 'folder-link'))
  await symlink(join(outside, 'not-there-yet'), join(workspace, 'dangling'))
  await symlink('/', join(workspace, 'root'))
  await symlink('link', join(workspace, 'link-to-link'))
  const ways = [
    '../secret',
    '../../secret',
    'a/../../../secret',
    '../workspace-of-another/x',
    join(outside, 'secret'),
    '/etc/passwd',
    'link',
    'link-to-link',
    'folder-link/secret',
    'folder-link/new/file',
    'dangling',
    'dangling/x',
    'root/etc/passwd',
    'root/tmp/agent-orc-escaped',
    'a\0b',
  ]
  for (const path of ways) {
    for (const [name, input] of [
      ['read_file', { path }],
      ['write_file', { path, content: 'x' }],
      ['write_file', { path, content: 'x', append: true }],
      ['list_files', { path }],
      ['shell', { command: 'true', cwd: path }],
      ['run_script', { path }],
      ['run_script', { path: 'x.sh', folder: path, files: [{ path: 'x.sh', data: '' }] }],
    ] as const) {
      const { ok, content } = await call(name, input)
      assert.equal(ok, false, `${name} ${path}: ${content}`)
      assert.doesNotMatch(content, /root:|secret$/)
    }
  }
  assert.equal(await readFile(join(outside, 'secret'), 'utf8'), 'secret')
  assert.equal((await call('list_files', {})).content.includes('not-there-yet'), true, 'a link is named')
  await assert.rejects(readFile(join(outside, 'not-there-yet')), { code: 'ENOENT' })
})

test('links that stay inside are followed, and the workspace may be reached through one', { timeout }, async (t) => {
  const { call, workspace, outside } = await startTools(t)
  await call('write_file', { path: 'real/file', content: 'x' })
  await symlink('real', join(workspace, 'alias'))
  await call('write_file', { path: 'alias/new/file', content: 'through a link' })
  assert.equal((await call('read_file', { path: 'real/new/file' })).content, 'through a link')
  await symlink(workspace, join(outside, 'way-in'))
  assert.equal((await call('read_file', { path: 'alias/file' })).content, 'x')
})

test('long files are read in parts, by lines, and say how to go on', { timeout }, async (t) => {
  const { call, workspace } = await startTools(t)
  const lines = Array.from({ length: 5_000 }, (_, i) => `line ${i + 1}`)
  await writeFile(join(workspace, 'long'), `${lines.join('\n')}\n`)
  const read = async (input: object) => (await call('read_file', { path: 'long', ...input })).content.split('\n')
  const first = await read({})
  assert.deepEqual([first[0], first[1_999]], ['line 1', 'line 2000'])
  assert.deepEqual(first.slice(2_000), ['[The file goes on: offset 2000 shows more.]'])
  assert.deepEqual(await read({ offset: 2_000, limit: 1 }), [
    'line 2001',
    '[The file goes on: offset 2001 shows more.]',
  ])
  assert.deepEqual(await read({ offset: 4_998 }), ['line 4999', 'line 5000', ''])
  assert.deepEqual(await read({ offset: 5_000 }), ['[The file has no more than 5000 lines.]'])
  await writeFile(join(workspace, 'long'), 'x'.repeat(maxReadBytes - 3) + '\nübrig\n')
  const cut = (await call('read_file', { path: 'long' })).content
  assert.match(cut, /\n\[Cut after 128 KiB, in line 2: offset 1 begins with that line\.\]$/)
  assert.equal((await call('read_file', { path: 'long', offset: 1 })).content, 'übrig\n')
  await writeFile(join(workspace, 'long'), 'x'.repeat(maxReadBytes + 1))
  assert.match(
    (await call('read_file', { path: 'long' })).content,
    /in line 1: shell commands show the rest of it\.\]$/,
  )
  await writeFile(join(workspace, 'long'), '')
  assert.equal((await call('read_file', { path: 'long' })).content, '[The file is empty.]')
})

test('what is no text file is said to be something else, without waiting for it', { timeout }, async (t) => {
  const { call, workspace } = await startTools(t)
  await writeFile(join(workspace, 'binary'), Buffer.from([0x7f, 0x45, 0, 1]))
  execFileSync('mkfifo', [join(workspace, 'pipe')])
  await mkdir(join(workspace, 'folder'))
  const said = async (name: string, input: object) => {
    const { ok, content } = await call(name, { ...input })
    return [ok, content]
  }
  assert.deepEqual(await said('read_file', { path: 'binary' }), [false, "'binary' is a binary file of 4 bytes."])
  assert.deepEqual(await said('read_file', { path: 'pipe' }), [false, "'pipe' is no regular file."])
  assert.deepEqual(await said('write_file', { path: 'pipe', content: 'x' }), [false, "'pipe' is no regular file."])
  assert.deepEqual(await said('read_file', { path: 'folder' }), [false, "'folder' is a folder: use list_files."])
  assert.deepEqual(await said('write_file', { path: 'folder', content: 'x' }), [false, "'folder' is a folder."])
  assert.deepEqual(await said('list_files', { path: 'binary' }), [false, "'binary' is a file: use read_file."])
  assert.deepEqual(await said('read_file', { path: 'nowhere' }), [false, "'nowhere' is not there."])
  assert.deepEqual(await said('write_file', { path: 'binary/x', content: '' }), [
    false,
    "'binary/x' goes through a file as if it were a folder.",
  ])
})

test('files are listed with sizes to a depth, links named and not followed', { timeout }, async (t) => {
  const { call, workspace } = await startTools(t)
  assert.deepEqual(await call('list_files', {}), { ok: true, content: '[The folder is empty.]' })
  await call('write_file', { path: 'b/c/d/e.txt', content: '12345' })
  await call('write_file', { path: 'a.txt', content: '' })
  await symlink('..', join(workspace, 'up'))
  assert.equal((await call('list_files', {})).content, 'a.txt (0 bytes)\nb/\nb/c/\nup -> ..')
  assert.equal((await call('list_files', { depth: 1 })).content, 'a.txt (0 bytes)\nb/\nup -> ..')
  assert.equal((await call('list_files', { path: 'b', depth: 3 })).content, 'c/\nc/d/\nc/d/e.txt (5 bytes)')
  for (let i = 0; i < maxEntries; i++) await writeFile(join(workspace, 'b', String(i)), '')
  const many = (await call('list_files', {})).content.split('\n')
  assert.equal(many.length, maxEntries + 1)
  assert.match(many.at(-1)!, /^\[Only the first 1000 entries are shown/)
})

test('the workspace is made when it is missing, also again', { timeout }, async (t) => {
  const { call, workspace } = await startTools(t)
  await rm(workspace, { recursive: true })
  assert.equal((await call('shell', { command: 'pwd' })).content, `${workspace}\n[Exit code 0.]`)
})

test('a tool that is not there, and input of another form, are told so', { timeout }, async (t) => {
  const { call } = await startTools(t)
  const said = async (name: string, input: Record<string, unknown>) => (await call(name, input)).content
  assert.match(await said('format_disk', {}), /no tool 'format_disk' in this sandbox; it has: shell, read_file/)
  assert.match(await said('shell', {}), /^The input of 'shell' is invalid: \/command /)
  assert.match(await said('read_file', { path: 'x', offset: -1 }), /^The input of 'read_file' is invalid: \/offset /)
})
