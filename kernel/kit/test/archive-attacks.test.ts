import assert from 'node:assert/strict'
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { Readable } from 'node:stream'
import { createGzip, deflateRawSync, gzipSync } from 'node:zlib'
import { type Header, pack as createTar } from 'tar-stream'
import { isAppError } from '#kernel'
import { archiveLimits, unpack } from '../archive.ts'

type Entry = Partial<Header> & { readonly name: string; readonly data?: string }

const tarOf = async (entries: readonly Entry[]): Promise<Buffer> => {
  const tar = createTar()
  for (const { data, ...header } of entries) tar.entry(header, data ?? '')
  tar.finalize()
  return Buffer.concat(await Array.fromAsync(tar as AsyncIterable<Buffer>))
}
const archiveOf = async (...entries: Entry[]): Promise<Buffer> => gzipSync(await tarOf(entries))

/** Made a mebibyte at a time: hundreds of them at once would be most of what these tests take. */
async function bombOf(head: readonly Buffer[], mebibytes: number, fill = 0): Promise<Buffer> {
  const part = Buffer.alloc(1024 * 1024, fill)
  const parts = [...head, ...Array.from({ length: mebibytes }, () => part), end]
  return Buffer.concat(
    await Array.fromAsync(Readable.from(parts).pipe(createGzip({ level: 4 })) as AsyncIterable<Buffer>),
  )
}
const honest: Entry = { name: 'top/a', data: 'new' }

/** A folder with something in it, beside a file that nobody may touch. */
async function target(t: Pick<TestContext, 'after'>): Promise<{ root: string; folder: string }> {
  const root = await mkdtemp(join(tmpdir(), 'state-archive-'))
  t.after(() => rm(root, { recursive: true, force: true }))
  const folder = join(root, 'session')
  await mkdir(join(folder, 'top'), { recursive: true })
  await writeFile(join(folder, 'top/a'), 'old')
  await writeFile(join(root, 'victim'), 'untouched')
  return { root, folder }
}

const accepts = (name: string): boolean => name.startsWith('top/')

/** Refused with 400, and nothing is changed or left over. */
async function refused(t: TestContext, archive: Uint8Array, limits = archiveLimits): Promise<void> {
  const { root, folder } = await target(t)
  await assert.rejects(
    unpack(archive, folder, accepts, limits),
    (error) => isAppError(error) && error.status === 400 && error.code === 'invalid_state',
  )
  assert.deepEqual((await readdir(root)).toSorted(), ['session', 'victim'])
  assert.equal(await readFile(join(folder, 'top/a'), 'utf8'), 'old')
  assert.equal(await readFile(join(root, 'victim'), 'utf8'), 'untouched')
}

const names = [
  '../victim',
  'top/../../victim',
  'top/./a',
  '/etc/agent-orc',
  '//host/a',
  'top//a',
  'top/a/',
  'top\\..\\..\\victim',
  'top/a\nb',
  'top/..',
  './top/a',
  '.',
  `top/${'x'.repeat(300)}`,
  `top/${'é'.repeat(126)}`,
]
for (const name of names) {
  test(`the name ${JSON.stringify(name.slice(0, 30))} is refused, in a header or in a PAX header`, async (t) => {
    await refused(t, await archiveOf(honest, { name, data: 'x' }))
    await refused(t, await archiveOf({ name: 'top/b', pax: { path: name }, data: 'x' }))
  })
}

test('a NUL in a PAX path is refused', (t) =>
  archiveOf({ name: 'top/b', pax: { path: 'top/b\0/../c' } }).then((a) => refused(t, a)))

const types: readonly [Header['type'], Partial<Header>][] = [
  ['symlink', { linkname: '../victim' }],
  ['link', { linkname: 'top/a' }],
  ['directory', {}],
  ['fifo', {}],
  ['character-device', { devmajor: 1, devminor: 3 }],
  ['block-device', { devmajor: 8, devminor: 0 }],
  ['contiguous-file', {}],
]
for (const [type, more] of types) {
  test(`an entry of type ${type} is refused`, async (t) => {
    await refused(t, await archiveOf(honest, { name: 'top/b', type, ...more }))
  })
}

test('nothing is written through a link: neither over it, nor below it, nor by a PAX linkpath', async (t) => {
  await refused(
    t,
    await archiveOf({ name: 'top/b', type: 'symlink', linkname: '../..' }, { name: 'top/b/victim', data: 'x' }),
  )
  await refused(
    t,
    await archiveOf({ name: 'top/b', type: 'symlink', linkname: '../../victim' }, { name: 'top/b', data: 'x' }),
  )
  await refused(
    t,
    await archiveOf({ name: 'top/b', type: 'link', linkname: '../victim' }, { name: 'top/b', data: 'x' }),
  )
  await refused(t, await archiveOf({ name: 'top/b', pax: { linkpath: '../victim' }, data: 'x' }))
})

test('two entries of one name, and a file that is also a folder, are refused', async (t) => {
  await refused(t, await archiveOf(honest, honest))
  await refused(t, await archiveOf(honest, { name: 'top/a/b', data: 'x' }))
  await refused(t, await archiveOf({ name: 'top/a/b', data: 'x' }, honest))
})

test('a file that the runtime did not ask for is refused, and an archive without files', async (t) => {
  await refused(t, await archiveOf(honest, { name: 'other/a', data: 'x' }))
  await refused(t, await archiveOf())
  await refused(t, gzipSync(''))
})

test('what is not a whole gzip of a whole tar is refused', async (t) => {
  const archive = await archiveOf(honest, { name: 'top/b', data: 'x'.repeat(5_000) })
  const tar = await tarOf([honest, { name: 'top/b', data: 'x'.repeat(5_000) }])
  for (const at of [0, 1, 5, 12, archive.length >> 1, archive.length - 9, archive.length - 1]) {
    await refused(t, archive.subarray(0, at))
  }
  await refused(t, Buffer.concat([archive, Buffer.from('trailing garbage')]))
  await refused(t, Buffer.concat([archive, Buffer.alloc(512)]))
  await refused(t, Buffer.concat([archive, archive.subarray(0, 20)]))
  for (const at of [700, 1_300, 1_536, 1_700]) await refused(t, gzipSync(tar.subarray(0, at)))
  await refused(t, gzipSync(Buffer.concat([tar, Buffer.from('garbage behind the end of the tar'.repeat(40))])))
  await refused(t, Buffer.from('{"not":"an archive"}'))
  await refused(t, tar)
  await refused(t, deflateRawSync(tar))
  const torn = Buffer.from(archive)
  torn[torn.length >> 1]! ^= 0xff
  await refused(t, torn)
})

/** The header of an empty file with its checksum set again after `change`. */
function header(change: (block: Buffer) => void): Buffer {
  const block = Buffer.alloc(512)
  block.write('top/b', 0, 'latin1')
  for (const [at, length] of [
    [100, 7],
    [108, 7],
    [116, 7],
    [124, 11],
    [136, 11],
  ] as const)
    block.fill('0', at, at + length)
  block.write('0', 156, 'latin1')
  block.write('ustar\x0000', 257, 'latin1')
  change(block)
  block.fill(' ', 148, 156)
  const sum = block.reduce((total, byte) => total + byte, 0)
  block.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1')
  return block
}
const end = Buffer.alloc(1_024)

test('the headers of these tests are headers', async (t) => {
  const { folder } = await target(t)
  await unpack(gzipSync(Buffer.concat([header(() => {}), end])), folder, accepts)
  assert.deepEqual(await readdir(join(folder, 'top')), ['b'])
})

test('sizes that are no counts do not make the reader wait or trust them', async (t) => {
  const negative = header((block) => block.fill(0xff, 124, 135).writeUInt8(0xfe, 135))
  const huge = header((block) => block.write('77777777777\0', 124, 'latin1'))
  const enormous = header((block) => block.fill(0x7f, 125, 136).writeUInt8(0x80, 124))
  for (const block of [negative, huge, enormous]) await refused(t, gzipSync(Buffer.concat([block, end])))
  for (const size of ['-1', 'NaN', '1e400', '99999999999999999999']) {
    await refused(t, await archiveOf({ name: 'top/b', pax: { size }, data: 'x' }))
  }
})

test('a PAX header that sets more than a path, or for all entries, or is never finished is refused', async (t) => {
  await refused(t, await archiveOf({ name: 'top/b', pax: { 'GNU.sparse.realsize': '1000000000' }, data: 'x' }))
  await refused(t, await archiveOf({ name: 'top/b', pax: { uid: '0' }, data: 'x' }))
  const path = Buffer.from('18 path=../victim\n'.padEnd(512, '\0'))
  const global = header((block) => {
    block.write('g', 156, 'latin1')
    block.write('00000000022 ', 124, 'latin1')
  })
  const forAll = Buffer.concat([global, path, header(() => {}), header(() => {}), end])
  await refused(t, gzipSync(forAll))
  const open = header((block) => {
    block.write('x', 156, 'latin1')
    block.write('01777777777\0', 124, 'latin1')
  })
  // 200 MiB that would all be held in memory.
  await refused(t, await bombOf([open], 200, 'a'.charCodeAt(0)))
})

test('a bomb is refused as soon as it is larger than a state may be, and nothing of it stays', async (t) => {
  const ofSize = (mebibytes: number): Buffer =>
    header((block) => block.write((mebibytes * 1024 * 1024).toString(8).padStart(11, '0'), 124, 'latin1'))
  const { folder } = await target(t)
  await unpack(await bombOf([ofSize(1)], 1), folder, accepts)
  const bomb = await bombOf([ofSize(300)], 300)
  assert.ok(bomb.length < 1024 * 1024)
  await refused(t, bomb)
  // A tar of nothing but its own end.
  await refused(t, await bombOf([], 200))
  // A gzip in many members counts as one.
  const member = await archiveOf({ name: 'top/b', data: 'x'.repeat(1_000) })
  await refused(t, Buffer.concat([member, member]), { ...archiveLimits, unpackedBytes: 4_000 })
})

test('100,000 entries are refused, and an archive larger than one may travel', async (t) => {
  const blocks = Array.from({ length: 100_000 }, (_, i) => header((block) => block.write(`top/${i}\0`, 0, 'latin1')))
  await refused(t, gzipSync(Buffer.concat([...blocks, end]), { level: 1 }))
  await refused(t, Buffer.alloc(archiveLimits.packedBytes + 1))
})
