import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { test } from 'node:test'
import { defaultLimits } from '#contracts/limits'
import type { ObjectBackend } from '#contracts/object-store'
import type { Metrics } from '../metrics.ts'
import { CheckedStore } from '../store.ts'
import { type Counter, Usage } from '../usage.ts'
import { startStorage } from './server.ts'

test('bytes and objects of a tenant are limited, and what is given up is free again', async (t) => {
  const { call, put, used, store } = await startStorage(t, { limits: { objectBytes: 10, objects: 2 } })
  assert.equal((await put('a', '12345678')).statusCode, 201)
  const over = await put('b', '123')
  assert.deepEqual([over.statusCode, over.json().error, over.json().limit], [409, 'limit_exceeded', 'objectBytes'])
  // A write that replaces an object counts only for the bytes that it adds.
  assert.equal((await put('a', '1234567890')).statusCode, 200)
  assert.equal((await put('a', '12345678901')).statusCode, 409)
  assert.equal((await put('a', '12')).statusCode, 200)
  assert.equal((await put('b', '1')).statusCode, 201)
  assert.equal((await put('c', '1')).json().limit, 'objects')
  assert.equal((await put('b', '22')).statusCode, 200)
  assert.deepEqual([await used('objectBytes'), await used('objects')], [4, 2])
  assert.equal((await put('c', '1', { tenant: 'globex' })).statusCode, 201)
  await call('DELETE', '/objects/a')
  assert.deepEqual([await used('objectBytes'), await used('objects')], [2, 1])
  // An upload of unknown length is refused as well once it exceeds the limit.
  const endless = async function* () {
    for (;;) yield Buffer.from('1234')
  }
  await assert.rejects(store.put('acme', 'd', { body: endless(), contentType: 'text/plain' }), {
    code: 'limit_exceeded',
  })
  assert.deepEqual([await used('objectBytes'), await used('objects')], [2, 1])
  // An upload of unknown length that replaces an object also counts only for the bytes that it adds.
  const inParts = (key: string, text: string) =>
    store.put('acme', key, { body: parts(text), contentType: 'text/plain' })
  await inParts('b', '1234567890')
  await inParts('b', 'abcdefghij')
  await put('e', '')
  await inParts('b', '0123456789')
  await assert.rejects(inParts('b', '01234567890'), { code: 'limit_exceeded', message: /objectBytes/ })
  await assert.rejects(inParts('f', ''), { code: 'limit_exceeded', message: /objects/ })
  assert.deepEqual([await used('objectBytes'), await used('objects')], [10, 2])
})

async function* parts(text: string): AsyncGenerator<Buffer> {
  for (const letter of text) yield Buffer.from(letter)
}

test('uploads at once do not pass a limit together', async (t) => {
  const { put, used } = await startStorage(t, { limits: { objectBytes: 1_000_000 } })
  const answers = await Promise.all(Array.from({ length: 8 }, (_, i) => put(`k${i}`, Buffer.alloc(300_000))))
  const stored = answers.filter(({ statusCode }) => statusCode === 201).length
  assert.equal(stored, 3)
  assert.equal(await used('objectBytes'), 900_000)
})

test('what a process finds in the store counts, and all of it is erased with the tenant, counted', async (t) => {
  const { put, dir } = await startStorage(t)
  for (const key of ['a', 'b/c', 'd']) await put(key, '12345')
  await put('other', '1', { tenant: 'globex' })
  const { data, used, call } = await startStorage(t, { dir })
  assert.deepEqual([await used('objectBytes'), await used('objects')], [15, 3])
  assert.deepEqual(await data.get('objects')!.erase('acme', new AbortController().signal), { deleted: 3, more: false })
  assert.deepEqual((await call('GET', '/objects')).json(), { objects: [], prefixes: [] })
  assert.equal((await call('GET', '/objects/other', { headers: { tenant: 'globex' } })).statusCode, 200)
  assert.deepEqual([await used('objectBytes'), await used('objects')], [0, 0])
})

test('the room of an object that is stored is kept when its count cannot be written then', async () => {
  const used = { bytes: 0, objects: 0 }
  const add = (more: typeof used): void => {
    used.bytes += more.bytes
    used.objects += more.objects
  }
  let failures = 0
  const counter: Counter = {
    of: async () => used,
    take: async (_, more) => void add(more),
    async add(_, change) {
      if (failures-- > 0) throw new Error('the database does not answer')
      add(change)
    },
    recount: async () => {},
  }
  let isFull = false
  const backend = {
    async put(_: string, key: string, { body }: { body: AsyncIterable<Uint8Array> }) {
      let bytes = 0
      for await (const chunk of body) bytes += chunk.length
      if (isFull) throw new Error('the disk is full')
      return { info: { key, bytes }, replaced: undefined }
    },
  } as unknown as ObjectBackend
  const metrics = { timed: (_: string, work: () => unknown) => work(), bytes: { inc() {} } } as unknown as Metrics
  const store = new CheckedStore('memory', backend, new Usage(counter, { of: () => defaultLimits }, true), metrics)
  const put = () => store.put('acme', 'k', { body: parts('12345'), contentType: 'text/plain' })
  failures = 1
  assert.equal((await put()).created, true)
  assert.equal(used.objects, 1)
  assert.ok(used.bytes >= 5)
  const before = { ...used }
  isFull = true
  await assert.rejects(put(), /disk is full/)
  assert.deepEqual(used, before)
})

test('an object from before folders were bounded is read and deleted, and none is stored like it', async () => {
  const gone: string[] = []
  const backend = {
    open: async (_: string, key: string) => ({ info: { key, bytes: 1 } }),
    remove: async (_: string, key: string) => gone.push(key),
  } as unknown as ObjectBackend
  const metrics = { timed: (_: string, work: () => unknown) => work() } as unknown as Metrics
  const store = new CheckedStore('memory', backend, { removed: async () => {} } as unknown as Usage, metrics)
  const deep = `${'a/'.repeat(63)}a`
  assert.equal((await store.open('acme', deep))?.info.key, deep)
  assert.equal(await store.remove('acme', deep), true)
  assert.deepEqual(gone, [deep])
  const again = async () => store.put('acme', deep, { body: Readable.from(['x']), contentType: 'text/plain' })
  await assert.rejects(again(), { code: 'invalid_key' })
})

test('where a tenant has limits of its own, those that a run or a lease brought are older', async () => {
  const counter = {
    take: async (_: string, more: { bytes: number }, most: { objectBytes: number }) =>
      more.bytes > most.objectBytes ? 'objectBytes' : undefined,
  }
  const of = () => ({ ...defaultLimits, objectBytes: 5 })
  const order = { bytes: 7, limits: { objects: 9, objectBytes: 9 }, replaced: async () => undefined }
  await new Usage(counter as never, { of }, false).room('acme', order)
  await assert.rejects(new Usage(counter as never, { of }, true).room('acme', order), { code: 'limit_exceeded' })
})
