import type { Stream } from 'node:stream'
import type { FastifyBaseLogger, FastifyReply, FastifyRequest } from 'fastify'
import type { App } from '../http/app.ts'
import { type StreamRegistry, streamsOf } from '../http/streams.ts'
import { setTimeout as sleep } from 'node:timers/promises'
import { Type } from '@sinclair/typebox'
import { accessErrors } from '#contracts/access-errors'
import type { AppError } from '../contracts/errors.ts'
import { unavailable } from '../contracts/http-errors.ts'
import { countedAs } from './addresses.ts'
import { Shares } from './turns.ts'

/** Something that stays open only while a key is valid: a stream, or a waiting request. */
export interface Held {
  readonly tenantId: string
  readonly keyId: string
  /** Ends it, because its key is no longer valid. */
  end(): void
}

interface KeyWatchOptions {
  /** Everything that is currently open in this process. */
  held(): Iterable<Held>
  /** Returns those of a tenant's keys that are still valid. */
  alive(tenantId: string, keyIds: readonly string[]): Promise<readonly string[]>
  readonly log: Pick<FastifyBaseLogger, 'info' | 'warn'>
}

/** Milliseconds. Together with the half second that a stream gets to end, this keeps within the two seconds in which a revocation must take effect. */
const lookEveryMs = 1_000
/** How many keys one statement checks. */
const atOnce = 1_000

/**
 * Ends open streams and requests when their key becomes invalid for any reason: revocation, expiry, or deletion of the tenant, by any process or by
 * hand in the database. Once a second it checks the keys of everything that is open, each key once; while nothing is open it queries nothing. While
 * the database does not answer, open streams stay open: no new caller could be authenticated, and nothing is known against the present ones.
 */
export class KeyWatch {
  readonly #options: KeyWatchOptions
  #timer: NodeJS.Timeout | undefined
  /** The tenants whose keys are being checked. Their statements may wait for what a tenant has locked, and nobody else's check waits with them. */
  readonly #looking = new Map<string, Promise<void>>()
  /** The tenants whose last check failed. */
  readonly #failing = new Set<string>()

  constructor(options: KeyWatchOptions) {
    this.#options = options
  }

  start(): void {
    this.#timer = setInterval(() => void this.look(), lookEveryMs).unref()
  }
  async stop(): Promise<void> {
    clearInterval(this.#timer)
    await Promise.all(this.#looking.values())
  }

  /** Checks now, or joins a tenant's check that is under way. Never rejects. */
  async look(): Promise<void> {
    const tenants = new Map<string, Map<string, Held[]>>()
    for (const one of this.#options.held()) {
      const keys = tenants.get(one.tenantId) ?? new Map<string, Held[]>()
      if (keys.size === 0) tenants.set(one.tenantId, keys)
      const those = keys.get(one.keyId)
      if (those) those.push(one)
      else keys.set(one.keyId, [one])
    }
    for (const tenantId of this.#failing) if (!tenants.has(tenantId)) this.#failing.delete(tenantId)
    // Check all tenants concurrently, so that their units share a round trip.
    const looks = [...tenants].map(([tenantId, keys]) => {
      const look =
        this.#looking.get(tenantId) ?? this.#look(tenantId, keys).finally(() => this.#looking.delete(tenantId))
      this.#looking.set(tenantId, look)
      return look
    })
    await Promise.all(looks)
  }

  async #look(tenantId: string, keys: ReadonlyMap<string, readonly Held[]>): Promise<void> {
    try {
      await this.#end(tenantId, keys)
      this.#failing.delete(tenantId)
    } catch (err) {
      if (this.#failing.size === 0)
        this.#options.log.warn({ err }, 'the keys of open streams cannot be checked; the streams stay open')
      this.#failing.add(tenantId)
    }
  }

  async #end(tenantId: string, keys: ReadonlyMap<string, readonly Held[]>): Promise<void> {
    const { alive, log } = this.#options
    const ids = [...keys.keys()]
    for (let i = 0; i < ids.length; i += atOnce) {
      const asked = ids.slice(i, i + atOnce)
      const valid = new Set(await alive(tenantId, asked))
      for (const id of asked) {
        if (valid.has(id)) continue
        const those = keys.get(id)!
        log.info(
          { tenant: tenantId, key: id, ended: those.length },
          'a key is not valid any more; its open streams are closed',
        )
        for (const one of those) one.end()
      }
    }
  }
}

type CallerOf = (request: FastifyRequest) => Pick<Held, 'tenantId' | 'keyId'> | undefined | null

/** Milliseconds after which the answer to a request is waited for. Most requests are answered before, and their keys are not looked at. */
const waitingMs = 300
/** Milliseconds that a request gets to be answered, as a stream gets to end: it may be the one that revoked its key, or replaced it. */
const answerMs = 500

/**
 * What the callers of some scopes hold open: streams, requests whose bodies are still arriving or whose handlers wait, and answers that are read while
 * they are sent. Routes do nothing for it, so that none can forget it.
 */
export class OpenExchanges {
  readonly #callerOf: CallerOf
  readonly #registries = new Set<StreamRegistry>()
  readonly #others = new Set<Pick<FastifyReply, 'request' | 'raw'>>()
  /** Since when handlers are at work. Undefined: the owner ends those that wait. */
  readonly #handled: Map<FastifyReply, number> | undefined

  constructor(callerOf: CallerOf, handlers: 'handlers' | undefined = undefined) {
    this.#callerOf = callerOf
    this.#handled = handlers && new Map()
  }

  /** Includes a scope, whose hooks find the caller of each request before its body is read. */
  watch(app: App): void {
    this.#registries.add(streamsOf(app))
    app.addHook('preParsing', (request, reply, _payload, done) => {
      // Undefined for an injected request, which has no connection.
      if (request.raw.complete === false) this.#add(reply, request.raw)
      done()
    })
    const handled = this.#handled
    if (handled)
      app.addHook('preHandler', (_request, reply, done) => {
        handled.set(reply, performance.now())
        done()
      })
    app.addHook('onSend', (_request, reply, payload, done) => {
      handled?.delete(reply)
      if (typeof payload === 'object' && payload !== null && !Buffer.isBuffer(payload)) this.#add(reply, reply.raw)
      done()
    })
  }

  *held(): Generator<Held> {
    for (const streams of this.#registries) {
      for (const stream of streams.all()) {
        const { request, abort } = stream
        if (request && !abort.signal.aborted) yield* this.#heldBy(request, () => streams.revoke(stream))
      }
    }
    // The other end sees that its body was not taken, or that the answer is not complete; whoever reads or writes here fails as if it had left.
    for (const { request, raw } of this.#others) yield* this.#heldBy(request, () => raw.destroy())
    yield* this.#waiting()
  }

  *#waiting(): Generator<Held> {
    const handled = this.#handled ?? new Map<FastifyReply, number>()
    for (const [reply, since] of handled) {
      const { request, raw } = reply
      const end = (): void => {
        if (handled.has(reply)) raw.destroy()
      }
      // What a stream answers, and what nobody reads any more, is not sent by a handler.
      if (reply.sent || raw.destroyed) handled.delete(reply)
      else if (performance.now() - since > waitingMs)
        yield* this.#heldBy(request, () => setTimeout(end, answerMs).unref())
    }
  }

  *#heldBy(request: FastifyRequest, end: () => unknown): Generator<Held> {
    const caller = this.#callerOf(request)
    if (caller) yield { tenantId: caller.tenantId, keyId: caller.keyId, end }
  }

  /** `until`: the part of the exchange that takes long. */
  #add({ request, raw }: FastifyReply, until: Stream & { readonly destroyed: boolean }): void {
    // Its end was told before.
    if (until.destroyed) return
    const one = { request, raw }
    const over = (): void => void this.#others.delete(one)
    this.#others.add(one)
    until.once('end', over).once('close', over)
  }
}

/** The setting of plugins that check keys. */
export const wrongKeysPerMinute = Type.Integer({
  minimum: 1,
  maximum: 1_000_000,
  default: 300,
  description: 'Wrong keys that one address may try in a minute, at each process.',
})

const windowMs = 60_000
/** How many addresses are remembered. Further addresses replace the oldest. */
const mostAddresses = 10_000
/**
 * Milliseconds by which each further refusal of an address waits longer, and the longest wait; above a number of waiting refusals, further ones are
 * answered at once.
 */
const holdMs = 5
const longestHoldMs = 1_000
const mostHeld = 200
/** Look-ups of keys that have not worked lately: how many of one address are under way, how many wait, and for how many ms. */
const mostLookUps = 8
const mostWaiting = 1_000
const patienceMs = 5_000
const tooManyLookUps = (): AppError =>
  unavailable({ message: 'Too many keys of this address wait to be looked up; try again shortly.', retryable: true })
/** How many recently valid keys are remembered. */
const mostKeys = 10_000

interface Failures {
  count: number
  /** Attempts that were refused without a look-up. */
  refused: number
  /** When the failures are forgotten, by the clock. */
  readonly until: number
}

/**
 * Throttles guessing of keys. After too many wrong keys from an address within a minute, the address gets 429 for the rest of that minute, and
 * nothing is looked up for it; an IPv6 /64 counts as one address. Keys that recently worked in this process continue to work from there, so that a
 * bad neighbour behind a shared address does not affect others. Each process counts by itself.
 */
export class WrongKeys {
  readonly #mostPerMinute: number
  readonly #now: () => number
  readonly #failures = new Map<string, Failures>()
  readonly #good = new Set<string>()
  /** The most recent of them. */
  #newest: string | undefined
  /** Refusals that wait for their answer. */
  #held = 0
  readonly #lookUps = new Shares({ each: mostLookUps, mostWaiting, busy: tooManyLookUps })

  /** `now`: milliseconds of a clock that never goes back. */
  constructor(mostPerMinute: number, now = () => performance.now()) {
    this.#mostPerMinute = mostPerMinute
    this.#now = now
  }

  /**
   * Looks a key up, and counts a wrong one; undefined names a text that can be no key. An address has only a few look-ups under way of keys that have
   * not worked lately, and the rest waits: it is refused once these were too many wrong ones. Otherwise thousands that come at once, before any of
   * them was found to be wrong, would all be looked up, and everybody else's keys behind them.
   */
  async find<T>(address: string, key: string | undefined, look: () => Promise<T | undefined>): Promise<T | undefined> {
    const known = (): boolean => key !== undefined && this.#good.has(key)
    await this.check(address, known)
    const leave = key === undefined || known() ? undefined : await this.#turn(address)
    let refused: Promise<never> | undefined
    try {
      refused = leave && this.check(address, known)
      if (!refused) {
        const found = key === undefined ? undefined : await look()
        if (found === undefined) this.failed(address, key)
        return found
      }
    } finally {
      leave?.()
    }
    return refused
  }
  async #turn(address: string): Promise<() => void> {
    const patience = AbortSignal.timeout(patienceMs)
    return this.#lookUps.enter(countedAs(address), patience).catch((error: unknown) => {
      throw patience.aborted ? tooManyLookUps() : error
    })
  }

  /**
   * Rejects with 429 when the address has tried too many wrong keys, unless `known` says that this key is no attempt. Mostly returns
   * undefined. Further requests are answered with growing delays, up to a second: refusing thousands a second would affect all clients.
   */
  check(address: string, known: () => boolean): Promise<never> | undefined {
    // Shortcut: nearly always no address has failed.
    if (this.#failures.size === 0) return undefined
    const failures = this.#of(countedAs(address))
    if (!failures || failures.count < this.#mostPerMinute || known()) return undefined
    const seconds = Math.max(1, Math.ceil((failures.until - this.#now()) / 1_000))
    return this.#refuse(failures, accessErrors.tooManyWrongKeys({ headers: { 'retry-after': String(seconds) } }))
  }

  /** `key` is a text that represents the key, such as its hash. */
  isGood(key: string): boolean {
    return this.#good.has(key)
  }
  worked(key: string): void {
    if (key === this.#newest) return
    this.#newest = key
    // Re-add the key, so that the first key in the set is the one unused for longest.
    this.#good.delete(key)
    this.#good.add(key)
    if (this.#good.size > mostKeys) this.#good.delete(this.#good.values().next().value!)
  }
  failed(address: string, key?: string): void {
    if (key !== undefined) this.#good.delete(key)
    if (key === this.#newest) this.#newest = undefined
    const counted = countedAs(address)
    const failures = this.#of(counted)
    if (failures) failures.count++
    else this.#failures.set(counted, { count: 1, refused: 0, until: this.#now() + windowMs })
    if (this.#failures.size > mostAddresses) this.#failures.delete(this.#failures.keys().next().value!)
  }

  async #refuse(failures: Failures, error: AppError): Promise<never> {
    failures.refused++
    if (this.#held < mostHeld) {
      this.#held++
      await sleep(Math.min(longestHoldMs, failures.refused * holdMs), undefined, { ref: false })
      this.#held--
    }
    throw error
  }
  #of(counted: string): Failures | undefined {
    const failures = this.#failures.get(counted)
    if (!failures || failures.until > this.#now()) return failures
    this.#failures.delete(counted)
    return undefined
  }
}
