import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { type TestContext, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { definePlugin, type Entry, isAppError } from '#kernel'
import { ReadinessChecks } from '#contracts/health'
import { Kv } from '#contracts/kv'
import { databasePlugin, testKernel } from '#testing'
import plugin from '../index.ts'

/** The plugin as one process has it, beside a database when there is a DSN. */
export async function kvKernel(
  t: TestContext,
  { dsn, ...config }: { dsn?: string; url?: string; withoutRedis?: string } = {},
  listeners: readonly string[] = [],
) {
  let kv: Kv | undefined
  let check: (() => Promise<unknown>) | undefined
  const peek = definePlugin({
    name: 'peek',
    requires: { kv: Kv, checks: ReadinessChecks },
    async setup({ deps }) {
      kv = deps.kv
      check = deps.checks.get('kv')
      return {}
    },
  })
  const database: Entry[] = dsn === undefined ? [] : [await databasePlugin(dsn)]
  const kernel = await testKernel(t, [...database, { name: 'kv', plugin, config }, peek], { listeners })
  return { kv: kv!, check: check!, kernel }
}

export const unavailable = (error: unknown): boolean =>
  isAppError(error) && error.code === 'unavailable' && error.status === 503 && error.retryable

/** Opens several clients of one store, or skips the test and returns undefined when there is none. */
export type OpenClients = (t: TestContext, count: number) => Promise<Kv[] | undefined>

/** Tries again until it holds. Bounded, so that a broken promise fails its test instead of hanging the run. */
export async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  for (let attempt = 0; attempt < 2_000; attempt++) {
    if (await holds()) return
    await sleep(5)
  }
  assert.fail('it never came true')
}

/** What every driver promises. */
export function testKv(driver: string, open: OpenClients): void {
  const promise = (name: string, clients: number, body: (kvs: Kv[]) => Promise<void>): void => {
    test(`${driver}: ${name}`, async (t) => {
      const kvs = await open(t, clients)
      if (kvs) await body(kvs)
    })
  }

  promise('a key is claimed once, by one of many callers', 4, async (kvs) => {
    const answers = await Promise.all(Array.from({ length: 40 }, (_, i) => kvs[i % 4]!.claim('nonce:a', 60_000)))
    assert.equal(answers.filter(Boolean).length, 1)
    assert.equal(await kvs[0]!.claim('nonce:b', 60_000), true)
  })

  promise('a claim ends with its time', 1, async ([kv]) => {
    assert.equal(await kv!.claim('short', 30), true)
    await until(() => kv!.claim('short', 30))
  })

  promise('hits are counted up to the limit, refused ones are not', 1, async ([kv]) => {
    for (const count of [1, 2, 3])
      assert.deepEqual(await kv!.hit('k', 3, 60), { allowed: true, count, retryAfterMs: 0 })
    for (let i = 0; i < 5; i++) {
      const { allowed, count, retryAfterMs } = await kv!.hit('k', 3, 60)
      assert.deepEqual({ allowed, count }, { allowed: false, count: 3 })
      assert.ok(retryAfterMs > 0 && retryAfterMs <= 61_000, `${retryAfterMs}`)
    }
    assert.equal((await kv!.hit('k', 4, 60)).allowed, true)
    assert.equal((await kv!.hit('other', 3, 60)).count, 1)
    assert.equal((await kv!.hit('none', 0, 60)).allowed, false)
  })

  promise('a key may be claimed and hit without the two meeting', 1, async ([kv]) => {
    assert.equal(await kv!.claim('same', 60_000), true)
    assert.equal((await kv!.hit('same', 1, 60)).allowed, true)
  })

  promise('no window holds more hits than the limit, with four clients', 4, async (kvs) => {
    const limit = 20
    const windowMs = 1_000
    const allowed: { before: number; after: number }[] = []
    const client = async (kv: Kv): Promise<void> => {
      while (allowed.length < 1.5 * limit) {
        const before = performance.now()
        const hit = await kv.hit('w', limit, windowMs / 1_000)
        if (hit.allowed) allowed.push({ before, after: performance.now() })
        else await sleep(1)
      }
    }
    await Promise.all(kvs.map(client))
    // A hit happened between `before` and `after`: only those certainly inside a window count against it.
    for (const { before: start } of allowed) {
      const inside = allowed.filter((hit) => hit.before >= start && hit.after < start + windowMs)
      assert.ok(inside.length <= limit, `${inside.length} in one window`)
    }
  })

  promise('a message reaches every subscriber of its channel, until it leaves', 2, async ([one, two]) => {
    const channel = randomBytes(8).toString('hex')
    const got: string[] = []
    const heard = (who: string) => (message: string) => void got.push(`${who} ${message}`)
    const leave = [one!.subscribe(channel, heard('one')), two!.subscribe(channel, heard('two'))]
    one!.subscribe(`${channel}-other`, heard('other'))
    one!.subscribe(channel, () => assert.fail('a subscriber that throws disturbs nobody'))
    // A subscription takes effect a moment after the call, and a publication before that is lost: it is only a wake-up.
    await until(() => {
      two!.publish([channel], 'ping')
      return got.includes('one ping') && got.includes('two ping')
    })
    leave[0]!()
    got.length = 0
    await until(() => {
      one!.publish([channel], 'pong')
      return got.filter((line) => line === 'two pong').length >= 2
    })
    assert.equal(got.includes('one pong'), false)
    assert.equal(
      got.some((line) => line.startsWith('other')),
      false,
    )
  })
}
