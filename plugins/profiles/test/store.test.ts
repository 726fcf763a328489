import assert from 'node:assert/strict'
import { describe, test, type TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { databasePlugin, freshDatabase, testKernel, testProfile } from '#testing'
import { Database } from '#contracts/database'
import type { ChangeLog } from '../broadcast.ts'
import { createChangeLog } from '../changes.store.ts'
import type { ProfileDocument } from '../document.ts'
import { MemoryProfileStore } from '../memory.ts'
import { createProfileLookup, PostgresProfileStore, type ProfileStore } from '../store.ts'

interface Opened {
  readonly store: ProfileStore
  readonly changes: ChangeLog
}

async function inPostgres(t: TestContext): Promise<Opened & { readonly database: Database }> {
  const found: { database?: Database } = {}
  const grab = definePlugin({
    name: 'grab',
    requires: { database: Database },
    async setup({ deps }) {
      Object.assign(found, deps)
      return {}
    },
  })
  await testKernel(t, [await databasePlugin(await freshDatabase(t)), grab], { listeners: [] })
  const database = found.database!
  await database.systemBatch([
    { text: `INSERT INTO tenants (id, name) VALUES ('acme', 'Acme'), ('globex', 'Globex') ON CONFLICT DO NOTHING` },
  ])
  return { store: new PostgresProfileStore(database), changes: createChangeLog(database), database }
}
async function inMemory(): Promise<Opened> {
  const store = new MemoryProfileStore()
  return { store, changes: store }
}

const writer = { keyId: 'tak_1', most: 100 }
const document = (instructions: string): ProfileDocument => {
  const { name: _, id: __, version: ___, createdAt: ____, updatedAt: _____, ...rest } = testProfile('x')
  return { ...rest, instructions }
}
const told = (error: string, status: number) => (thrown: { code: string; status: number }) =>
  thrown.code === error && thrown.status === status

for (const [where, open] of [
  ['PostgreSQL', inPostgres],
  ['memory', inMemory],
] as const) {
  describe(`profiles in ${where}`, () => {
    test('are written by version, found, listed and deleted; a name that is used again goes on counting', async (t) => {
      const { store } = await open(t)
      const made = await store.insert('acme', 'beta', 'prof_b', document('one'), writer)
      assert.deepEqual([made.name, made.id, made.version, made.instructions], ['beta', 'prof_b', 1, 'one'])
      await store.insert('acme', 'alpha', 'prof_a', document('a'), writer)
      await assert.rejects(store.insert('acme', 'beta', 'prof_c', document('x'), writer), told('conflict', 409))
      await assert.rejects(store.insert('acme', 'gamma', 'prof_a', document('x'), writer), told('conflict', 409))
      const replace = (expected: object) => store.replace('acme', 'beta', expected, document('two'), writer)
      await assert.rejects(replace({ id: 'prof_x' }), told('conflict', 409))
      await assert.rejects(replace({ versions: [7] }), told('precondition_failed', 412))
      const second = await replace({ id: 'prof_b', versions: [1] })
      assert.deepEqual([second.version, second.instructions, second.createdAt], [2, 'two', made.createdAt])
      assert.deepEqual(await store.find('acme', 'beta'), second)
      assert.deepEqual((await store.findPlaced('acme', 'beta'))?.profile, second)

      const names = async (q?: string, page = {}) => {
        const { items: profiles, total } = await store.list('acme', q, page)
        return [total, ...profiles.map(({ name }) => name)]
      }
      assert.deepEqual(await names(), [2, 'alpha', 'beta'])
      assert.deepEqual(await names(undefined, { limit: 1, offset: 1 }), [2, 'beta'])
      assert.deepEqual(await names('ALP'), [1, 'alpha'])

      await assert.rejects(store.remove('acme', 'beta', { versions: [1] }), told('precondition_failed', 412))
      await store.remove('acme', 'beta', {})
      await assert.rejects(store.remove('acme', 'beta', {}), told('not_found', 404))
      assert.equal(await store.find('acme', 'beta'), undefined)
      assert.equal((await store.insert('acme', 'beta', 'prof_b', document('three'), writer)).version, 3)
    })

    test('belong to one tenant', async (t) => {
      const { store, changes } = await open(t)
      await store.insert('acme', 'mine', 'prof_1', document('x'), writer)
      assert.equal(await store.find('globex', 'mine'), undefined)
      assert.equal(await store.findPlaced('globex', 'mine'), undefined)
      assert.equal((await store.list('globex', undefined, {})).total, 0)
      await assert.rejects(store.replace('globex', 'mine', {}, document('y'), writer), told('not_found', 404))
      await assert.rejects(store.remove('globex', 'mine', {}), told('not_found', 404))
      assert.equal(await changes.page('globex', undefined), undefined)
      await store.insert('globex', 'mine', 'prof_1', document('y'), writer)
      assert.equal((await store.find('acme', 'mine'))?.instructions, 'x')
    })

    test('tell runners what changed, each name once and in order, and what is gone', async (t) => {
      const { store, changes } = await open(t)
      for (const name of ['a', 'b']) await store.insert('acme', name, `prof_${name}`, document('one'), writer)
      await store.replace('acme', 'a', {}, document('two'), writer)
      await store.remove('acme', 'b', {})
      const read = async (after: number | undefined) => {
        const found = await changes.page('acme', after)
        return found?.page.changes.map(({ key, profile }) => [key, profile?.instructions])
      }
      assert.deepEqual(await read(0), [
        ['a', 'two'],
        ['b', undefined],
      ])
      assert.deepEqual(await read(undefined), [['b', undefined]])
      const { page, more } = (await changes.page('acme', 0))!
      assert.equal(more, false)
      assert.equal(await changes.page('acme', page.revision), undefined)
      const revisions: Record<string, number> = {}
      for await (const some of changes.revisions()) Object.assign(revisions, some)
      assert.deepEqual(revisions, { acme: page.revision })
      assert.equal((await store.findPlaced('acme', 'a'))?.revision, page.revision)
    })
  })
}

test('profiles of many values do not fill the memory of a conductor, nor displace those of other tenants', async (t) => {
  const { store } = await inPostgres(t)
  const lookup = createProfileLookup(store, undefined)
  const metadata = { lists: Array.from({ length: 87_000 }, () => []) }
  await store.insert('globex', 'theirs', 'prof_g', document('x'), writer)
  const theirs = await lookup.findPlaced('globex', 'theirs')
  const names = Array.from({ length: 10 }, (_, i) => `p${i}`)
  for (const name of names) await store.insert('acme', name, `prof_${name}`, { ...document('x'), metadata }, writer)
  const found = []
  for (const name of names) found.push(await lookup.findPlaced('acme', name))
  assert.equal(await lookup.findPlaced('globex', 'theirs'), theirs)
  assert.equal(await lookup.findPlaced('acme', 'p9'), found[9])
  const again = await lookup.findPlaced('acme', 'p0')
  assert.notEqual(again, found[0])
  assert.deepEqual(again, found[0])
})

test('the changes of a tenant are read while its requests have all connections that it may have for them', async (t) => {
  const { store, changes, database } = await inPostgres(t)
  await store.insert('acme', 'p', 'prof_p', document('x'), writer)
  const { promise: gate, resolve: open } = Promise.withResolvers<void>()
  const requests = Array.from({ length: 40 }, () => database.tenant('acme', () => gate))
  const over = Promise.allSettled(requests)
  try {
    assert.equal((await changes.page('acme', undefined))?.page.changes[0]?.key, 'p')
  } finally {
    open()
    await over
  }
})
