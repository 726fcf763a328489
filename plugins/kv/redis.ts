import fastifyRedis from '@fastify/redis'
import { Redis } from 'ioredis'
import type { App } from '#kernel'
import type { Channels, Store } from './store.ts'

/**
 * The sliding window of `hit` on the server: one-second buckets in a hash, on the server's clock, so that processes whose
 * clocks differ agree. Counts one bucket more than the window has seconds, for the same reason as the memory driver.
 */
const hitScript = `
local time = redis.call('TIME')
local second = tonumber(time[1])
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local all = redis.call('HGETALL', KEYS[1])
local count, oldest, gone = 0, second, {}
for i = 1, #all, 2 do
  local at = tonumber(all[i])
  if at < second - window then
    gone[#gone + 1] = all[i]
  else
    count = count + tonumber(all[i + 1])
    if at < oldest then oldest = at end
  end
end
if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
if count >= limit then
  return {0, count, (oldest + window + 1 - second) * 1000 - math.floor(tonumber(time[2]) / 1000)}
end
redis.call('HINCRBY', KEYS[1], second, 1)
redis.call('EXPIRE', KEYS[1], window + 1)
return {1, count + 1, 0}
`

/** One message on many channels: as a command for each, thousands a second cost the sender more than what they announce. */
const publishScript = `
for i = 2, #ARGV do redis.call('PUBLISH', ARGV[i], ARGV[1]) end
`

/** A request waits this long for an answer, in two steps; then PostgreSQL is asked instead. */
const stepMs = 125
const options = {
  connectTimeout: 2_000,
  retryStrategy: (attempt: number) => Math.min(50 * 2 ** attempt, 2_000),
  enableOfflineQueue: false,
  maxRetriesPerRequest: 0,
  // A claim sent twice would refuse its own caller.
  autoResendUnfulfilledCommands: false,
}
/** The boot waits this long for Redis, so that the first requests find it. */
const bootMs = 2_000

interface Client extends Redis {
  aoHit(
    key: string,
    limit: number,
    windowSeconds: number,
  ): Promise<[allowed: number, count: number, retryAfterMs: number]>
  aoPublish(message: string, ...channels: readonly string[]): Promise<unknown>
}

/** Everything rejects, within a quarter of a second, while the server does not answer. */
export interface RedisStore extends Store {
  publish(channels: readonly string[], message: string): Promise<void>
  /** Subscribes to a channel; its messages are delivered from a moment after the call. */
  watch(channel: string): void
  unwatch(channel: string): void
  /** Resolves when the server takes writes and delivers messages. */
  probe(): Promise<void>
  /** Resolves when the server has answered, or will not in time for the boot. */
  readonly opened: Promise<void>
  close(): Promise<void>
}

interface RedisOptions {
  readonly channels: Channels
  /** The listener to register the client on. */
  readonly listener?: App | undefined
  /** Called, once or several times, when a connection is gone. Whether it is back, `probe` finds out. */
  onLost(cause: Error): void
}

/** Why an address names no Redis at all, in a sentence without the address: it may hold a password. */
export const addressProblem = (url: string): string | undefined =>
  /^rediss?:\/\//.test(url) && URL.canParse(url)
    ? undefined
    : 'REDIS_URL must be an address like redis://user:password@host:6379'

/** Connects, and reconnects by itself for ever. A server that cannot be reached now is no failure. */
export function createRedisStore(url: string, { channels, listener, onLost }: RedisOptions): RedisStore {
  let closing = false
  /** The subscriber is in use: the first subscription opens it. */
  let subscribed = false
  const lost = (): void => {
    if (!closing) onLost(new Error('The connection to Redis was closed.'))
  }
  const client = new Redis(url, {
    ...options,
    scripts: {
      aoHit: { lua: hitScript, numberOfKeys: 1 },
      aoPublish: { lua: publishScript, numberOfKeys: 0 },
    },
  }) as Client
  client.on('error', () => {}).on('close', lost)
  const subscriber = client.duplicate({ lazyConnect: true, autoResubscribe: false })
  subscriber.on('error', () => {})
  subscriber.on('close', () => {
    if (subscribed) lost()
  })
  subscriber.on('message', (channel: string, message: string) => channels.deliver(channel.slice(3), message))
  // The client's own way of subscribing again forgets a subscription that was under way when the connection broke.
  const listenTo = (channel: string): void => void subscriber.subscribe(`ao:${channel}`).catch(() => {})
  subscriber.on('ready', () => {
    subscribed = true
    channels.names().forEach(listenTo)
  })

  return {
    opened: firstTry(client).then(async () => {
      // Where the server cannot be reached now the listener has no `redis`: @fastify/redis would hold up the boot for it.
      if (listener && client.status === 'ready') await listener.register(fastifyRedis, { client })
    }),
    claim: async (key, ttlMs) => (await inTime(client.set(`ao:${key}`, '1', 'PX', ttlMs, 'NX'))) === 'OK',
    async hit(key, limit, windowSeconds) {
      const [allowed, count, retryAfterMs] = await inTime(client.aoHit(`ao:hit:${key}`, limit, windowSeconds))
      return { allowed: allowed === 1, count, retryAfterMs }
    },
    async publish(names, message) {
      await inTime(client.aoPublish(message, ...names.map((name) => `ao:${name}`)))
    },
    watch(channel) {
      if (subscriber.status === 'ready') listenTo(channel)
      else if (subscriber.status === 'wait') subscriber.connect().catch(() => {})
    },
    unwatch: (channel) => void subscriber.unsubscribe(`ao:${channel}`).catch(() => {}),
    async probe() {
      // A write, because a replica that takes none answers a PING as well.
      const asked = [answered(client, () => client.set('ao:probe', '1', 'PX', 1_000))]
      if (subscribed) asked.push(answered(subscriber, () => subscriber.ping()))
      await Promise.all(asked)
    },
    async close() {
      closing = true
      subscriber.disconnect()
      if (client.status === 'ready') await inTime(client.quit()).catch(() => {})
      client.disconnect()
    },
  }
}

/** Replaces a connection that is open and silent: its other end may have vanished without closing it. */
async function answered(connection: Redis, ask: () => Promise<unknown>): Promise<void> {
  if (connection.status !== 'ready') throw new Error('There is no connection to Redis.')
  try {
    await inTime(ask())
  } catch (error) {
    if (connection.status === 'ready') connection.disconnect(true)
    throw error
  }
}

/** Waits in two steps. Sockets are read between them, so a process whose own event loop was late still finds the answer. */
async function inTime<T>(answer: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      timer = setTimeout(() => reject(new Error('Redis is silent.')), stepMs)
    }, stepMs)
  })
  try {
    return await Promise.race([answer, late])
  } finally {
    clearTimeout(timer)
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
