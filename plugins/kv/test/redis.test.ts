import assert from 'node:assert/strict'
import { test } from 'node:test'
import { redisForTests, startProxy } from '#testing'
import { kvKernel, testKv, unavailable, until } from './suite.ts'

testKv('redis', async (t, count) => {
  const url = await redisForTests(t)
  if (url === undefined) return undefined
  const kvs = await Promise.all(Array.from({ length: count }, async () => (await kvKernel(t, { url })).kv))
  assert.equal(kvs[0]!.backend, 'redis')
  return kvs
})

const holds = (check: () => Promise<unknown>) => () =>
  check().then(
    () => true,
    () => false,
  )

test('redis: without a database every command is a 503 while the server is away, and all is well afterwards without a restart', async (t) => {
  const url = await redisForTests(t)
  if (url === undefined) return
  const between = await startProxy(t, url)
  const { kv, check } = await kvKernel(t, { url: between.url })
  const got: string[] = []
  kv.subscribe(between.url, (message) => got.push(message))
  await until(holds(check))
  assert.equal(await kv.claim('k', 60_000), true)
  between.cut()
  await assert.rejects(kv.claim('k', 60_000), unavailable)
  await assert.rejects(kv.hit('k', 1, 60), unavailable)
  await assert.rejects(check(), unavailable)
  between.heal()
  await until(holds(check))
  assert.equal(await kv.claim('k', 60_000), false)
  await until(() => {
    kv.publish([between.url], 'again')
    return got.length > 0
  })
})

test('redis: without a database a server that hangs, or is away at boot, is a 503 until it comes', async (t) => {
  const url = await redisForTests(t)
  if (url === undefined) return
  const between = await startProxy(t, url)
  between.cut()
  const { kv, check, kernel } = await kvKernel(t, { url: between.url })
  await assert.rejects(kv.claim('k', 60_000), unavailable)
  await assert.rejects(check(), unavailable)
  between.heal()
  await until(holds(check))
  assert.equal(await kv.claim('k', 60_000), true)
  between.hang()
  await assert.rejects(kv.claim('k', 60_000), unavailable)
  await kernel.stop()
})

test('redis: a listener has the client as `redis` when the server is there at boot', async (t) => {
  const url = await redisForTests(t)
  if (url === undefined) return
  const { kernel, kv } = await kvKernel(t, { url }, ['gateway'])
  const client = kernel.listeners['gateway']!.getDecorator<{ status: string }>('redis')
  assert.equal(client.status, 'ready')
  await kv.claim('k', 60_000)
  await kernel.stop()
  await until(() => client.status === 'end')
})

test('redis: an address that names no server is refused at boot in a sentence without the password', async (t) => {
  for (const url of ['localhost:6379', 'redis://user:canary@host:notaport', 'http://user:canary@host']) {
    await assert.rejects(kvKernel(t, { url }), (error: Error) => {
      assert.match(error.message, /REDIS_URL must be an address like redis:/)
      assert.doesNotMatch(error.message, /canary/)
      return true
    })
  }
})
