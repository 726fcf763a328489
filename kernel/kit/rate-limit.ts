import { callbackify } from 'node:util'
import type { FastifyRateLimitStore } from '@fastify/rate-limit'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Hit } from '#contracts/kv'
import type { AppError, AppErrorOptions } from '../contracts/errors.ts'
import { unavailable } from '../contracts/http-errors.ts'
import type { App } from '../http/app.ts'
import { type ClientAddress, countedAs } from './addresses.ts'

const windowSeconds = 60

/** How many requests a caller may send in any minute. */
export interface Limit {
  /** The name of the limit in the headers `RateLimit` and `RateLimit-Policy`. */
  readonly name: string
  readonly max: number | ((request: FastifyRequest) => number)
  /** Callers with the same key share the limit. The key also names its purpose, because other limits count in the same store. */
  keyOf(request: FastifyRequest): string
  /** Counts a request in the store that all processes share, e.g. `kv.hit`. A refused request is not counted. */
  hit(key: string, max: number, windowSeconds: number): Promise<Hit>
  /** Makes the error for a request over the limit; the options say when to retry. */
  refused(options: AppErrorOptions, request: FastifyRequest): AppError
}

/**
 * A hook for routes of `app` that enforces a limit, and tells every caller how much of it is left. @fastify/rate-limit calls the counter through
 * its store interface and calculates the rest. Its own hook is not used, because it runs before a guard has identified the caller, and sets older
 * headers.
 */
export async function rateLimit(app: App, limit: Limit) {
  const { name, max, keyOf, refused } = limit
  const hit = callbackify(async (key: string, windowMs: number, most: number) => {
    const { allowed, count, retryAfterMs } = await limit.hit(key, most, windowMs / 1_000)
    return allowed ? { current: count, ttl: windowMs } : { current: most + 1, ttl: retryAfterMs }
  })
  class HitStore {
    incr(...[key, done, windowMs, most]: Parameters<FastifyRateLimitStore['incr']>): void {
      hit(key, windowMs, most, done)
    }
    child(): HitStore {
      return this
    }
  }
  // Loaded here, because most of what imports the kernel has no limits.
  const { default: plugin } = await import('@fastify/rate-limit')
  await app.register(plugin, { global: false, store: HitStore })
  const check = app.createRateLimit({ timeWindow: windowSeconds * 1_000, keyGenerator: keyOf, max })
  return async (request: FastifyRequest, reply: FastifyReply): Promise<void> => {
    const result = await check(request)
    // `isAllowed` means that the key is allow-listed; there is no such list here.
    if (result.isAllowed) return
    const seconds = Math.max(1, result.ttlInSeconds)
    void reply
      .header('ratelimit-policy', `"${name}";q=${result.max};w=${windowSeconds}`)
      .header('ratelimit', `"${name}";r=${result.isExceeded ? 0 : result.remaining};t=${seconds}`)
    if (result.isExceeded) throw refused({ headers: { 'retry-after': String(seconds) }, retryable: true }, request)
  }
}

interface AddressLimit extends Pick<Limit, 'name' | 'max' | 'refused'> {
  readonly kv: { hit: Limit['hit'] }
  readonly clientOf: ClientAddress
}

/** The same for routes that are open to anybody. Each client address has its own limit. */
export const addressLimit = (app: App, { kv, clientOf, ...limit }: AddressLimit) =>
  rateLimit(app, {
    ...limit,
    keyOf: (request) => `ao:${limit.name}:${countedAs(clientOf(request))}`,
    hit: (...counted) => kv.hit(...counted),
  })

/** About 40 MB of keys. With more keys a caller is refused, because forgetting a key would reset its count. */
export const mostKeys = 200_000
const sweepEveryMs = 10_000
const leastSweepGapMs = 1_000

export const tooManyKeys = (): AppError =>
  unavailable({ message: 'Too many requests are being remembered; try again shortly.', retryable: true })

interface Window {
  /** Hits by second, oldest first. */
  readonly buckets: Map<number, number>
  goneAt: number
}

/** Hits in sliding windows of one-second buckets, counted by this process alone; see `Kv.hit`. */
export class HitWindows {
  readonly #now: () => number
  readonly #limit: number
  readonly #windows = new Map<string, Window>()
  #sweptAt = -Infinity

  /** `now`: milliseconds on a clock that never goes back. */
  constructor(now = () => performance.now(), limit = mostKeys) {
    this.#now = now
    this.#limit = limit
  }

  /** Rejects with 503 when there is no room for another key. */
  readonly hit = async (key: string, most: number, seconds: number): Promise<Hit> => {
    const now = this.#now()
    let window = this.#windows.get(key)
    if (!window) {
      this.#makeRoom(now)
      this.#windows.set(key, (window = { buckets: new Map(), goneAt: 0 }))
    }
    window.goneAt = now + (seconds + 1) * 1_000
    return countHit(window.buckets, now, most, seconds)
  }

  /** Sweep only now and then: when full, sweeping at every call would cost more than it frees. */
  #makeRoom(now: number): void {
    const isFull = this.#windows.size >= this.#limit
    if (now - this.#sweptAt >= (isFull ? leastSweepGapMs : sweepEveryMs)) {
      this.#sweptAt = now
      for (const [key, { goneAt }] of this.#windows) if (goneAt <= now) this.#windows.delete(key)
    }
    if (this.#windows.size >= this.#limit) throw tooManyKeys()
  }
}

/**
 * A bucket counts until its last instant is a whole window ago, so there is one bucket more than the window has seconds. With only as many, a
 * caller could reach the limit at the end of one second and again at the start of the last one.
 */
function countHit(buckets: Map<number, number>, now: number, most: number, seconds: number): Hit {
  const second = Math.floor(now / 1_000)
  let count = 0
  let oldest = second
  for (const [at, hits] of buckets) {
    if (at < second - seconds) buckets.delete(at)
    else {
      count += hits
      oldest = Math.min(oldest, at)
    }
  }
  if (count >= most) return { allowed: false, count, retryAfterMs: Math.ceil((oldest + seconds + 1) * 1_000 - now) }
  buckets.set(second, (buckets.get(second) ?? 0) + 1)
  return { allowed: true, count: count + 1, retryAfterMs: 0 }
}

interface PaceOptions {
  /** How many turns pass at once after a pause. */
  readonly atOnce: number
  /** The longest wait in milliseconds. */
  readonly longestMs: number
}

/** Spreads bursts over time, by key, because a minute's worth of work in a single second would affect everybody else. */
export class Pace {
  readonly #options: PaceOptions
  /** The time of each key's next turn, and how far apart its turns were when that was found. */
  readonly #next = new Map<string, { readonly at: number; readonly everyMs: number }>()
  #cleanAt = 0

  constructor(options: PaceOptions) {
    this.#options = options
  }

  /**
   * Milliseconds to wait for the next turn. Undefined: the wait would be longer than `longestMs`, and no turn was taken. Turns are `everyMs` apart.
   */
  turnOf(key: string, everyMs: number, turns = 1, longestMs = this.#options.longestMs): number | undefined {
    // There are no turns at all.
    if (everyMs === Infinity) return undefined
    const now = performance.now()
    if (now > this.#cleanAt) this.#clean(now)
    const waitMs = this.#waitOf(key, everyMs, now)
    if (waitMs > longestMs) return undefined
    this.#take(key, everyMs, turns, now)
    return waitMs
  }
  /** Takes turns for what was done already, however long the wait is: whoever comes next waits for them. */
  owe(key: string, everyMs: number, turns: number): void {
    if (everyMs !== Infinity) this.#take(key, everyMs, turns, performance.now())
  }
  /** Whether there is no turn to be had just now. It takes none. */
  isFull(key: string, everyMs: number, longestMs = this.#options.longestMs): boolean {
    return everyMs === Infinity || this.#waitOf(key, everyMs, performance.now()) > longestMs
  }

  #take(key: string, everyMs: number, turns: number, now: number): void {
    this.#next.set(key, { at: this.#atOf(key, everyMs, now) + turns * everyMs, everyMs })
  }
  #waitOf(key: string, everyMs: number, now: number): number {
    return Math.max(0, this.#atOf(key, everyMs, now) - now - this.#options.atOnce * everyMs)
  }
  /** When turns are closer than they were, the next one is as much earlier. When they are further apart, what was taken before costs no more. */
  #atOf(key: string, everyMs: number, now: number): number {
    const next = this.#next.get(key)
    return next && next.at > now ? now + (next.at - now) * Math.min(1, everyMs / next.everyMs) : now
  }

  #clean(now: number): void {
    for (const [key, { at }] of this.#next) if (at <= now) this.#next.delete(key)
    this.#cleanAt = now + 60_000
  }
}

/** How far a tenant may be ahead of the average that one of its limits allows. */
export const ahead = {
  /** So many requests of one kind pass at once after a pause: as many as a browser sends to a server. */
  atOnce: 6,
  /** The next ones pass at so many times the average, at most, and wait for their turn. */
  factor: 3,
} as const

/** How many things each key has under way at once, such as a tenant's requests. A key with none takes no memory. */
export class AtOnce {
  readonly #counts = new Map<string, number>()

  of(key: string): number {
    return this.#counts.get(key) ?? 0
  }
  /** Counts one more, or `count`. The returned function ends it, and may be called more than once. */
  begin(key: string, count = 1): () => void {
    this.#counts.set(key, this.of(key) + count)
    let over = false
    return () => {
      if (over) return
      over = true
      const left = this.of(key) - count
      if (left > 0) this.#counts.set(key, left)
      else this.#counts.delete(key)
    }
  }
}

/** How often each thing happened in the stretch of time that is under way. */
export class Counts {
  readonly #ms: number
  readonly #counts = new Map<string, number>()
  #stretch = 0

  constructor(ms: number) {
    this.#ms = ms
  }
  of(key: string): number {
    const stretch = Math.floor(Date.now() / this.#ms)
    if (stretch !== this.#stretch) {
      this.#stretch = stretch
      this.#counts.clear()
    }
    return this.#counts.get(key) ?? 0
  }
  /** Counts one more, and returns how many there were. */
  count(key: string): number {
    const count = this.of(key) + 1
    this.#counts.set(key, count)
    return count
  }
}

/** How often each thing happened lately: each time counts for less and less as it gets older. */
export class Lately {
  readonly #ms: number
  readonly #now: () => number
  readonly #levels = new Map<string, { readonly level: number; readonly at: number }>()
  #cleanAt = 0

  /** After `ms` a time counts for a third. `now`: milliseconds on a clock that never goes back. */
  constructor(ms: number, now = () => performance.now()) {
    this.#ms = ms
    this.#now = now
  }
  /** Counts one more, and returns how many there were. */
  count(key: string): number {
    const now = this.#now()
    if (now > this.#cleanAt) this.#clean(now)
    const level = this.#levelOf(key, now) + 1
    this.#levels.set(key, { level, at: now })
    return level
  }

  #levelOf(key: string, now: number): number {
    const known = this.#levels.get(key)
    return known ? known.level * Math.exp((known.at - now) / this.#ms) : 0
  }
  #clean(now: number): void {
    for (const key of this.#levels.keys()) if (this.#levelOf(key, now) < 1) this.#levels.delete(key)
    this.#cleanAt = now + cleanEveryMs
  }
}

interface UsedUp {
  readonly max: number
  readonly until: number
}

const cleanEveryMs = 60_000

/**
 * Limits of a minute that are used up, and until when: whoever counts for all processes has said so, and need not be asked again
 * meanwhile. A limit that an operator changes is another one.
 */
export class Spent {
  readonly #now: () => number
  readonly #usedUp = new Map<string, UsedUp>()
  #cleanAt = 0

  /** `now`: milliseconds on a clock that never goes back. */
  constructor(now = () => performance.now()) {
    this.#now = now
  }
  /** How many milliseconds it will still be so; 0 when it is not, or not known. */
  leftOf(key: string, max: number): number {
    const known = this.#usedUp.get(key)
    return known?.max === max ? Math.max(0, known.until - this.#now()) : 0
  }
  found(key: string, max: number, ms: number): void {
    const now = this.#now()
    if (now > this.#cleanAt) {
      for (const [old, { until }] of this.#usedUp) if (until <= now) this.#usedUp.delete(old)
      this.#cleanAt = now + cleanEveryMs
    }
    this.#usedUp.set(key, { max, until: now + ms })
  }
}
