import assert from 'node:assert/strict'
import { mkdir, mkdtemp, rm, utimes, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { DiskBackend, trailerOf } from '../backend.ts'
import { Listings, Walk } from '../listings.ts'
import { inOrder, type Named, namesOf } from '../names.ts'

test('a large folder is listed page by page as a small one is, and what changes meanwhile is seen', async (t) => {
  const dir = await mkdtemp(join(tmpdir(), 'ao-listings-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  // Case, umlauts and characters that are written as %xx: names are not in the order of keys.
  const keys = Array.from({ length: 3_000 }, (_, n) => `big/${['A', 'é', '%', 'z'][n % 4]}${(n * 7_919) % 9_973}`)
  const folder = join(dir, ...namesOf('acme/big/x').slice(0, -1))
  await mkdir(folder, { recursive: true })
  const known = { contentType: 'text/plain', sha256: '0'.repeat(64), updatedAt: new Date().toISOString() }
  const put = (key: string) => writeFile(join(dir, ...namesOf(`acme/${key}`)), trailerOf({ key, ...known }))
  for (const key of keys) await put(key)
  const long = `big/${'l'.repeat(200)}`
  await mkdir(join(dir, ...namesOf(`acme/${long}/x`).slice(0, -1)), { recursive: true })
  await put(`${long}/x`)
  await put(`${long}/y`)
  const backend = new DiskBackend(dir)
  const all = async (prefix: string, limit: number): Promise<string[]> => {
    const found: string[] = []
    for (let after = ''; ;) {
      const { objects, next } = await backend.list('acme', { prefix, after, limit, folders: false })
      found.push(...objects.map(({ key }) => key))
      if (next === undefined) return found
      after = next
    }
  }
  const inOrder = (some: string[]): string[] => some.toSorted((a, b) => Buffer.from(a).compare(Buffer.from(b)))
  const everything = inOrder([...keys, `${long}/x`, `${long}/y`])
  // It has changed a moment ago, and then a while ago.
  for (const ago of [0, 60]) {
    await utimes(folder, new Date(), new Date(Date.now() - ago * 1_000))
    for (const limit of [1_000, 333]) assert.deepEqual(await all('', limit), everything)
    assert.deepEqual(await all('big/é1', 100), inOrder(keys.filter((key) => key.startsWith('big/é1'))))
    assert.deepEqual(await all(`${long}/`, 1), [`${long}/x`, `${long}/y`])
    assert.deepEqual(await all(`${long.slice(0, 120)}`, 10), [`${long}/x`, `${long}/y`])
    assert.deepEqual(await all('big/nothing', 10), [])
  }
  await put('big/A0000')
  await backend.remove('acme', everything[7]!)
  const changed = inOrder([...everything.filter((_, i) => i !== 7), 'big/A0000'])
  assert.deepEqual(await all('', 500), changed)
})

/** Folders that are on no disk, which count how often a name is looked at. */
class CountedListings extends Listings {
  looks = 0
  readonly #names: (folder: string) => readonly string[]
  constructor(names: (folder: string) => readonly string[]) {
    super()
    this.#names = names
  }
  override async of(folder: string): Promise<readonly Named[]> {
    return new Proxy(inOrder(this.#names(folder)), {
      get: (names, name) => {
        if (name !== 'length') this.looks++
        return Reflect.get(names, name) as unknown
      },
    })
  }
}

test('what a reader skips is not looked at name by name, in its folder and in those above', async () => {
  const many = (kind: string): string[] => Array.from({ length: 5_000 }, (_, n) => `${kind}${n}`)
  const trees: Record<string, readonly string[]>[] = [
    { '/t/+x': many('=') },
    { '/t/+x': many('+') },
    { '/t/+x': ['+a', '+b'], '/t/+x/+a': many('=') },
    { '/t/+x': ['+a', '+b'], '/t/+x/+a': many('~') },
  ]
  for (const tree of trees) {
    const listings = new CountedListings((folder) => tree[folder] ?? (folder === '/t' ? ['+x', '+y'] : ['=file']))
    const walk = new Walk(listings, '/t', '', '')
    const folders: string[] = []
    for await (const { key } of walk.files()) {
      folders.push(key.slice(0, 2))
      walk.skipTo(`${key.slice(0, 2)}\u{10ffff}`)
    }
    assert.deepEqual(folders, ['x/', 'y/'])
    assert.ok(listings.looks < 200, `${listings.looks} looks`)
  }
})
