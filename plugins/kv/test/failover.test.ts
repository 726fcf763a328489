import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { pino } from 'pino'
import { freshDatabase, type Proxy, redisForTests, startProxy } from '#testing'
import { createFailover } from '../failover.ts'
import { kvKernel, until } from './suite.ts'

/** Two processes on one database, each with a connection of its own to one Redis. */
async function twoProcesses(t: TestContext) {
  const url = await redisForTests(t)
  if (url === undefined) return undefined
  const dsn = await freshDatabase(t)
  const ways: Proxy[] = [await startProxy(t, url), await startProxy(t, url)]
  const [one, two] = await Promise.all(ways.map((way) => kvKernel(t, { dsn, url: way.url })))
  return { ways, one: one!, two: two! }
}

type Process = NonNullable<Awaited<ReturnType<typeof twoProcesses>>>['one']
const said = ({ kernel }: Process, text: RegExp): number =>
  kernel.logs.filter((line) => text.test(String(line['msg']))).length
const backAgain = (process: Process): Promise<void> =>
  until(async () => (await process.check()) === undefined && said(process, /is used/) > 0)

test('a key that was claimed is refused by every process, before, during and after an outage of Redis that only one of them sees', async (t) => {
  const both = await twoProcesses(t)
  if (!both) return
  const { ways, one, two } = both
  const claimed: string[] = []
  const claimAtBoth = async (name: string): Promise<void> => {
    for (const [i, first, second] of [
      [0, one, two],
      [1, two, one],
    ] as const) {
      assert.equal(await first.kv.claim(`${name} ${i}`, 60_000), true)
      claimed.push(`${name} ${i}`)
      assert.equal(await second.kv.claim(`${name} ${i}`, 60_000), false)
    }
    for (const key of claimed) for (const { kv } of [one, two]) assert.equal(await kv.claim(key, 60_000), false, key)
  }
  await claimAtBoth('before')
  ways[0]!.cut()
  await claimAtBoth('one is cut off')
  ways[1]!.hang()
  await claimAtBoth('both are')
  for (const way of ways) way.heal()
  await Promise.all([one, two].map(async (process) => said(process, /stands in/) > 0 && backAgain(process)))
  await claimAtBoth('after')
})

test('no hit fails while Redis is cut or hangs under load, and each store admits its limit once', async (t) => {
  for (const fault of ['cut', 'hang'] as const) {
    const both = await twoProcesses(t)
    if (!both) return
    const { ways, one, two } = both
    const limit = 30
    let allowed = 0
    let asked = 0
    const load = async ({ kv }: Process): Promise<void> => {
      while (asked < 400) {
        asked++
        if (asked === 150) for (const way of ways) way[fault]()
        if ((await kv.hit('k', limit, 600)).allowed) allowed++
      }
    }
    await Promise.all(Array.from({ length: 20 }, (_, i) => load(i % 2 === 0 ? one : two)))
    assert.ok(allowed > limit && allowed <= 2 * limit, `${allowed}`)
    for (const process of [one, two]) {
      assert.equal(await process.check(), 'Redis does not answer; PostgreSQL stands in for it.')
    }
    for (const way of ways) way.heal()
    await Promise.all([backAgain(one), backAgain(two)])
    assert.equal((await one.kv.hit('k', limit, 600)).allowed, false)
  }
})

test('wake-ups reach the other process while one of them, or both, are cut off from Redis, and afterwards', async (t) => {
  const both = await twoProcesses(t)
  if (!both) return
  const { ways, one, two } = both
  const got = { one: 0, two: 0 }
  one.kv.subscribe('c', () => got.one++)
  two.kv.subscribe('c', () => got.two++)
  const eachHearsTheOther = async (): Promise<void> => {
    got.two = 0
    await until(() => (one.kv.publish(['c'], ''), got.two > 0))
    got.one = 0
    await until(() => (two.kv.publish(['c'], ''), got.one > 0))
  }
  await eachHearsTheOther()
  ways[0]!.cut()
  await until(async () => (await one.check()) !== undefined)
  await eachHearsTheOther()
  ways[1]!.cut()
  await until(async () => (await two.check()) !== undefined)
  await eachHearsTheOther()
  for (const way of ways) way.heal()
  await Promise.all([backAgain(one), backAgain(two)])
  await eachHearsTheOther()
})

test('a Redis that is away at boot is replaced from the first request on', async (t) => {
  const url = await redisForTests(t)
  if (url === undefined) return
  const way = await startProxy(t, url)
  way.cut()
  const process = await kvKernel(t, { dsn: await freshDatabase(t), url: way.url })
  assert.equal((await process.kv.hit('k', 1, 60)).allowed, true)
  assert.equal((await process.kv.hit('k', 1, 60)).allowed, false)
  way.heal()
  await backAgain(process)
})

test('Redis is only taken back once it has answered for a while, and for longer when that did not last', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  let now = 0
  t.mock.method(performance, 'now', () => now)
  const switches: boolean[] = []
  let answers = false
  const failover = createFailover({
    log: pino({ level: 'silent' }),
    replaced: true,
    probe: async () => {
      if (!answers) throw new Error('away')
    },
    onSwitch: (up) => switches.push(up),
  })
  const pass = async (ms: number): Promise<void> => {
    for (const end = now + ms; now < end;) {
      now += 200
      t.mock.timers.tick(200)
      await new Promise(setImmediate)
    }
  }
  failover.lost(new Error('cut'))
  await pass(5_000)
  answers = true
  await pass(800)
  answers = false
  await pass(200)
  answers = true
  await pass(1_000)
  assert.deepEqual(switches, [false])
  await pass(400)
  assert.deepEqual(switches, [false, true])
  failover.lost(new Error('cut'))
  await pass(1_800)
  assert.deepEqual(switches, [false, true, false])
  await pass(600)
  assert.deepEqual(switches, [false, true, false, true])
  failover.close()
})
