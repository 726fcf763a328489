import { randomBytes } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import { type Static, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import type { Database } from '#contracts/database'
import type { Kv } from '#contracts/kv'
import { type Failover, standIn } from './failover.ts'
import type { RedisStore } from './redis.ts'
import type { Channels, Listener, Store } from './store.ts'

export interface KvParts {
  readonly channels: Channels
  readonly memory: Store
  readonly postgres?: Store | undefined
  readonly notifications?: Notifications | undefined
  readonly redis?: { readonly store: RedisStore; readonly failover: Failover } | undefined
}

export function createKv(parts: KvParts): Kv {
  const { memory, postgres, redis } = parts
  const counted = redis ? standIn(redis.failover, redis.store, postgres) : (postgres ?? memory)
  return {
    backend: redis ? 'redis' : postgres ? 'postgres' : 'memory',
    // In one store, always: processes lose Redis at different moments, and what one of them has claimed there the others
    // could not know.
    claim: (postgres ?? counted).claim,
    hit: (key, limit, windowSeconds, scope = 'shared') =>
      (scope === 'process' ? memory : counted).hit(key, limit, windowSeconds),
    ...createWakeUps(parts),
  }
}

/** Over Redis while it is up, which delivers a process its own ones too; otherwise here at once, and elsewhere over PostgreSQL. */
function createWakeUps({ channels, redis, notifications }: KvParts): Pick<Kv, 'publish' | 'subscribe'> {
  const here = (channel: string, message: string): void => {
    // Later, as with Redis: a publisher never finds its own listeners running inside its call.
    if (channels.has(channel)) setImmediate(() => channels.deliver(channel, message))
  }
  return {
    publish(channel, message) {
      // Also beside a healthy Redis: another process may have lost it.
      notifications?.publish(channel, message)
      if (!redis?.failover.up) return here(channel, message)
      redis.store.publish(channel, message).catch((cause: unknown) => {
        redis.failover.lost(cause)
        here(channel, message)
        notifications?.publish(channel, message)
      })
    },
    subscribe(channel, listener) {
      const remove = channels.add(channel, listener)
      redis?.store.watch(channel)
      notifications?.subscribed()
      return () => {
        if (remove()) redis?.store.unwatch(channel)
      }
    },
  }
}

export function createChannels(log: FastifyBaseLogger): Channels {
  const channels = new Map<string, Set<Listener>>()
  return {
    add(channel, listener) {
      // A function of its own for each call: the same listener may subscribe twice.
      const own: Listener = (message) => listener(message)
      const listeners = channels.get(channel) ?? new Set()
      channels.set(channel, listeners.add(own))
      return () => {
        listeners.delete(own)
        if (listeners.size > 0 || channels.get(channel) !== listeners) return false
        return channels.delete(channel)
      }
    },
    has: (channel) => channels.has(channel),
    names: () => [...channels.keys()],
    get size() {
      return channels.size
    },
    deliver(channel, message) {
      for (const listener of channels.get(channel) ?? []) {
        try {
          listener(message)
        } catch (error) {
          log.error({ err: error, channel }, 'a subscriber failed')
        }
      }
    },
  }
}

const postgresChannel = 'agent_orc_kv'
/** Between two statements of one process, however much it publishes. */
const gapMs = 50
/** PostgreSQL takes payloads below 8,000 bytes. */
const payloadBytes = 7_800
/** Wake-ups beyond that wait nowhere: they are dropped. */
const mostPending = 10_000
const helloEveryMs = 5_000
/** What a hello says holds a little longer than until the one after the next. */
const goodForMs = 12_000
const mostPeers = 1_000

/** All that travels: what a process says of itself, or what it wakes, as pairs of channel and message. */
const Notice = Type.Union([
  Type.Object({ from: Type.String(), away: Type.Boolean(), listens: Type.Boolean() }),
  Type.Object({ from: Type.String(), wakes: Type.Array(Type.Tuple([Type.String(), Type.String()])) }),
])
type Notice = Static<typeof Notice>

export interface NotificationsOptions {
  readonly database: Pick<Database, 'listen' | 'systemBatch'>
  readonly channels: Channels
  readonly log: FastifyBaseLogger
  /** This process has no Redis now. */
  away(): boolean
}

/** Wake-ups between processes over PostgreSQL. */
export interface Notifications {
  /** For other processes alone, and only if one that listens needs it this way. */
  publish(channel: string, message: string): void
  /** Somebody here listens. */
  subscribed(): void
  /** `away` changed. */
  switched(): void
  close(): Promise<void>
}

/**
 * Every process that publishes or listens hears one channel of PostgreSQL. One that is without Redis says so there every few
 * seconds, and whoever hears it says whether it listens itself. Wake-ups are only sent while a listener was heard of, so that
 * a process that is alone, or has a healthy Redis like all others, sends nothing.
 */
export function createNotifications({ database, channels, log, away }: NotificationsOptions): Notifications {
  const id = randomBytes(8).toString('hex')
  const pending = new Map<string, readonly [channel: string, message: string]>()
  /** Who was heard, and until when that counts. */
  const peers = new Map<string, number>()
  let listenersUntil = 0
  let awayUntil = 0
  let helloDue = false
  let sending = false
  let sentAt = -Infinity
  let timer: NodeJS.Timeout | undefined
  let greeting: NodeJS.Timeout | undefined
  let listening: Promise<(() => Promise<void>) | undefined> | undefined

  const spoken = (): boolean => away() || performance.now() < awayUntil
  const hello = (): void => {
    if (!listening || !spoken()) return
    helloDue = true
    schedule()
  }
  const schedule = (): void => {
    if (sending || timer) return
    timer = setTimeout(() => void send(), Math.max(0, sentAt + gapMs - performance.now())).unref()
  }
  const send = async (): Promise<void> => {
    timer = undefined
    sending = true
    sentAt = performance.now()
    const payloads = payloadsOf(id, [...pending.values()])
    if (helloDue) payloads.unshift(JSON.stringify({ from: id, away: away(), listens: channels.size > 0 }))
    pending.clear()
    helloDue = false
    try {
      const text = `SELECT pg_notify('${postgresChannel}', payload) FROM unnest($1::text[]) AS payload`
      await database.systemBatch([{ name: 'kv_notify', text, values: [payloads] }])
    } catch (err) {
      log.debug({ err }, 'wake-ups were lost')
    }
    sending = false
    if (pending.size > 0 || helloDue) schedule()
  }
  const hear = (payload: string): void => {
    const notice = read(payload)
    if (!notice || notice.from === id) return
    if ('wakes' in notice) {
      for (const [channel, message] of notice.wakes) channels.deliver(channel, message)
      return
    }
    const until = performance.now() + goodForMs
    if (notice.away) awayUntil = until
    if (notice.listens) listenersUntil = until
    // Whoever is new learns at once whom it can wake.
    if (!peers.has(notice.from)) hello()
    if (peers.has(notice.from) || peers.size < mostPeers) peers.set(notice.from, until)
  }
  const greet = (): void => {
    const now = performance.now()
    for (const [peer, until] of peers) if (until <= now) peers.delete(peer)
    hello()
  }
  /** Not before it is used: a gateway that wakes nobody needs no connection for it. */
  const start = (): void => {
    if (listening) return
    greeting = setInterval(greet, helloEveryMs).unref()
    listening = database.listen(postgresChannel, hear).catch((err: unknown) => {
      log.warn({ err }, 'wake-ups of other processes are not heard')
      return undefined
    })
    void listening.then(hello)
  }

  return {
    publish(channel, message) {
      start()
      if (performance.now() >= listenersUntil || pending.size >= mostPending) return
      pending.set(`${channel}\n${message}`, [channel, message])
      schedule()
    },
    subscribed() {
      start()
      if (channels.size === 1) hello()
    },
    switched() {
      if (!listening) return
      // Until they have answered, others are taken to listen.
      if (away()) listenersUntil = Math.max(listenersUntil, performance.now() + helloEveryMs)
      hello()
    },
    async close() {
      clearInterval(greeting)
      clearTimeout(timer)
      const stop = await listening
      await stop?.()
    },
  }
}

function read(payload: string): Notice | undefined {
  try {
    const notice: unknown = JSON.parse(payload)
    return Value.Check(Notice, notice) ? notice : undefined
  } catch {
    return undefined
  }
}

/** As many to a payload as fit. One that fits into none is left out. */
function payloadsOf(from: string, wakes: readonly (readonly [string, string])[]): string[] {
  const head = `{"from":"${from}","wakes":[`
  const payloads: string[] = []
  let body = ''
  for (const wake of wakes) {
    const text = JSON.stringify(wake)
    if (head.length + Buffer.byteLength(text) + 2 > payloadBytes) continue
    if (body !== '' && head.length + Buffer.byteLength(body) + Buffer.byteLength(text) + 3 > payloadBytes) {
      payloads.push(`${head}${body}]}`)
      body = ''
    }
    body += body === '' ? text : `,${text}`
  }
  if (body !== '') payloads.push(`${head}${body}]}`)
  return payloads
}
