import { setTimeout as sleep } from 'node:timers/promises'
import { Type } from '@sinclair/typebox'
import type { FastifyBaseLogger, FastifyReply, FastifyRequest } from 'fastify'
import { type App, type AppError, definePlugin, isAppError, isStream, maybe, Settings } from '#kernel'
import { Database, presentDatabase, type Statement } from '#contracts/database'
import { type Hit, Kv } from '#contracts/kv'
import {
  type CountUse,
  type GuardedRequests,
  isOverLimit,
  largestOf,
  limitErrors,
  limitKinds,
  type LimitName,
  limitNames,
  type Limits,
  overLimit,
  type OwnLimits,
  type RequestLimit,
  TenantLimits,
} from '#contracts/limits'
import { AtOnce, Pace } from '#kit'
import { Counts, Spent } from './minute.ts'
import { bytesOfTurn, countedAs, limitRequests, ownOf, paceFactor } from './requests.ts'
import { KeptStoredBytes } from './stored.ts'

const limit = (name: (typeof limitNames)[number]) =>
  Type.Integer({
    minimum: 0,
    maximum: largestOf(name),
    default: limitKinds[name].default,
    description: limitKinds[name].about,
  })

/** How much each tenant may have: the limits of the role file, or those that an operator gave it. Each is kept by the plugin whose thing it is. */
export default definePlugin({
  name: 'limits',
  config: Settings(Object.fromEntries(limitNames.map((name) => [name, limit(name)]))),
  errors: limitErrors,
  requires: { database: maybe(Database), kv: maybe(Kv) },
  provides: { limits: TenantLimits },
  async setup({ config, deps, log, onStart, onStop }) {
    const limits = new KeptLimits(config as TenantLimits['defaults'], presentDatabase(deps.database), deps.kv, log)
    onStart(() => limits.start())
    onStop(() => limits.stop())
    return { limits }
  },
})

/** A change reaches other processes at their next look. */
const lookEveryMs = 5_000

/** How much longer each refused request of a minute waits for its answer, and how long at most. */
const holdMs = 5
const longestHoldMs = 1_000
/** Of one tenant; further ones are answered at once. As many as answers may be open: whoever asks with fewer goes no faster for it. */
const mostHeld = limitKinds.openAnswers.default

interface Row {
  readonly id: string
  readonly limits: OwnLimits
  readonly at: string
}

/** Few tenants have limits of their own, so every process keeps all of them. */
const changedSince = (at: string): Statement => ({
  name: 'limits_changed',
  // What committed late is seen by the next looks: a few rows are read more than once.
  text: `SELECT id, limits, limits_at::text AS at FROM tenants
         WHERE limits_at > $1::timestamptz - interval '30 seconds' ORDER BY limits_at`,
  values: [at],
})
const change = (id: string, given: OwnLimits, dropped: readonly string[]): Statement => ({
  text: `UPDATE tenants SET limits = (coalesce(limits, '{}') || $2::jsonb) - $3::text[], limits_at = clock_timestamp()
         WHERE id = $1 AND deleted_at IS NULL RETURNING id, limits, limits_at::text AS at`,
  values: [id, JSON.stringify(given), dropped],
})

/** The limits of all tenants, kept in the table `tenants`; without a database those of the role file are everybody's. */
export class KeptLimits implements TenantLimits {
  readonly defaults: Limits
  readonly stored: KeptStoredBytes
  readonly #database: Database | undefined
  readonly #kv: Pick<Kv, 'hit'> | undefined
  readonly #log: Pick<FastifyBaseLogger, 'warn'>
  readonly #own = new Map<string, OwnLimits>()
  readonly #whole = new Map<string, Limits>()
  readonly #uses = new Map<LimitName, CountUse>()
  readonly #streams = new AtOnce()
  /** Other answers that are made, or that nobody has taken yet: each holds up to some megabytes. */
  readonly #answers = new AtOnce()
  /** Refused requests that are held up, by tenant. */
  readonly #held = new AtOnce()
  /** Requests by tenant and limit, and refused ones. */
  readonly #minute = new Counts(60_000)
  readonly #spent = new Spent()
  readonly #pace = new Pace({ atOnce, longestMs: longestTurnMs })
  readonly #transfers = new Pace({ atOnce: bytesAtOnce / bytesOfTurn, longestMs: longestTransferMs })
  #seen = '-infinity'
  #timer: NodeJS.Timeout | undefined

  constructor(
    defaults: Limits,
    database: Database | undefined,
    kv: Pick<Kv, 'hit'> | undefined,
    log: Pick<FastifyBaseLogger, 'warn'>,
  ) {
    this.defaults = defaults
    this.#kv = kv
    this.#database = database
    this.#log = log
    this.stored = new KeptStoredBytes(database, (tenantId) => this.of(tenantId).storedBytes, log)
    if (database) this.uses('storedBytes', (tenantId) => this.stored.used(tenantId))
    this.uses('openStreams', (tenantId) => this.#streams.of(tenantId))
    this.uses('openAnswers', (tenantId) => this.#answers.of(tenantId))
  }

  of(tenantId: string): Limits {
    return this.#whole.get(tenantId) ?? this.defaults
  }
  ownOf(tenantId: string): OwnLimits {
    return this.#own.get(tenantId) ?? {}
  }
  async change(tenantId: string, wanted: Readonly<Partial<Record<LimitName, number | null>>>): Promise<boolean> {
    if (!this.#database) return false
    const entries = Object.entries(wanted) as [LimitName, number | null][]
    const given = Object.fromEntries(entries.filter(([, value]) => value !== null))
    const dropped = entries.filter(([, value]) => value === null).map(([name]) => name)
    const [[row]] = await this.#database.systemBatch<[Row[]]>([change(tenantId, given, dropped)])
    if (row) this.#keep(row)
    return row !== undefined
  }
  guard(app: App, guarded: GuardedRequests): void {
    const countStream = (request: FastifyRequest, reply: FastifyReply, done: (error?: Error) => void): void => {
      const tenantId = guarded.tenantOf(request)
      const end = this.openStream(tenantId)
      if (typeof end !== 'function') return done(end)
      reply.raw.once('close', end)
      done()
    }
    const countAnswer = (request: FastifyRequest, reply: FastifyReply, done: (error?: Error) => void): void => {
      const tenantId = guarded.tenantOf(request)
      const { openAnswers } = this.of(tenantId)
      if (this.#answers.of(tenantId) >= openAnswers) return done(overLimit('openAnswers', openAnswers))
      reply.raw.once('close', this.#answers.begin(tenantId))
      done()
    }
    // At once, because it is for the routes that follow; hooks of requests are there when the first one comes.
    app.addHook('onRoute', (route) => {
      route.onRequest = [...[route.onRequest ?? []].flat(), isStream(route.config) ? countStream : countAnswer]
    })
    app.addHook('onError', async (request, _reply, error) => {
      if (isAppError(error) && isOverLimit(error)) await this.holdUp(guarded.tenantOf(request))
    })
    if (this.#kv) limitRequests(app, { limits: this, kv: this.#kv, guarded })
  }
  /** Counts a stream of this process until it is ended, or returns the error of a tenant that has as many as it may. */
  openStream(tenantId: string): (() => void) | AppError {
    const { openStreams } = this.of(tenantId)
    return this.#streams.of(tenantId) < openStreams
      ? this.#streams.begin(tenantId)
      : overLimit('openStreams', openStreams)
  }
  /** Whoever goes on after a refusal is answered later and later, so that asking again and again costs us little. */
  async holdUp(tenantId: string): Promise<void> {
    const refused = this.#minute.count(`${tenantId} refused`)
    if (this.#held.of(tenantId) >= mostHeld) return
    const end = this.#held.begin(tenantId)
    await sleep(Math.min(longestHoldMs, refused * holdMs), undefined, { ref: false })
    end()
  }
  /** Resolves when it is a request's turn. Rejects with an AppError where others wait already, for as long as may be. */
  async turn(tenantId: string, kind: LimitName, weight: number, { patient = false } = {}): Promise<void> {
    for (;;) {
      const max = this.of(tenantId)[kind]
      const waitMs = this.#pace.turnOf(`${tenantId} ${kind}`, this.#everyMs(tenantId, kind), weight)
      if (waitMs === undefined && !(patient && max > 0)) throw overLimit(kind, max, longestTurnMs / 1_000)
      if (waitMs !== 0) await sleep(waitMs ?? longestTurnMs / 2, undefined, { ref: false })
      if (waitMs !== undefined) return
    }
  }
  /** The same for the body of a request that comes at once: what is large waits until the tenant may send as much. */
  async turnOfBody(tenantId: string, bytes: number): Promise<void> {
    const waitMs = this.#transfer(tenantId, bytes)
    const { transferBytesPerMinute: max } = this.of(tenantId)
    if (waitMs === undefined) throw overLimit('transferBytesPerMinute', max, longestTransferMs / 1_000)
    if (waitMs > 0) await sleep(waitMs, undefined, { ref: false })
  }
  async *paced(tenantId: string, body: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
    for await (const part of body) {
      let waitMs = this.#transfer(tenantId, part.length)
      // Others of the tenant are before it: a file that has begun waits for as long as they take.
      for (; waitMs === undefined; waitMs = this.#transfer(tenantId, part.length))
        await sleep(longestTransferMs / 2, undefined, { ref: false })
      if (waitMs > 0) await sleep(waitMs, undefined, { ref: false })
      yield part
    }
  }
  /** How long so many bytes wait for their turn; undefined: too long, and it was not taken. */
  #transfer(tenantId: string, bytes: number): number | undefined {
    const everyMs = (60_000 * bytesOfTurn) / this.of(tenantId).transferBytesPerMinute
    return this.#transfers.turnOf(tenantId, everyMs, bytes / bytesOfTurn)
  }
  /** Counts a request: the first of a minute in this process, further ones where all processes count. */
  async hit(kv: Pick<Kv, 'hit'>, key: string, max: number, seconds: number): Promise<Hit> {
    const own = ownOf(max)
    if (this.#minute.count(key) <= own) return { allowed: true, count: 0, retryAfterMs: 0 }
    const spentMs = this.#spent.leftOf(key, max)
    if (spentMs > 0) return { allowed: false, count: max, retryAfterMs: spentMs }
    const rest = await kv.hit(key, max - own, seconds)
    if (!rest.allowed) this.#spent.found(key, max, rest.retryAfterMs)
    return { ...rest, count: own + rest.count }
  }
  /** Whether `hit` would refuse a request, without asking anybody. */
  isUsedUp(tenantId: string, kind: LimitName): boolean {
    const max = this.of(tenantId)[kind]
    const key = countedAs(tenantId, kind)
    return this.#spent.leftOf(key, max) > 0 && this.#minute.of(key) >= ownOf(max)
  }
  isSpent(tenantId: string, kind: RequestLimit): boolean {
    return this.isUsedUp(tenantId, kind) || this.#pace.isFull(`${tenantId} ${kind}`, this.#everyMs(tenantId, kind))
  }
  /** Milliseconds between two turns. */
  #everyMs(tenantId: string, kind: LimitName): number {
    return 60_000 / (this.of(tenantId)[kind] * paceFactor)
  }
  uses(limit: LimitName, count: CountUse): void {
    this.#uses.set(limit, count)
  }
  async usedBy(tenantId: string): Promise<Partial<Limits>> {
    const counted = [...this.#uses].map(async ([name, count]) => [name, await count(tenantId)] as const)
    const known = (await Promise.all(counted)).filter(([, used]) => used !== undefined)
    return Object.fromEntries(known)
  }

  async start(): Promise<void> {
    if (!this.#database) return
    await this.look()
    this.#timer = setInterval(() => void this.look(), lookEveryMs).unref()
    this.stored.start()
  }
  async stop(): Promise<void> {
    clearInterval(this.#timer)
    await this.stored.stop()
  }
  /** Reads what has changed. While the database cannot be reached the limits stay as they were. */
  async look(): Promise<void> {
    try {
      const [rows] = await this.#database!.systemBatch<[Row[]]>([changedSince(this.#seen)])
      for (const row of rows) this.#keep(row)
      this.#seen = rows.at(-1)?.at ?? this.#seen
    } catch (err) {
      this.#log.warn({ err }, 'the limits of tenants could not be read; the last known limits apply')
    }
  }

  #keep({ id, limits }: Row): void {
    const own = Object.fromEntries(Object.entries(limits).filter(([name]) => limitNames.includes(name as LimitName)))
    if (Object.keys(own).length === 0) {
      this.#own.delete(id)
      this.#whole.delete(id)
      return
    }
    this.#own.set(id, own)
    this.#whole.set(id, { ...this.defaults, ...own })
  }
}

/** So many pass at once after a pause. */
const atOnce = 10
/** So much of the bytes of a minute passes at once after a pause; the rest is spread over the minute. */
const bytesAtOnce = 1024 * 1024
/** A large body waits longer than a request does: to be sent again would cost more than to wait. */
const longestTransferMs = 10_000
const longestTurnMs = 1_000
