import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger, FastifyReply, FastifyRequest, onRequestHookHandler, onSendHookHandler } from 'fastify'
import fp from 'fastify-plugin'
import { type App, type AppError, isAppError, isStream, isUpload, onceClosed } from '#kernel'
import type { Database } from '#contracts/database'
import type { Hit, Kv } from '#contracts/kv'
import {
  type CountUse,
  type GuardedRequests,
  isOverLimit,
  limitErrors,
  limitKinds,
  type LimitName,
  limitNames,
  type Limits,
  overLimit,
  type OwnLimits,
  type RequestLimit,
  type TenantLimits,
  type WaitForTurn,
} from '#contracts/limits'
import { ahead, AtOnce, Counts, Lately, Pace, rateLimit, Spent } from '#kit'
import { paceLists } from '#kit/lists'
import { change, changedSince, type ChangedLimits } from './changed.store.ts'
import { KeptStoredBytes } from './stored.ts'
import { TenantTurns } from './turns.ts'

/** How often a process reads changed limits, so how late a change by another process applies. */
const lookEveryMs = 5_000

/**
 * Each refused request waits this much longer for its answer than the one before, up to the second value. They are forgotten little by little: whoever
 * was held up for a minute is not answered quickly in the next one, when all that its limits allow begins anew as well.
 */
const holdMs = 5
const longestHoldMs = 10_000
const refusedForMs = 60_000
/** Of one tenant; further ones are answered at once. As many as answers may be open: whoever asks with fewer goes no faster for it. */
const mostHeld = limitKinds.openAnswers.default

type UnderWay = 'openStreams' | 'openAnswers' | 'answerBytes'

/** The limits of all tenants, stored in the table `tenants`. Without a database, all tenants have the limits of the role file. */
export class KeptLimits implements TenantLimits {
  readonly defaults: Limits
  readonly stored: KeptStoredBytes
  readonly #database: Database | undefined
  readonly #kv: Pick<Kv, 'hit'> | undefined
  readonly #log: Pick<FastifyBaseLogger, 'warn'>
  readonly #own = new Map<string, OwnLimits>()
  readonly #whole = new Map<string, Limits>()
  readonly #uses = new Map<LimitName, CountUse>()
  /** What is under way of each tenant: streams, other answers, and the bytes of those that are held as a whole until their clients have read them. */
  readonly #underWay = { openStreams: new AtOnce(), openAnswers: new AtOnce(), answerBytes: new AtOnce() }
  /** Refused requests that are held up, by tenant. */
  readonly #held = new AtOnce()
  readonly #refused = new Lately(refusedForMs)
  /** Requests of this minute by tenant and limit. */
  readonly #minute = new Counts(60_000)
  readonly #spent = new Spent()
  readonly turns = new TenantTurns((tenantId, kind) => this.of(tenantId)[kind])
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
    for (const [name, counted] of Object.entries(this.#underWay))
      this.uses(name as UnderWay, (tenantId) => counted.of(tenantId))
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
    const [[row]] = await this.#database.systemBatch<[ChangedLimits[]]>([change(tenantId, given, dropped)])
    if (row) this.#keep(row)
    return row !== undefined
  }
  guard(app: App, guarded: GuardedRequests): void {
    const count =
      (what: UnderWay): onRequestHookHandler =>
      (request, reply, done) => {
        const end = this.begin(what, guarded.tenantOf(request))
        if (typeof end !== 'function') return done(end)
        onceClosed(reply.raw, end)
        done()
      }
    const countBytes: onSendHookHandler<unknown> = (request, reply, payload, done) => {
      const bytes = typeof payload === 'string' || payload instanceof Uint8Array ? payload.length : 0
      // The client may have left already. Then there is no close any more.
      if (bytes <= smallAnswer || reply.raw.destroyed) return done(null, payload)
      const end = this.holdAnswer(guarded.tenantOf(request), bytes)
      if (typeof end !== 'function') return done(reads(request) ? end : unsaid(end))
      reply.raw.once('close', end)
      done(null, payload)
    }
    // Added at once, because `onRoute` applies only to routes that are registered later. Request hooks may be registered until the first request.
    app.addHook('onRoute', (route) => {
      route.onRequest = [
        ...[route.onRequest ?? []].flat(),
        count(isStream(route.config) ? 'openStreams' : 'openAnswers'),
      ]
      route.onSend = [...[route.onSend ?? []].flat(), countBytes]
    })
    app.addHook('onError', async (request, _reply, error) => {
      if (isAppError(error) && isOverLimit(error)) await this.holdUp(guarded.tenantOf(request))
    })
    paceLists(app, (request, chars) =>
      this.turn(guarded.tenantOf(request), 'readsPerMinute', turnsOf(chars), { patient: true }),
    )
    if (this.#kv) limitRequests(app, { limits: this, kv: this.#kv, guarded })
  }
  holdAnswer(tenantId: string, bytes: number): (() => void) | AppError {
    // The largest answer counts as all that there may be: it gets through, if nothing else is under way.
    return this.begin('answerBytes', tenantId, Math.min(bytes, this.of(tenantId).answerBytes || 1))
  }
  /** Counts in this process until the returned function is called. Returns the error when the tenant has as much under way as it may. */
  begin(what: UnderWay, tenantId: string, count = 1): (() => void) | AppError {
    const max = this.of(tenantId)[what]
    const counted = this.#underWay[what]
    return counted.of(tenantId) + count > max ? overLimit(what, max) : counted.begin(tenantId, count)
  }
  /** Delays the answer of refused requests, longer with each one, so that a client that keeps asking costs us little. */
  async holdUp(tenantId: string): Promise<void> {
    await this.#hold(tenantId, Math.min(longestHoldMs, this.#refused.count(tenantId) * holdMs))
  }
  async #hold(tenantId: string, ms: number): Promise<void> {
    if (this.#held.of(tenantId) >= mostHeld) return
    const end = this.#held.begin(tenantId)
    // What is held for the same time comes back at the same time: hundreds of requests in one turn of the event loop. So times differ.
    await sleep(ms * (0.5 + Math.random() / 2), undefined, { ref: false })
    end()
  }
  /** Resolves when it is a request's turn. Rejects with an AppError when earlier requests of the tenant already fill the longest wait. */
  turn(tenantId: string, kind: LimitName, weight: number, { patient = false } = {}): Promise<void> {
    return this.turns.take(tenantId, kind, weight, patient)
  }
  readonly pace = (atOnce: number): WaitForTurn => this.turns.pace(atOnce)
  readonly works = (tenantId: string): void => this.turns.works(tenantId)
  readonly steady = (atOnce: number): ((tenantId: string) => number) => this.turns.steady(atOnce)
  /** Counts an answer that was larger than most: its tenant's next requests of this kind wait as long as if it had been several. */
  answered(tenantId: string, kind: LimitName, bytes: number): void {
    const more = turnsOf(bytes) - 1
    if (more > 0) this.turns.owe(tenantId, kind, more)
  }
  /** Resolves when the tenant may send a request body, which comes at once. Rejects with an AppError if the wait would exceed `longestTransferMs`. */
  async turnOfBody(tenantId: string, bytes: number): Promise<void> {
    const waitMs = this.#transfer(tenantId, bytes)
    if (waitMs === undefined) {
      const max = this.of(tenantId).transferBytesPerMinute
      const now = this.turns.nowOf(tenantId, 'transferBytesPerMinute')
      // Whoever is refused may send all of it again, and what was sent has to be read to be dropped. So a refusal takes as long as the body would have
      // taken, up to the longest wait: asking again is no faster than waiting. Nothing is read meanwhile.
      await this.#hold(tenantId, Math.min(longestTransferMs, (bytes * 60_000) / now))
      throw overLimit('transferBytesPerMinute', max, longestTransferMs / 1_000, Math.floor(now))
    }
    if (waitMs > 0) await sleep(waitMs, undefined, { ref: false })
  }
  async *paced(tenantId: string, body: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
    for await (const part of body) {
      let waitMs = this.#transfer(tenantId, part.length)
      // Other transfers of the tenant are first. A file that has begun is not refused but waits as long as they take.
      for (; waitMs === undefined; waitMs = this.#transfer(tenantId, part.length))
        await sleep(longestTransferMs / 2, undefined, { ref: false })
      if (waitMs > 0) await sleep(waitMs, undefined, { ref: false })
      yield part
    }
  }
  /** Milliseconds until it is the turn of so many bytes. Undefined: the wait would be too long, so no turn was reserved. */
  #transfer(tenantId: string, bytes: number): number | undefined {
    const turns = bytes / bytesOfTurn
    const everyMs = (60_000 * bytesOfTurn) / this.turns.nowOf(tenantId, 'transferBytesPerMinute')
    const waitMs = this.#transfers.turnOf(tenantId, everyMs, turns)
    if (waitMs !== undefined) this.turns.passed(tenantId, turns)
    return waitMs
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
  isSpent(tenantId: string, method: string, writes: RequestLimit): boolean {
    const kind = requestLimitOf(method, writes)
    return this.isUsedUp(tenantId, kind) || this.turns.isFull(tenantId, kind)
  }
  uses(limit: LimitName, count: CountUse): void {
    this.#uses.set(limit, count)
  }
  async usedBy(tenantId: string): Promise<Partial<Limits>> {
    const counted = [...this.#uses].map(async ([name, count]) => [name, await count(tenantId)] as const)
    return Object.fromEntries((await Promise.all(counted)).filter(([, used]) => used !== undefined))
  }

  async start(): Promise<void> {
    if (!this.#database) return
    await this.look()
    this.#timer = setInterval(() => void this.look(), lookEveryMs).unref()
    this.stored.start()
  }
  async stop(): Promise<void> {
    clearInterval(this.#timer)
    this.turns.stop()
    await this.stored.stop()
  }
  /** Reads changed limits. While the database is unreachable, the last known limits apply. */
  async look(): Promise<void> {
    try {
      const [rows] = await this.#database!.systemBatch<[ChangedLimits[]]>([changedSince(this.#seen)])
      for (const row of rows) this.#keep(row)
      this.#seen = rows.at(-1)?.at ?? this.#seen
    } catch (err) {
      this.#log.warn({ err }, 'the limits of tenants could not be read; the last known limits apply')
    }
  }

  #keep({ id, limits }: ChangedLimits): void {
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

/** So much of the bytes of a minute passes at once after a pause; the rest is spread over the minute. */
const bytesAtOnce = 1024 * 1024
/** The longest wait of a large body in ms. It is longer than that of a request, because sending a body again costs more than waiting. */
const longestTransferMs = 10_000

/** Answers of up to so many bytes are not counted by their bytes: all that may be open have no more together than a few large ones. */
const smallAnswer = 64 * 1024
const reads = ({ method }: { readonly method: string }): boolean => method === 'GET' || method === 'HEAD'
/** What was carried out is not undone by an answer that is left out, and must not be tried again by whoever waits for 429. */
const unsaid = ({ detail, sentence }: AppError): AppError =>
  limitErrors.limitReached({ message: `The request was carried out, and its answer is left out: ${sentence}`, detail })

/** The limit for which a request counts, by its method. `writes` is the limit of requests that do more than read. */
const requestLimitOf = (method: string, writes: RequestLimit): RequestLimit =>
  reads({ method }) ? 'readsPerMinute' : writes
/**
 * A body takes a turn more for each part of this size, up to a bound: the largest pass at a quarter of the average that the limit allows. So does the
 * answer of a read, whose size is what it costs to make.
 */
const bytesOfTurn = 32 * 1_024
const mostTurns = 4 * ahead.factor
/** Undefined: it does not say. */
const bytesOf = ({ headers }: FastifyRequest): number | undefined =>
  headers['transfer-encoding'] === undefined ? Number(headers['content-length'] ?? 0) : undefined
const turnsOf = (bytes: number | undefined): number =>
  bytes === undefined ? mostTurns : Math.min(mostTurns, 1 + Math.floor(bytes / bytesOfTurn))

/** Of each limit so much is counted by every process for itself, which most tenants never pass. The rest all count together. */
const ownPart = 0.1
const ownOf = (max: number): number => Math.floor(max * ownPart)
/** By what a limit of a tenant is counted. */
const countedAs = (tenantId: string, kind: string): string => `ao:tenant:${tenantId}:${kind}`

/** What a process knows of the requests of each tenant. */
interface Requests extends Pick<TenantLimits, 'of' | 'turn'> {
  turnOfBody(tenantId: string, bytes: number): Promise<void>
  answered(tenantId: string, kind: LimitName, bytes: number): void
  hit(kv: Pick<Kv, 'hit'>, key: string, max: number, seconds: number): Promise<Hit>
  isUsedUp(tenantId: string, kind: LimitName): boolean
}

interface RequestLimitsOptions {
  readonly limits: Requests
  readonly kv: Pick<Kv, 'hit'>
  readonly guarded: GuardedRequests
}

/** Keeps the limits on the requests of a scope. With a second process a tenant has at most a tenth more requests. */
function limitRequests(app: App, { limits, kv, guarded }: RequestLimitsOptions): void {
  const { tenantOf, writes, alone } = guarded
  const kindOf = ({ method }: FastifyRequest) => requestLimitOf(method, writes)
  let check: (request: FastifyRequest, reply: FastifyReply) => Promise<void>
  const loaded = fp(
    async (scope: App) => {
      check = await rateLimit(scope, {
        name: 'tenant',
        keyOf: (request) => countedAs(tenantOf(request), kindOf(request)),
        max: (request) => limits.of(tenantOf(request))[kindOf(request)],
        hit: (key, max, seconds) => (alone ? alone(key, max, seconds) : limits.hit(kv, key, max, seconds)),
        refused({ headers }, request) {
          const kind = kindOf(request)
          return overLimit(kind, limits.of(tenantOf(request))[kind], Number(headers?.['retry-after']))
        },
      })
    },
    { name: 'agent-orc-tenant-requests' },
  )
  void app.register(loaded)
  // At once, and not when the rest is loaded: hooks that are added behind the guard's are to run after it.
  app.addHook('onRequest', async (request, reply) => {
    const tenantId = tenantOf(request)
    // What is refused anyway takes nobody's turn.
    if (!limits.isUsedUp(tenantId, kindOf(request))) {
      const bytes = bytesOf(request)
      // An upload takes its turns while it flows. A body that does not say its length counts as the largest that its route takes.
      if ((bytes === undefined || bytes > bytesOfTurn) && !isUpload(request.routeOptions.config))
        await limits.turnOfBody(tenantId, bytes ?? request.routeOptions.bodyLimit)
      await limits.turn(tenantId, kindOf(request), turnsOf(bytes))
    }
    await check(request, reply)
  })
  // Only now is it known how large an answer was, whoever wrote it. Files and streams of events flow at a pace of their own.
  const writtenBefore = new WeakMap<FastifyRequest, number>()
  app.addHook('onRequest', (request, _reply, done) => {
    writtenBefore.set(request, request.raw.socket.bytesWritten)
    done()
  })
  app.addHook('onResponse', (request, _reply, done) => {
    const bytes = request.raw.socket.bytesWritten - (writtenBefore.get(request) ?? Infinity)
    if (kindOf(request) === 'readsPerMinute' && !isStream(request.routeOptions.config))
      limits.answered(tenantOf(request), 'readsPerMinute', Math.max(0, bytes))
    done()
  })
}
