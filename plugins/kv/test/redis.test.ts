import assert from 'node:assert/strict'
import { connect, createServer, type Socket } from 'node:net'
import { once } from 'node:events'
import { type TestContext, test } from 'node:test'
import { pino } from 'pino'
import { isAppError } from '#kernel'
import { redisForTests } from '#testing'
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

/** A door to Redis that can be shut: connections break and new ones are refused until it opens again. */
async function door(t: TestContext, url: string) {
  const { hostname, port: redisPort } = new URL(url)
  const sockets = new Set<Socket>()
  const server = createServer((socket) => {
    const upstream = connect(Number(redisPort || 6379), hostname)
    for (const s of [socket, upstream]) {
      sockets.add(s)
      s.on('error', () => {}).on('close', () => {
        sockets.delete(s)
        socket.destroy()
        upstream.destroy()
      })
    }
    socket.pipe(upstream).pipe(socket)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  const shut = (): void => {
    server.close()
    for (const socket of sockets) socket.destroy()
  }
  t.after(shut)
  const target = new URL(url)
  target.host = `127.0.0.1:${port}`
  const hang = (): void => {
    for (const socket of sockets) socket.pause().unpipe()
  }
  return { url: target.href, shut, hang, reopen: () => once(server.listen(port, '127.0.0.1'), 'listening') }
}

const unavailable = (error: unknown): boolean =>
  isAppError(error) && error.code === 'unavailable' && error.status === 503 && error.retryable

test('redis: while the server is away every command is a 503, and afterwards all is well without a restart', async (t) => {
  const url = await redisForTests(t)
  if (url === undefined) return
  const between = await door(t, url)
  const { kv, check } = await open(t, between.url)
  const got: string[] = []
  kv.subscribe(between.url, (message) => got.push(message))
  await check()
  assert.equal(await kv.claim('k', 60_000), true)
  between.shut()
  await assert.rejects(kv.claim('k', 60_000), unavailable)
  await assert.rejects(kv.hit('k', 1, 60), unavailable)
  await assert.rejects(check(), unavailable)
  kv.publish('k', 'lost')
  await between.reopen()
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
  const between = await door(t, url)
  const { kv } = await open(t, between.url)
  between.hang()
  await assert.rejects(kv.claim('k', 60_000), unavailable)
})
