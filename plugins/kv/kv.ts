import { randomBytes } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import { type Static, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import type { Database } from '#contracts/database'
import type { Kv } from '#contracts/kv'
import { type Failover, standIn } from './failover.ts'
import type { RedisStore } from './redis.ts'
import type { Channels, Store, Subscriber } from './store.ts'

interface KvParts {
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
    // Claims are always in one store: processes lose Redis at different moments, and could not see claims that another one made
    // elsewhere.
    claim: (...claim) => (postgres ?? counted).claim(...claim),
    hit: (...hit) => counted.hit(...hit),
    ...createWakeUps(parts),
  }
}

/** Wake-ups go over Redis while it is up, also to this process itself. Otherwise they are delivered here, and over PostgreSQL to others. */
function createWakeUps({ channels, redis, notifications }: KvParts): Pick<Kv, 'publish' | 'subscribe'> {
  const here = (names: readonly string[], message: string): void => {
    const heard = names.filter((name) => channels.has(name))
    // Delivered later, as with Redis: listeners never run inside the publisher's call.
    if (heard.length > 0) setImmediate(() => heard.forEach((name) => channels.deliver(name, message)))
  }
  return {
    publish(names, message) {
      // Notified also while Redis is up: another process may have lost it.
      notifications?.publish(names, message)
      if (!redis?.failover.up) return here(names, message)
      redis.store.publish(names, message).catch((cause: unknown) => {
        redis.failover.lost(cause)
        here(names, message)
        notifications?.publish(names, message)
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
  const channels = new Map<string, Set<Subscriber>>()
  return {
    add(channel, listener) {
      // Each call wraps its listener in a new function, because the same listener may subscribe twice.
      const own: Subscriber = (message) => listener(message)
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
/** The pause between two statements of one process, however much it publishes. */
const gapMs = 50
/** PostgreSQL takes payloads below 8,000 bytes. */
const payloadBytes = 7_800
/** Wake-ups that may wait; further ones are dropped. */
const mostPending = 10_000
const helloEveryMs = 5_000
/** A hello counts for a little longer than until the one after the next. */
const goodForMs = 12_000
const mostPeers = 1_000

/** A payload: the hello of a process, or its wake-ups as pairs of channel and message. */
const Notice = Type.Union([
  Type.Object({ from: Type.String(), away: Type.Boolean(), listens: Type.Boolean() }),
  Type.Object({ from: Type.String(), wakes: Type.Array(Type.Tuple([Type.String(), Type.String()])) }),
])
type Notice = Static<typeof Notice>

interface NotificationsOptions {
  readonly database: Pick<Database, 'listen' | 'systemBatch'>
  readonly channels: Channels
  readonly log: FastifyBaseLogger
  /** True while this process cannot use Redis. */
  readonly away: () => boolean
}

/** Wake-ups between processes over PostgreSQL. */
interface Notifications {
  /** Wakes other processes, if one that listens needs to be woken this way. */
  publish(channels: readonly string[], message: string): void
  /** Called when this process subscribes to a channel. */
  subscribed(): void
  /** Called when `away` changed. */
  switched(): void
  close(): Promise<void>
}

/**
 * Every process that publishes or listens hears one channel of PostgreSQL. A process without Redis says so there every few
 * seconds (a hello), and each that hears it says whether it listens itself. Wake-ups are only sent while a listener was heard of,
 * so that a process that is alone, or has a healthy Redis like all others, sends nothing.
 */
export class PostgresNotifications implements Notifications {
  readonly #options: NotificationsOptions
  readonly #id = randomBytes(8).toString('hex')
  readonly #pending = new Map<string, readonly [channel: string, message: string]>()
  /** The processes that were heard, and until when that counts. */
  readonly #peers = new Map<string, number>()
  #listenersUntil = 0
  #awayUntil = 0
  #helloDue = false
  #sending = false
  #sentAt = -Infinity
  #sendTimer: NodeJS.Timeout | undefined
  #helloTimer: NodeJS.Timeout | undefined
  #listening: Promise<(() => Promise<void>) | undefined> | undefined

  constructor(options: NotificationsOptions) {
    this.#options = options
  }

  publish(channels: readonly string[], message: string): void {
    this.#start()
    if (performance.now() >= this.#listenersUntil || this.#pending.size >= mostPending) return
    for (const channel of channels) this.#pending.set(`${channel}\n${message}`, [channel, message])
    this.#schedule()
  }
  subscribed(): void {
    this.#start()
    if (this.#options.channels.size === 1) this.#hello()
  }
  switched(): void {
    if (!this.#listening) return
    // Until the others have answered, they are assumed to listen.
    if (this.#options.away()) this.#listenersUntil = Math.max(this.#listenersUntil, performance.now() + helloEveryMs)
    this.#hello()
  }
  async close(): Promise<void> {
    clearInterval(this.#helloTimer)
    clearTimeout(this.#sendTimer)
    const stop = await this.#listening
    await stop?.()
  }

  /** Listens from the first use on: a gateway that wakes nobody needs no connection for it. */
  #start(): void {
    if (this.#listening) return
    const { database, log } = this.#options
    this.#helloTimer = setInterval(() => this.#repeatHello(), helloEveryMs).unref()
    this.#listening = database
      .listen(postgresChannel, (payload) => this.#hear(payload))
      .catch((err: unknown) => {
        log.warn({ err }, 'wake-ups of other processes are not received')
        return undefined
      })
    void this.#listening.then(() => this.#hello())
  }
  #repeatHello(): void {
    const now = performance.now()
    for (const [peer, until] of this.#peers) if (until <= now) this.#peers.delete(peer)
    this.#hello()
  }
  #hello(): void {
    const isNeeded = this.#options.away() || performance.now() < this.#awayUntil
    if (!this.#listening || !isNeeded) return
    this.#helloDue = true
    this.#schedule()
  }
  #schedule(): void {
    if (this.#sending || this.#sendTimer) return
    const pause = Math.max(0, this.#sentAt + gapMs - performance.now())
    this.#sendTimer = setTimeout(() => void this.#send(), pause).unref()
  }
  async #send(): Promise<void> {
    const { database, channels, log, away } = this.#options
    this.#sendTimer = undefined
    this.#sending = true
    this.#sentAt = performance.now()
    const payloads = payloadsOf(this.#id, [...this.#pending.values()])
    if (this.#helloDue) payloads.unshift(JSON.stringify({ from: this.#id, away: away(), listens: channels.size > 0 }))
    this.#pending.clear()
    this.#helloDue = false
    try {
      const text = `SELECT pg_notify('${postgresChannel}', payload) FROM unnest($1::text[]) AS payload`
      await database.systemBatch([{ name: 'kv_notify', text, values: [payloads] }])
    } catch (err) {
      log.debug({ err }, 'wake-ups were lost')
    }
    this.#sending = false
    if (this.#pending.size > 0 || this.#helloDue) this.#schedule()
  }
  #hear(payload: string): void {
    const notice = read(payload)
    if (!notice || notice.from === this.#id) return
    if ('wakes' in notice) {
      for (const [channel, message] of notice.wakes) this.#options.channels.deliver(channel, message)
      return
    }
    const until = performance.now() + goodForMs
    if (notice.away) this.#awayUntil = until
    if (notice.listens) this.#listenersUntil = until
    // A process that is new learns at once which others it can wake.
    if (!this.#peers.has(notice.from)) this.#hello()
    if (this.#peers.has(notice.from) || this.#peers.size < mostPeers) this.#peers.set(notice.from, until)
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

/** Payloads with as many wake-ups as fit. A wake-up that fits into no payload is left out. */
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
