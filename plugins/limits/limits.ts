import type { FastifyBaseLogger, FastifyReply, FastifyRequest } from 'fastify'
import fp from 'fastify-plugin'
import { type App, type AppError, isStream, rateLimit } from '#kernel'
import type { Database, Statement } from '#contracts/database'
import type { Kv } from '#contracts/kv'
import {
  type GuardedRequests,
  type LimitName,
  limitNames,
  type Limits,
  overLimit,
  type OwnLimits,
  type TenantLimits,
} from '#contracts/limits'

/** A change reaches other processes at their next look. */
const lookEveryMs = 5_000

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
  readonly #database: Database | undefined
  readonly #kv: Pick<Kv, 'hit'> | undefined
  readonly #log: Pick<FastifyBaseLogger, 'warn'>
  readonly #own = new Map<string, OwnLimits>()
  readonly #whole = new Map<string, Limits>()
  readonly #uses = new Map<LimitName, (tenantId: string) => Promise<number> | number>()
  readonly #streams = new Map<string, number>()
  /** Requests of this minute, by tenant and limit. */
  readonly #counts = new Map<string, number>()
  #minute = 0
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
    this.uses('openStreams', (tenantId) => this.#streams.get(tenantId) ?? 0)
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
      const refused = this.openStream(tenantId)
      if (refused) return done(refused)
      reply.raw.once('close', () => this.closeStream(tenantId))
      done()
    }
    // At once, because it is for the routes that follow; the other hook is there when the first request comes.
    app.addHook('onRoute', (route) => {
      if (isStream(route.config)) route.onRequest = [...[route.onRequest ?? []].flat(), countStream]
    })
    if (this.#kv) void app.register(requestLimits, { limits: this, kv: this.#kv, guarded })
  }
  /** Counts a stream of this process, or returns the error of a tenant that has as many as it may. */
  openStream(tenantId: string): AppError | undefined {
    const open = this.#streams.get(tenantId) ?? 0
    const { openStreams } = this.of(tenantId)
    if (open >= openStreams) return overLimit('openStreams', openStreams)
    this.#streams.set(tenantId, open + 1)
    return undefined
  }
  closeStream(tenantId: string): void {
    const left = this.#streams.get(tenantId)! - 1
    if (left > 0) this.#streams.set(tenantId, left)
    else this.#streams.delete(tenantId)
  }
  /** True for the first `most` requests of a minute: those that this process counts for itself. */
  firstOfMinute(key: string, most: number): boolean {
    const minute = Math.floor(Date.now() / 60_000)
    if (minute !== this.#minute) {
      this.#minute = minute
      this.#counts.clear()
    }
    const count = this.#counts.get(key) ?? 0
    if (count >= most) return false
    this.#counts.set(key, count + 1)
    return true
  }
  uses(limit: LimitName, count: (tenantId: string) => Promise<number> | number): void {
    this.#uses.set(limit, count)
  }
  async usedBy(tenantId: string): Promise<Partial<Limits>> {
    const counted = [...this.#uses].map(async ([name, count]) => [name, await count(tenantId)] as const)
    return Object.fromEntries(await Promise.all(counted))
  }

  async start(): Promise<void> {
    if (!this.#database) return
    await this.look()
    this.#timer = setInterval(() => void this.look(), lookEveryMs).unref()
  }
  stop(): void {
    clearInterval(this.#timer)
  }
  /** Reads what has changed. While the database is away the limits stay as they were. */
  async look(): Promise<void> {
    try {
      const [rows] = await this.#database!.systemBatch<[Row[]]>([changedSince(this.#seen)])
      for (const row of rows) this.#keep(row)
      this.#seen = rows.at(-1)?.at ?? this.#seen
    } catch (err) {
      this.#log.warn({ err }, 'the limits of tenants could not be read; those known before hold')
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

/** Of each limit so much is counted by every process for itself, which most tenants never pass. The rest all count together. */
const ownPart = 0.1

interface RequestLimitsOptions {
  readonly limits: KeptLimits
  readonly kv: Pick<Kv, 'hit'>
  readonly guarded: GuardedRequests
}

/** Keeps the limits on the requests of a scope. With a second process a tenant has at most a tenth more requests. */
const requestLimits = fp(
  async (app, { limits, kv, guarded }: RequestLimitsOptions) => {
    const { tenantOf, kindOf, scope = 'shared' } = guarded
    const check = await rateLimit(app, {
      name: 'tenant',
      keyOf: (request) => `ao:tenant:${tenantOf(request)}:${kindOf(request)}`,
      max: (request) => limits.of(tenantOf(request))[kindOf(request)],
      async hit(key, max, windowSeconds) {
        const own = scope === 'process' ? 0 : Math.floor(max * ownPart)
        if (limits.firstOfMinute(key, own)) return { allowed: true, count: 0, retryAfterMs: 0 }
        const rest = await kv.hit(key, max - own, windowSeconds, scope)
        return { ...rest, count: own + rest.count }
      },
      refused({ headers }, request) {
        const kind = kindOf(request)
        return overLimit(kind, limits.of(tenantOf(request))[kind], Number(headers?.['retry-after']))
      },
    })
    app.addHook('onRequest', check)
  },
  { name: 'agent-orc-tenant-requests' },
)
