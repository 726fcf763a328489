import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { buffer } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'
import {
  isObjectKey,
  maxKeyBytes,
  mostSegments,
  type NewObject,
  type ObjectBackend,
  objectErrors,
  type ObjectQuery,
  type WriteCondition,
} from '#contracts/object-store'

const sha256Of = (data: Uint8Array): string => createHash('sha256').update(data).digest('hex')

/** An object of this many bytes, in pieces. */
export function newObject(
  content: string | Uint8Array,
  when: WriteCondition = {},
  contentType = 'text/plain',
): NewObject {
  const data = Buffer.from(content as string)
  const body = async function* () {
    for (let from = 0; from < data.length; from += 100_000) yield data.subarray(from, from + 100_000)
  }
  return { body: body(), sha256: () => sha256Of(data), contentType, when }
}

/** Keys that are difficult for file systems, URLs and lists. */
export const oddKeys = [
  'plain.txt',
  'a',
  'a/b',
  'a/b/c.txt',
  'a-b',
  'a b+c%20d&e=f?g#h.txt',
  'A/B',
  'CON',
  'nul.txt',
  'ends.',
  '...',
  '..a/b..',
  '-rf',
  'ü/ü',
  'u\u0308/composed or not',
  '日本語/報告.csv',
  '😀.txt',
  'quote\'quote"back\\slash',
  'percent%2fslash',
  'x'.repeat(80),
  `${'x'.repeat(80)}/y`,
  `${'x'.repeat(81)}`,
  `${'x'.repeat(79)}/y`,
  'y'.repeat(1_024),
  'Z/'.repeat(mostSegments - 1) + 'z',
]

const whole: ObjectQuery = { prefix: '', after: '', limit: 1_000, folders: false }
const inUtf8 = (keys: readonly string[]): string[] => [...keys].sort((a, b) => Buffer.from(a).compare(Buffer.from(b)))

interface ObjectSuiteOptions {
  /** The server is a stand-in that lists in an order of its own, so only the listed contents are checked. */
  readonly ownOrder?: boolean
  /** The longest key, for a store that uses some bytes of keys itself. */
  readonly keyBytes?: number
}

type Check = (sentence: string, body: (store: ObjectBackend) => Promise<void>) => void

/** The guarantees of every object store backend, as tests. `make` gives an empty backend and is called for each test. */
export function testObjectBackend(
  name: string,
  make: (t: TestContext) => Promise<ObjectBackend>,
  { ownOrder = false, keyBytes = maxKeyBytes }: ObjectSuiteOptions = {},
): void {
  const check: Check = (sentence, body) =>
    void test(`${name}: ${sentence}`, { timeout: 60_000 }, async (t) => body(await make(t)))
  contents(check)
  const keys = oddKeys.filter((key) => Buffer.byteLength(key) < keyBytes)
  keysAndLists(check, [...keys, 'y'.repeat(keyBytes)], (all) => (ownOrder ? inUtf8(all) : all))
  removals(check)
}

async function textOf(store: ObjectBackend, key: string, tenant = 'acme'): Promise<string | undefined> {
  const found = await store.open(tenant, key)
  return found && (await buffer(await found.read())).toString()
}

function contents(check: Check): void {
  check('what is written is read, with what is known of it', async (store) => {
    const { info, replaced } = await store.put('acme', 'a/b.txt', newObject('hello', {}, 'text/x-test; charset=utf-8'))
    assert.equal(replaced, undefined)
    const found = await store.open('acme', 'a/b.txt')
    assert.deepEqual({ ...found!.info, updatedAt: '' }, { ...info, updatedAt: '' })
    const { key, bytes, contentType, sha256 } = found!.info
    assert.deepEqual(
      { key, bytes, contentType, sha256 },
      { key: 'a/b.txt', bytes: 5, contentType: 'text/x-test; charset=utf-8', sha256: sha256Of(Buffer.from('hello')) },
    )
    assert.ok(Math.abs(Date.parse(info.updatedAt) - Date.now()) < 60_000)
    assert.equal((await buffer(await found!.read())).toString(), 'hello')
  })
  check('an empty object is one', async (store) => {
    await store.put('acme', 'empty', newObject(''))
    assert.equal(await textOf(store, 'empty'), '')
    assert.deepEqual(await store.use('acme'), { bytes: 0, objects: 1 })
  })
  check('eight mebibytes of any bytes come back, whole and in ranges', async (store) => {
    const data = Buffer.alloc(8 * 1024 * 1024)
    for (let i = 0; i < data.length; i++) data[i] = (i * 31 + (i >> 8)) & 255
    await store.put('acme', 'large', newObject(data, {}, 'application/octet-stream'))
    assert.equal(sha256Of(await buffer(await (await store.open('acme', 'large'))!.read())), sha256Of(data))
    for (const [from, to] of [
      [0, 0],
      [5, 300_000],
      [data.length - 1, data.length - 1],
    ] as const) {
      const part = await buffer(await (await store.open('acme', 'large'))!.read({ from, to }))
      assert.ok(part.equals(data.subarray(from, to + 1)), `${from}-${to}`)
    }
  })
  check('a write replaces the object, and says what it replaced', async (store) => {
    await store.put('acme', 'k', newObject('one'))
    assert.equal((await store.put('acme', 'k', newObject('three'))).replaced, 3)
    assert.equal(await textOf(store, 'k'), 'three')
    assert.deepEqual(await store.use('acme'), { bytes: 5, objects: 1 })
  })
  check('a reader who has begun gets the object that it opened, or fails', async (store) => {
    await store.put('acme', 'k', newObject('first'))
    const found = await store.open('acme', 'k')
    await store.put('acme', 'k', newObject('second!'))
    const read = await found!
      .read()
      .then(buffer)
      .then(String, () => 'failed')
    assert.ok(read === 'first' || read === 'failed', read)
  })
  check('an upload that breaks leaves what was there', async (store) => {
    const broken = (): NewObject => ({
      ...newObject('x'),
      body: (async function* () {
        yield Buffer.alloc(300_000, 'x')
        throw objectErrors.uploadBroken()
      })(),
    })
    await assert.rejects(store.put('acme', 'new', broken()), { code: 'upload_broken' })
    assert.equal(await store.open('acme', 'new'), undefined)
    await store.put('acme', 'old', newObject('kept'))
    await assert.rejects(store.put('acme', 'old', broken()), { code: 'upload_broken' })
    assert.equal(await textOf(store, 'old'), 'kept')
    assert.deepEqual(await store.use('acme'), { bytes: 4, objects: 1 })
  })
}

function keysAndLists(check: Check, odd: readonly string[], inOrder: (keys: string[]) => string[]): void {
  check('conditions of writes hold', async (store) => {
    const { info } = await store.put('acme', 'k', newObject('one', { ifNoneMatch: '*' }))
    const refused = { code: 'precondition_failed' }
    await assert.rejects(store.put('acme', 'k', newObject('two', { ifNoneMatch: '*' })), refused)
    await assert.rejects(store.put('acme', 'k', newObject('two', { ifMatch: 'other' })), refused)
    await assert.rejects(store.put('acme', 'none', newObject('two', { ifMatch: '*' })), refused)
    await store.put('acme', 'k', newObject('two', { ifMatch: info.etag }))
    await assert.rejects(store.put('acme', 'k', newObject('three', { ifMatch: info.etag })), refused)
    await assert.rejects(store.remove('acme', 'k', info.etag), refused)
    assert.equal(await textOf(store, 'k'), 'two')
    const { etag } = await store.open('acme', 'k').then(async (found) => (await found!.close(), found!.info))
    assert.equal(await store.remove('acme', 'k', etag), 3)
  })
  check('odd keys are keys, each of its own, and listed in the order of their UTF-8', async (store) => {
    for (const key of odd) {
      assert.ok(isObjectKey(key), key)
      await store.put('acme', key, newObject(`content of ${key}`))
    }
    for (const key of odd) assert.equal(await textOf(store, key), `content of ${key}`)
    const { objects, next } = await store.list('acme', whole)
    assert.equal(next, undefined)
    assert.deepEqual(inOrder(objects.map(({ key }) => key)), inUtf8(odd))
    for (const { key, sha256 } of objects) assert.equal(sha256, sha256Of(Buffer.from(`content of ${key}`)))
    for (const key of odd) assert.notEqual(await store.remove('acme', key), undefined, key)
    assert.deepEqual(await store.use('acme'), { bytes: 0, objects: 0 })
  })
  check('a list goes by pages, with a prefix and with folders', async (store) => {
    const keys = ['b/1', 'b/2', 'b/c/1', 'b/c/2', 'b/d', 'b!', 'a', 'b', 'c/x', 'b/é/1']
    for (const key of keys) await store.put('acme', key, newObject(key))
    const pages = async (query: Partial<ObjectQuery>) => {
      const found: string[] = []
      for (let after: string | undefined = ''; after !== undefined;) {
        const page = await store.list('acme', { ...whole, limit: 2, ...query, after })
        assert.ok(page.objects.length + page.prefixes.length <= 2)
        found.push(...page.objects.map(({ key }) => key), ...page.prefixes)
        after = page.next
      }
      return found
    }
    assert.deepEqual(inOrder(await pages({})), inUtf8(keys))
    assert.deepEqual(inOrder(await pages({ prefix: 'b/' })), ['b/1', 'b/2', 'b/c/1', 'b/c/2', 'b/d', 'b/é/1'])
    assert.deepEqual(inUtf8(await pages({ prefix: 'b/', folders: true })), ['b/1', 'b/2', 'b/c/', 'b/d', 'b/é/'])
    assert.deepEqual(inUtf8(await pages({ folders: true })), ['a', 'b', 'b!', 'b/', 'c/'])
    assert.deepEqual(await pages({ prefix: 'nothing' }), [])
  })
}

const isUnavailable = { code: objectErrors.storageUnavailable.row.code, status: 503 }

function removals(check: Check): void {
  check('removing says what went, and what was not there', async (store) => {
    await store.put('acme', 'k', newObject('four'))
    assert.equal(await store.remove('acme', 'k'), 4)
    assert.equal(await store.remove('acme', 'k'), undefined)
    assert.equal(await store.open('acme', 'k'), undefined)
  })
  check('a prefix is removed in parts that say whether there is more', async (store) => {
    for (const key of ['p/1', 'p/2', 'p/3', 'p', 'pp', 'q']) await store.put('acme', key, newObject('x'))
    assert.deepEqual(await store.removeAll('acme', 'p/', 2), { objects: 2, bytes: 2, more: true })
    assert.deepEqual(await store.removeAll('acme', 'p/', 2), { objects: 1, bytes: 1, more: false })
    const { objects } = await store.list('acme', whole)
    assert.deepEqual(
      objects.map(({ key }) => key),
      ['p', 'pp', 'q'],
    )
  })
  check('nothing is removed for somebody who has given up', async (store) => {
    for (const key of ['p/1', 'p/2']) await store.put('acme', key, newObject('x'))
    const signal = AbortSignal.abort()
    await assert.rejects(store.remove('acme', 'p/1', undefined, signal), isUnavailable)
    await assert.rejects(store.removeAll('acme', 'p/', 9, signal), isUnavailable)
    assert.deepEqual(await store.use('acme'), { bytes: 2, objects: 2 })
    assert.deepEqual(await store.removeAll('acme', 'p/', 9, new AbortController().signal), {
      objects: 2,
      bytes: 2,
      more: false,
    })
  })
  check('tenants do not meet, also where the id of one begins like that of another', async (store) => {
    for (const tenant of ['acme', 'acme-2', 'acm']) await store.put(tenant, 'k', newObject(tenant))
    for (const tenant of ['acme', 'acme-2', 'acm']) {
      assert.equal(await textOf(store, 'k', tenant), tenant)
      assert.deepEqual(
        (await store.list(tenant, whole)).objects.map(({ key }) => key),
        ['k'],
      )
    }
    assert.deepEqual(await store.removeAll('acme', '', 100), { objects: 1, bytes: 4, more: false })
    assert.equal(await textOf(store, 'k', 'acme-2'), 'acme-2')
    assert.deepEqual(await store.use('acm'), { bytes: 3, objects: 1 })
    assert.deepEqual(await store.use('nobody'), { bytes: 0, objects: 0 })
  })
  check('writes of one key at once leave one of them, whole', async (store) => {
    const contents = Array.from({ length: 8 }, (_, i) => String(i).repeat(200_000 + i))
    await Promise.all(contents.map((content) => store.put('acme', 'dir/k', newObject(content))))
    const text = await textOf(store, 'dir/k')
    assert.ok(contents.includes(text!))
    assert.deepEqual(await store.use('acme'), { bytes: text!.length, objects: 1 })
  })
}
