import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { pino } from 'pino'
import { isAppError } from '#kernel'
import { redisForTests, startProxy, testKernel } from '#testing'
import kv from '../index.ts'
import { connectRedis } from '../redis.ts'
import { testKv, until } from './suite.ts'

const log = pino({ level: 'silent' })

async function open(t: TestContext, url: string) {
  const redis = await connectRedis(url, log)
  t.after(() => redis.close())
  return redis
}

testKv('redis', async (t, count) => {
  const url = await redisForTests(t)
  if (url === undefined) return undefined
  return Promise.all(Array.from({ length: count }, async () => (await open(t, url)).kv))
})

const unavailable = (error: unknown): boolean =>
  isAppError(error) && error.code === 'unavailable' && error.status === 503 && error.retryable

test('redis: while the server is away every command is a 503, and afterwards all is well without a restart', async (t) => {
  const url = await redisForTests(t)
  if (url === undefined) return
  const between = await startProxy(t, url)
  const { kv, check } = await open(t, between.url)
  const got: string[] = []
  kv.subscribe(between.url, (message) => got.push(message))
  await check()
  assert.equal(await kv.claim('k', 60_000), true)
  between.cut()
  await assert.rejects(kv.claim('k', 60_000), unavailable)
  await assert.rejects(kv.hit('k', 1, 60), unavailable)
  await assert.rejects(check(), unavailable)
  kv.publish('k', 'lost')
  between.heal()
  await until(() =>
    check().then(
      () => true,
      () => false,
    ),
  )
  assert.equal(await kv.claim('k', 60_000), false)
  await until(() => {
    kv.publish(between.url, 'again')
    return got.length > 0
  })
})

test('redis: a server that hangs is a 503 within the time that a request may wait', async (t) => {
  const url = await redisForTests(t)
  if (url === undefined) return
  const between = await startProxy(t, url)
  const { kv } = await open(t, between.url)
  between.hang()
  await assert.rejects(kv.claim('k', 60_000), unavailable)
})

test('redis: a server that is away at boot is a 503 until it comes, without a restart', async (t) => {
  const url = await redisForTests(t)
  if (url === undefined) return
  const between = await startProxy(t, url)
  between.cut()
  const { kv, check } = await open(t, between.url)
  const got: string[] = []
  kv.subscribe(between.url, (message) => got.push(message))
  await assert.rejects(kv.claim('k', 60_000), unavailable)
  await assert.rejects(check(), unavailable)
  between.heal()
  await until(() =>
    check().then(
      () => true,
      () => false,
    ),
  )
  assert.equal(await kv.claim('k', 60_000), true)
  await until(() => {
    kv.publish(between.url, 'hello')
    return got.length > 0
  })
})

test('redis: a process whose server never came stops all the same', async (t) => {
  const url = await redisForTests(t)
  if (url === undefined) return
  const between = await startProxy(t, url)
  between.cut()
  const redis = await connectRedis(between.url, log)
  await redis.close()
})

test('redis: an address that names no server is refused at boot in a sentence without the password', async (t) => {
  for (const url of ['localhost:6379', 'redis://user:canary@host:notaport', 'http://user:canary@host']) {
    const entry = { name: 'kv', plugin: kv, config: { url } }
    await assert.rejects(testKernel(t, [entry], { listeners: [] }), (error: Error) => {
      assert.match(error.message, /REDIS_URL must be an address like redis:/)
      assert.doesNotMatch(error.message, /canary/)
      return true
    })
  }
})
