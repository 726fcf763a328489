import assert from 'node:assert/strict'
import { mkdir, mkdtemp, readdir, rm, utimes, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { isNewObjectKey, maxKeyBytes, mostSegments } from '#contracts/object-store'
import { newObject, testObjectBackend } from '#testing'
import { DiskBackend } from '../backend.ts'
import { namesOf } from '../names.ts'

async function folder(t: TestContext): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'ao-objects-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  return dir
}
async function disk(t: TestContext, dir?: string): Promise<DiskBackend> {
  const backend = new DiskBackend(dir ?? (await folder(t)))
  await backend.tidy()
  return backend
}
testObjectBackend('disk', (t) => disk(t))

test('names on disk are plain, short and of one case, whatever the key is', () => {
  for (const key of ['A/../x', 'con', 'é', 'x'.repeat(1_024), '/', '%', 'trailing.']) {
    for (const name of namesOf(key)) {
      assert.match(name, /^[+~=][a-z0-9_.%-]*$/)
      assert.ok(name.length <= 241 && !name.endsWith('.'))
    }
  }
})

test('an object is in 43 folders at most, which is what bounds them: only objects are counted', () => {
  // A longer segment has more folders than its share of the segments, in whole pieces.
  for (let segments = 1; segments <= mostSegments; segments++) {
    const long = 'x'.repeat(maxKeyBytes - 2 * (segments - 1))
    const key = `${'x/'.repeat(segments - 1)}${long}`
    assert.ok(isNewObjectKey(key))
    assert.ok(namesOf(key).length - 1 <= 43, String(segments))
  }
  assert.equal(namesOf(`${'x/'.repeat(31)}${'x'.repeat(maxKeyBytes - 62)}`).length - 1, 43)
})

test('nothing is left of a broken upload, of removed objects, nor of dead processes', async (t) => {
  const dir = await folder(t)
  const store = await disk(t, dir)
  const body = async function* () {
    yield Buffer.from('half')
    throw new Error('the client left')
  }
  await assert.rejects(store.put('acme', 'a/b/c', { ...newObject(''), body: body() }), /the client left/)
  await store.put('acme', 'a/b/c', newObject('x'))
  await store.remove('acme', 'a/b/c')
  assert.deepEqual(await readdir(dir), ['.incoming'])
  const [old, fresh] = [join(dir, '.incoming/old'), join(dir, '.incoming/fresh')]
  for (const path of [old, fresh]) await writeFile(path, 'half')
  await utimes(old, 1, 1)
  await disk(t, dir)
  assert.deepEqual(await readdir(join(dir, '.incoming')), ['fresh'])
})

test('a file that is none of ours, or is cut short, is no object', async (t) => {
  const dir = await folder(t)
  const store = await disk(t, dir)
  await mkdir(join(dir, '+acme'))
  await writeFile(join(dir, '+acme/=torn'), 'content without what belongs behind it')
  await writeFile(join(dir, '+acme/README'), 'x')
  assert.equal(await store.open('acme', 'torn'), undefined)
  assert.deepEqual(await store.list('acme', { prefix: '', after: '', limit: 10, folders: false }), {
    objects: [],
    prefixes: [],
  })
})

test('writing and removing in one folder at once loses nothing', async (t) => {
  const store = await disk(t)
  await Promise.all(
    Array.from({ length: 40 }, async (_, i) => {
      await store.put('acme', `deep/er/${i}`, newObject('x'))
      if (i % 2 === 0) await store.remove('acme', `deep/er/${i}`)
    }),
  )
  assert.deepEqual(await store.use('acme'), { bytes: 20, objects: 20 })
})
