import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isDeepStrictEqual } from 'node:util'
import type { BroadcastPage } from '#contracts/broadcast'
import type { Profile } from '#contracts/profiles'
import type { RunnerLink } from '#contracts/runner'
import { measureJson } from '#kit'
import { freshDatabase } from '#testing'
import type { Pool } from '../plugins/profiles/schema.ts'
import { conductor } from '../plugins/profiles/test/conductor.ts'
import { BroadcastReceiver } from '../plugins/runner/broadcast.ts'

// The promise: however long a runner was away and whoever wrote meanwhile, it ends with the newest profiles and pools.
// Both ends are the real ones; between them is a line that can be cut.

class Runner {
  readonly hash: string
  away = false
  readonly pages: BroadcastPage[] = []
  #memory = new BroadcastReceiver()
  constructor(hash: string) {
    this.hash = hash
  }
  restart(): void {
    this.#memory = new BroadcastReceiver()
  }
  profiles = (tenantId: string): Profile[] => this.#memory.profiles(tenantId)
  pools = (tenantId: string) => this.#memory.pools(tenantId)
  get link(): RunnerLink {
    return this as unknown as RunnerLink
  }
  async takeBroadcast(tenantId: string, page: BroadcastPage): Promise<number> {
    if (this.away) throw new Error('connect ECONNREFUSED')
    this.pages.push(page)
    return this.#memory.take(tenantId, page)
  }
  async behind(revisions: Record<string, number>): Promise<string[]> {
    if (this.away) throw new Error('connect ECONNREFUSED')
    return this.#memory.behind(revisions)
  }
}

type Conductor = Awaited<ReturnType<typeof conductor>>
const tenants = ['acme', 'globex']

async function truth({ call }: Conductor, tenantId: string) {
  const profiles = (await call('GET', '/api/profiles', undefined, tenantId)).json<Profile[]>()
  return profiles.toSorted((a, b) => (a.name < b.name ? -1 : 1))
}

/** Waits until a runner has what the database has; the test's own time limit ends a wait in vain. */
async function agree(of: Conductor, runners: readonly Runner[]): Promise<void> {
  for (;;) {
    let same = true
    for (const tenantId of tenants) {
      const expected = await truth(of, tenantId)
      for (const runner of runners) same &&= isDeepStrictEqual(runner.profiles(tenantId), expected)
    }
    if (same) return
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

test('a runner has every change of every tenant before its answer', async (t) => {
  const runner = new Runner('aaaaaaaa')
  const one = await conductor(t, { runners: [runner.link] })
  await one.call('POST', '/api/profiles', { name: 'p', model: 'a/1' })
  await one.call('POST', '/api/profiles', { name: 'q' }, 'globex')
  assert.deepEqual(runner.profiles('acme'), await truth(one, 'acme'))
  assert.deepEqual(runner.profiles('globex'), await truth(one, 'globex'))
  await one.call('PUT', '/api/profiles/p', { model: 'a/2' })
  assert.deepEqual(
    runner.profiles('acme').map(({ model, version }) => [model, version]),
    [['a/2', 2]],
  )
  await one.call('POST', '/api/profiles/p/versions/1/restore')
  assert.deepEqual(
    runner.profiles('acme').map(({ model, version }) => [model, version]),
    [['a/1', 3]],
  )
  await one.call('DELETE', '/api/profiles/p')
  assert.deepEqual(runner.profiles('acme'), [])
  // One page with one change for each: a runner that keeps up is sent nothing twice.
  assert.deepEqual(
    runner.pages.map(({ changes }) => changes.length),
    [1, 1, 1, 1, 1],
  )
  await one.addPool('gpu', { runners: ['aaaaaaaa'] })
  await one.call('POST', '/api/profiles', { name: 'p', pool: 'gpu' })
  const [pool] = runner.pools('acme') as Pool[]
  assert.deepEqual([pool?.id, pool?.name, pool?.runners], ['pool_gpu', 'gpu', ['aaaaaaaa']])
})

test(
  'a runner that was away, restarted or is new ends with the newest, deletions included',
  { timeout: 30_000 },
  async (t) => {
    const [away, restarted, added] = ['aaaaaaaa', 'bbbbbbbb', 'cccccccc'].map((hash) => new Runner(hash))
    const runners = [away!.link, restarted!.link]
    const one = await conductor(t, { runners })
    for (const tenant of tenants) {
      await one.call('POST', '/api/profiles', { name: 'kept', model: 'a/1' }, tenant)
      await one.call('POST', '/api/profiles', { name: 'gone' }, tenant)
    }
    away!.away = true
    restarted!.restart()
    for (const tenant of tenants) {
      await one.call('PUT', '/api/profiles/kept', { model: 'a/2' }, tenant)
      await one.call('DELETE', '/api/profiles/gone', undefined, tenant)
      await one.call('POST', '/api/profiles', { name: 'new' }, tenant)
    }
    away!.away = false
    runners.push(added!.link)
    for (const runner of [away, restarted, added]) one.becomesLive(runner!.link)
    await agree(one, [away!, restarted!, added!])
    assert.deepEqual(
      added!.profiles('globex').map(({ name, model }) => [name, model]),
      [
        ['kept', 'a/2'],
        ['new', 'builtin/demo'],
      ],
    )
  },
)

test('what a conductor committed before it died is told by another one', { timeout: 30_000 }, async (t) => {
  const runner = new Runner('aaaaaaaa')
  const dsn = await freshDatabase(t)
  const dies = await conductor(t, { dsn })
  await conductor(t, { dsn, runners: [runner.link], broadcastEvery: '50ms' })
  await dies.call('POST', '/api/profiles', { name: 'p' })
  await dies.call('POST', '/api/profiles', { name: 'q' }, 'globex')
  await agree(dies, [runner])
})

test('thousands of profiles come in pages that fit into memory', { timeout: 30_000 }, async (t) => {
  const runner = new Runner('aaaaaaaa')
  const one = await conductor(t, { runners: [runner.link] })
  await one.database.batch('acme', [
    {
      text: `INSERT INTO profiles (tenant_id, name, id, document)
             SELECT 'acme', 'p' || n, 'id' || n, jsonb_build_object('model', 'a/1', 'instructions',
               CASE WHEN n % 50 = 0 THEN repeat('x', 400000) ELSE '' END)
             FROM generate_series(1, 1000) n`,
    },
    {
      text: `INSERT INTO profiles (tenant_id, name, id, document)
             VALUES ('acme', 'huge', 'huge', jsonb_build_object('instructions', repeat('x', 3000000)))`,
    },
  ])
  runner.pages.length = 0
  one.becomesLive(runner.link)
  while (runner.profiles('acme').length < 1001) await new Promise((resolve) => setTimeout(resolve, 20))
  for (const page of runner.pages) {
    assert.ok(page.changes.length <= 200)
    const sizes = page.changes.map((change) => JSON.stringify(change).length)
    // The last change may exceed the limit.
    assert.ok(sizes.slice(0, -1).reduce((sum, size) => sum + size, 0) < 1024 * 1024 + 100 * sizes.length + 400_000)
  }
  const numbers = runner.pages.slice(1).flatMap(({ changes }) => changes.map(({ revision }) => revision))
  assert.equal(new Set(numbers).size, numbers.length)
})

test('a page has no more values than a runner parses in one step', { timeout: 30_000 }, async (t) => {
  const runner = new Runner('aaaaaaaa')
  const one = await conductor(t, { runners: [runner.link] })
  // As a release without a bound of values stored them.
  await one.database.batch('acme', [
    {
      text: `INSERT INTO profiles (tenant_id, name, id, document)
             SELECT 'acme', 'p' || n, 'id' || n, jsonb_build_object('model', 'a/1', 'metadata', jsonb_build_object('lists', $1::jsonb))
             FROM generate_series(1, 20) n`,
      values: [JSON.stringify(Array.from({ length: 20_000 }, () => []))],
    },
  ])
  one.becomesLive(runner.link)
  while (runner.pages.at(-1)?.revision !== 20 || runner.profiles('acme').length < 20)
    await new Promise((resolve) => setTimeout(resolve, 20))
  const values = runner.pages.map((page) => measureJson(Buffer.from(JSON.stringify(page))).parts)
  assert.ok(Math.max(...values) < 200_000, String(values))
})

test('a page that is full hides nothing behind small changes', { timeout: 30_000 }, async (t) => {
  const runner = new Runner('aaaaaaaa')
  const one = await conductor(t, { runners: [runner.link] })
  runner.away = true
  const instructions = 'x'.repeat(190_000)
  await one.call('POST', '/api/profiles', { name: 'gone' })
  for (let i = 0; i < 8; i++) await one.call('POST', '/api/profiles', { name: `p${i}`, instructions })
  await one.addPool('gpu')
  await one.call('DELETE', '/api/profiles/gone')
  runner.away = false
  one.becomesLive(runner.link)
  await agree(one, [runner])
  assert.equal(runner.pools('acme').length, 1)
})

test(
  'two conductors, many writers, runners that come and go: all end with the newest',
  { timeout: 60_000 },
  async (t) => {
    const dsn = await freshDatabase(t)
    const runners = ['aaaaaaaa', 'bbbbbbbb'].map((hash) => new Runner(hash))
    const links = runners.map(({ link }) => link)
    const both = await Promise.all([0, 1].map(() => conductor(t, { dsn, runners: links, broadcastEvery: '100ms' })))
    const names = ['a', 'b', 'c', 'd']
    let seed = 7
    const random = (below: number): number => ((seed = (seed * 48_271) % 2_147_483_647) >> 8) % below
    const write = async (one: Conductor, i: number): Promise<void> => {
      const [tenant, name] = [tenants[random(2)]!, names[random(4)]!]
      const kind = random(3)
      if (kind === 0) await one.call('DELETE', `/api/profiles/${name}`, undefined, tenant)
      else if (kind === 1) await one.call('POST', '/api/profiles', { name, model: `m/${i}` }, tenant)
      else await one.call('PUT', `/api/profiles/${name}`, { model: `m/${i}` }, tenant)
    }
    for (let round = 0; round < 25; round++) {
      const runner = runners[random(2)]!
      if (random(3) === 0) runner.restart()
      runner.away = random(3) === 0
      await Promise.all([0, 1, 2, 3, 4, 5].map((i) => write(both[i % 2]!, round * 10 + i)))
    }
    for (const runner of runners) runner.away = false
    await agree(both[0]!, runners)
    // Most of it must have worked, or the test proves nothing.
    const [rows] = await both[0]!.database.batch<[{ count: number }[]]>('acme', [
      { text: 'SELECT count(*)::int AS count FROM profile_versions' },
    ])
    assert.ok(rows[0]!.count > 20)
  },
)
