import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import type { BroadcastChange, BroadcastPage } from '#contracts/broadcast'
import type { Profile } from '#contracts/profiles'
import { BroadcastReceiver } from '../broadcast.ts'

const profile = (name: string, version: number): Profile =>
  ({ name, version, updatedAt: '2026-01-01T00:00:00.000Z' }) as Profile

test('a page that does not continue what the runner has changes nothing, and the answer says where to go on', () => {
  const book = new BroadcastReceiver()
  const change: BroadcastChange = { revision: 3, kind: 'profile', key: 'p', profile: profile('p', 1) }
  assert.equal(book.take('acme', { after: 2, revision: 3, changes: [change] }), 0)
  assert.deepEqual(book.profiles('acme'), [])
  assert.equal(book.take('acme', { after: 0, revision: 3, changes: [change] }), 3)
  assert.equal(book.profile('acme', 'p')?.version, 1)
  assert.equal(book.take('globex', { after: 3, revision: 4, changes: [] }), 0)
})

test('pools come and go with it, and it names the tenants it is behind with', () => {
  const book = new BroadcastReceiver()
  book.take('acme', {
    after: 0,
    revision: 1,
    changes: [{ revision: 1, kind: 'pool', key: 'pool_1', pool: { id: 'pool_1' } }],
  })
  assert.deepEqual(book.pools('acme'), [{ id: 'pool_1' }])
  assert.deepEqual(book.behind({ acme: 1, globex: 1 }), ['globex'])
  assert.deepEqual(book.behind({ acme: 2 }), ['acme'])
  book.take('acme', { after: 1, revision: 2, changes: [{ revision: 2, kind: 'pool', key: 'pool_1' }] })
  assert.deepEqual(book.pools('acme'), [])
})

test('a single profile as an earlier release sends it never replaces a newer version', () => {
  const book = new BroadcastReceiver()
  const at = (minute: number, version?: number): Profile =>
    ({ name: 'p', model: `m/${minute}`, updatedAt: `2026-01-01T00:0${minute}:00.000Z`, version }) as Profile
  book.putProfile('acme', at(2, 5))
  book.putProfile('acme', at(3, 4))
  assert.equal(book.profile('acme', 'p')?.model, 'm/2')
  book.putProfile('acme', at(1))
  assert.equal(book.profile('acme', 'p')?.model, 'm/2')
  book.putProfile('acme', at(4))
  assert.equal(book.profile('acme', 'p')?.model, 'm/4')
})

test('profiles of many values are forgotten before they fill the runner, and nobody else is', () => {
  const book = new BroadcastReceiver()
  const lists = Array.from({ length: 87_000 }, () => [])
  const many = (name: string): Profile => ({ ...profile(name, 1), metadata: { lists } })
  book.putProfile('globex', profile('theirs', 1))
  for (let i = 0; i < 30; i++) book.putProfile('acme', many(`p${i}`))
  assert.ok(book.profile('globex', 'theirs'))
  assert.ok(book.profile('acme', 'p29'))
  assert.ok(book.profiles('acme').length < 15)
  const gone: string[] = []
  const watched = new BroadcastReceiver((_tenant, name, now) => void (now ?? gone.push(name)))
  watched.deleteProfile('acme', 'p0')
  assert.deepEqual(gone, ['p0'], 'who keeps something for a profile learns of its end also when it was forgotten')
})

// The promise itself: the pages of any conductors, cut anywhere from any state of the log, late, twice and out of order.
test('whatever pages arrive in whatever order, the runner ends with the newest once somebody told it the rest', () => {
  const names = ['a', 'b', 'c']
  const write = fc.record({ name: fc.constantFrom(...names), gone: fc.boolean() })
  const cut = fc.record({ state: fc.nat(), after: fc.nat(), size: fc.integer({ min: 1, max: 4 }), order: fc.nat() })
  fc.assert(
    fc.property(fc.array(write, { minLength: 1, maxLength: 25 }), fc.array(cut, { maxLength: 40 }), (writes, cuts) => {
      /** The log as a conductor reads it after the first `n` writes: the newest change of each name, in order. */
      const logAt = (n: number): BroadcastChange[] => {
        const newest = new Map<string, BroadcastChange>()
        writes.slice(0, n).forEach(({ name, gone }, i) => {
          const revision = i + 1
          newest.delete(name)
          const change = { revision, kind: 'profile' as const, key: name }
          newest.set(name, gone ? change : { ...change, profile: profile(name, revision) })
        })
        return [...newest.values()]
      }
      const pageOf = (n: number, after: number, size: number): BroadcastPage => {
        const changes = logAt(n)
          .filter(({ revision }) => revision > after)
          .slice(0, size)
        return { after, revision: changes.at(-1)?.revision ?? after, changes }
      }
      const book = new BroadcastReceiver()
      const pages = cuts.map(({ state, after, size, order }) => {
        const n = (state % writes.length) + 1
        return { order, page: pageOf(n, after % n, size) }
      })
      const oldest = new Map<string, number>()
      let last = 0
      for (const { page } of pages.toSorted((a, b) => a.order - b.order)) {
        const at = book.take('acme', page)
        assert.ok(at >= last)
        last = at
        // No profile ever goes back to an older version, nor comes back as the version that was deleted.
        for (const name of names) {
          const held = book.profile('acme', name)?.version
          assert.ok((held ?? Infinity) >= (oldest.get(name) ?? 0))
          oldest.set(name, held ?? Math.floor(oldest.get(name) ?? 0) + 0.5)
        }
      }
      for (let at = book.take('acme', { after: 0, revision: 0, changes: [] }); at < writes.length;)
        at = book.take('acme', pageOf(writes.length, at, 2))
      const expected = logAt(writes.length).flatMap((change) => change.profile ?? [])
      assert.deepEqual(
        book.profiles('acme'),
        expected.toSorted((a, b) => (a.name < b.name ? -1 : 1)),
      )
    }),
    { numRuns: 1000 },
  )
})
