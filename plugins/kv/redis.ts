import Fastify, { type FastifyBaseLogger, type FastifyInstance } from 'fastify'
import fastifyRedis from '@fastify/redis'
import { Redis } from 'ioredis'
import type { ReadinessCheck } from '#contracts/health'
import type { Hit, Kv } from '#contracts/kv'
import { createChannels } from './channels.ts'
import { storeAway } from './errors.ts'
import { hitScript } from './hit-script.ts'

// A request waits for these: better a quick 503 than a queue that grows while Redis is away.
const options = {
  connectTimeout: 2_000,
  retryStrategy: (attempt: number) => Math.min(50 * 2 ** attempt, 2_000),
  commandTimeout: 250,
  enableOfflineQueue: false,
  maxRetriesPerRequest: 0,
  // A claim sent twice would refuse its own caller.
  autoResendUnfulfilledCommands: false,
}
/** A server that answers is waited for, so that the first requests find it; one that does not is not. */
const bootMs = 2_000

interface Client extends Redis {
  aoHit(
    key: string,
    limit: number,
    windowSeconds: number,
  ): Promise<[allowed: number, count: number, retryAfterMs: number]>
}

export interface RedisKv {
  readonly kv: Kv
  readonly check: ReadinessCheck
  close(): Promise<void>
}

/** Why an address names no Redis at all, in a sentence without the address: it may hold a password. */
export const addressProblem = (url: string): string | undefined =>
  /^rediss?:\/\//.test(url) && URL.canParse(url)
    ? undefined
    : 'REDIS_URL must be an address like redis://user:password@host:6379'

/** Connects, and reconnects by itself for ever. A server that is away now is no failure: until it comes every command is a 503. */
export async function connectRedis(url: string, log: FastifyBaseLogger): Promise<RedisKv> {
  const client = new Redis(url, {
    ...options,
    scripts: { aoHit: { lua: hitScript, numberOfKeys: 1 } },
  }) as Client
  reportOutages(client, log)
  await firstTry(client)
  const subscriber = client.duplicate({ commandTimeout: undefined, lazyConnect: true, autoResubscribe: false })
  subscriber.on('error', () => {})
  const channels = createChannels(log)
  subscriber.on('message', (channel: string, message: string) => channels.deliver(channel, message))
  // Ours, not the client's own way of subscribing again: that forgets a subscription that was under way when it broke.
  const listenTo = (name: string): void => void subscriber.subscribe(name).catch(() => {})
  subscriber.on('ready', () => channels.names().forEach(listenTo))

  // @fastify/redis owns the client once it is connected: closing its private, never listening host quits the connection.
  // Not sooner, because it gives up on a client whose server is away.
  let host: FastifyInstance | undefined
  const handOver = async (): Promise<void> => {
    host = Fastify({ logger: false })
    await host.register(fastifyRedis, { client, closeClient: true })
  }
  if (client.status === 'ready') await handOver()
  else client.once('ready', () => void handOver())

  const ask = async <T>(command: Promise<T>): Promise<T> => {
    try {
      return await command
    } catch (error) {
      throw storeAway(error)
    }
  }
  const kv: Kv = {
    backend: 'redis',
    claim: async (key, ttlMs) => (await ask(client.set(`ao:${key}`, '1', 'PX', ttlMs, 'NX'))) === 'OK',
    async hit(key, limit, windowSeconds): Promise<Hit> {
      const [allowed, count, retryAfterMs] = await ask(client.aoHit(`ao:hit:${key}`, limit, windowSeconds))
      return { allowed: allowed === 1, count, retryAfterMs }
    },
    publish(channel, message) {
      client
        .publish(`ao:${channel}`, message)
        .catch((error: unknown) => log.debug({ err: error }, 'a wake-up was lost'))
    },
    subscribe(channel, listener) {
      const name = `ao:${channel}`
      const remove = channels.add(name, listener)
      if (subscriber.status === 'ready') listenTo(name)
      else if (subscriber.status === 'wait') subscriber.connect().catch(() => {})
      return () => {
        if (remove()) subscriber.unsubscribe(name).catch(() => {})
      }
    },
  }
  return {
    kv,
    check: async () => void (await ask(client.ping())),
    async close() {
      subscriber.disconnect()
      if (client.status === 'ready') await host?.close().catch(() => {})
      client.disconnect()
    },
  }
}

/** Resolves when the server answers, or at the first sign that it will not: the client goes on trying. */
async function firstTry(client: Redis): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  await new Promise<void>((resolve) => {
    timer = setTimeout(resolve, bootMs)
    client.once('ready', resolve).once('error', () => resolve())
  })
  clearTimeout(timer)
}

/** One line per outage, not one per attempt to reconnect. */
function reportOutages(client: Redis, log: FastifyBaseLogger): void {
  let away = false
  client.on('error', (error: Error) => {
    if (!away) log.warn({ err: error }, 'Redis does not answer; reconnecting')
    away = true
  })
  client.on('ready', () => {
    if (away) log.info('Redis answers again')
    away = false
  })
}
