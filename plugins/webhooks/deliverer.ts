import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import type { Kv } from '#contracts/kv'
import type { TenantLimits } from '#contracts/limits'
import { AtOnce, tenantIds } from '#kit'
import type { Outbox, Settled, TakenMessage } from './store.ts'

/** Messages that this process delivers at once. */
const abreast = 16
/** Messages of one tenant taken at once: a tenant whose receiver is slow leaves room for others. */
const perTenant = 4
/** Of these, so many are only for tenants that have no other message on its way: slow receivers of many messages never keep them. */
const reserved = 4
/** A message whose process died during an attempt is due again after this time, which is longer than any attempt takes. */
const leaseMs = 60_000
/** Messages that are due later than this get no timer. The next sweep finds them. */
const maxWaitMs = 10 * 60_000

interface DelivererOptions {
  readonly outbox: Pick<Outbox, 'take' | 'settle'>
  /** Makes one attempt. Rejects when the attempt could not even be made; the message is then retried when its lease expires. */
  readonly attempt: (tenantId: string, message: TakenMessage) => Promise<Settled>
  /** The limit on the attempts of a tenant per minute. */
  readonly rate: DeliveryRate
  readonly log: FastifyBaseLogger
}

/** The limit on the attempts of a tenant. All processes count its attempts together. */
interface DeliveryRate {
  /** How many more attempts the tenant may make in this minute. */
  left(tenantId: string): Promise<number>
  made(tenantId: string, attempts: number): Promise<void>
}
/** When a tenant that has used up its attempts is checked again. */
const lookAgainMs = 1_000
/** A limit that is never reached, for hits that are only counted. It fits every store of hits. */
const anyNumber = 2 ** 31 - 1

/** Delivers the messages of the outbox, tenant by tenant. Any number of processes may do so at once: each takes messages that no other process has. */
export class Deliverer {
  readonly #outbox: DelivererOptions['outbox']
  readonly #attempt: DelivererOptions['attempt']
  readonly #rate: DeliveryRate
  readonly #log: FastifyBaseLogger
  readonly #due = new Set<string>()
  /** Messages on their way, by tenant, and places for those that are looked for. */
  readonly #underWay = new AtOnce()
  #total = 0
  readonly #timers = new Map<string, { readonly at: number; readonly timer: NodeJS.Timeout }>()
  readonly #work = new Set<Promise<void>>()
  #stopped = false

  constructor({ outbox, attempt, rate, log }: DelivererOptions) {
    this.#outbox = outbox
    this.#attempt = attempt
    this.#rate = rate
    this.#log = log
  }

  /** Called when a message of this tenant may be due. */
  wake(tenantId: string): void {
    this.#due.add(tenantId)
    this.#pump()
  }

  /** Takes no more messages, and resolves when those under way are settled. */
  async stop(): Promise<void> {
    this.#stopped = true
    for (const { timer } of this.#timers.values()) clearTimeout(timer)
    while (this.#work.size > 0) await Promise.all(this.#work)
  }

  /** Looks at all tenants that may have due messages at once, as far as there is room: one that waits for its own connections delays nobody. */
  #pump(): void {
    for (const tenantId of this.#due) {
      if (this.#stopped || this.#total >= abreast) return
      const room = this.#roomOf(tenantId)
      if (room === 0) continue
      this.#due.delete(tenantId)
      const places = Array.from({ length: room }, () => this.#place(tenantId))
      const look = this.#serve(tenantId, places).catch((err: unknown) => {
        this.#log.warn({ err }, 'the webhook outbox could not be read')
        this.#later(tenantId, 5_000)
      })
      this.#track(
        look.finally(() => {
          for (const leave of places) leave()
          this.#pump()
        }),
      )
    }
  }

  /** Delivers as many messages as there are places, and leaves in `places` those that are not needed. */
  async #serve(tenantId: string, places: (() => void)[]): Promise<void> {
    const left = await this.#rate.left(tenantId)
    if (left <= 0) return this.#later(tenantId, lookAgainMs)
    const room = Math.min(places.length, left)
    const { taken, inMs } = await this.#outbox.take(tenantId, room, leaseMs)
    if (inMs !== undefined) this.#later(tenantId, inMs)
    for (const message of taken) {
      const leave = places.pop()!
      this.#track(
        this.#deliver(tenantId, message).finally(() => {
          leave()
          this.#pump()
        }),
      )
    }
    await this.#rate.made(tenantId, taken.length)
    if (taken.length === room) this.#due.add(tenantId)
  }

  async #deliver(tenantId: string, message: TakenMessage): Promise<void> {
    const of = { delivery: message.id, runId: message.runId }
    try {
      const how = await this.#attempt(tenantId, message)
      await this.#outbox.settle(tenantId, message, how)
      if (how.state === 'pending') this.#later(tenantId, how.inMs)
      if (how.state === 'dead') this.#log.warn(of, 'a webhook message failed for the last time and was given up')
    } catch (err) {
      // The message is sent again when its lease expires. Receivers recognise a repeated message by its id.
      this.#log.warn({ err, ...of }, 'the outcome of a webhook could not be stored')
    }
  }

  #later(tenantId: string, inMs: number): void {
    const known = this.#timers.get(tenantId)
    const at = Date.now() + Math.max(inMs, 10)
    if (this.#stopped || inMs > maxWaitMs || (known && known.at <= at)) return
    clearTimeout(known?.timer)
    const timer = setTimeout(() => {
      this.#timers.delete(tenantId)
      this.wake(tenantId)
    }, at - Date.now()).unref()
    this.#timers.set(tenantId, { at, timer })
  }

  /** How many messages of the tenant may be taken now. */
  #roomOf(tenantId: string): number {
    const own = this.#underWay.of(tenantId)
    const ofAnybody = Math.max(0, Math.min(perTenant - own, abreast - reserved - this.#total))
    return own === 0 ? Math.max(ofAnybody, Math.min(1, abreast - this.#total)) : ofAnybody
  }
  /** Takes one of the tenant's places. The returned function leaves it, and is called once. */
  #place(tenantId: string): () => void {
    const end = this.#underWay.begin(tenantId)
    this.#total++
    return () => {
      end()
      this.#total--
    }
  }
  #track(promise: Promise<void>): void {
    this.#work.add(promise)
    void promise.finally(() => this.#work.delete(promise))
  }
}

export function createRate(
  kv: Pick<Kv, 'hit'> | undefined,
  limits: Pick<TenantLimits, 'of'> | undefined,
): DeliveryRate {
  const keyOf = (tenantId: string): string => `ao:tenant:${tenantId}:webhookDeliveriesPerMinute`
  return {
    async left(tenantId) {
      if (!kv || !limits) return Infinity
      // With a limit of 0 the hit is refused and not counted, but the answer says how many hits there were.
      const { count } = await kv.hit(keyOf(tenantId), 0, 60)
      return limits.of(tenantId).webhookDeliveriesPerMinute - count
    },
    async made(tenantId, attempts) {
      if (!kv || !limits) return
      const hit = (): Promise<unknown> => kv.hit(keyOf(tenantId), anyNumber, 60)
      await Promise.all(Array.from({ length: attempts }, hit))
    },
  }
}

/** Pauses between two sweeps, and between two tenants of a sweep. A sweep only finds messages whose wake-up was lost, so it need not be fast. */
const restMs = 30_000
const stepMs = 20

/** Wakes all tenants in turn, again and again. This finds messages of processes that died, and messages whose notification was lost. */
export function startRounds(database: Database, wake: (tenantId: string) => void, log: FastifyBaseLogger): () => void {
  const stopping = new AbortController()
  const rest = (ms: number): Promise<unknown> => sleep(ms, undefined, { signal: stopping.signal, ref: false })
  const rounds = async (): Promise<void> => {
    for (;;) {
      try {
        for await (const id of tenantIds(database, 'active')) {
          wake(id)
          await rest(stepMs)
        }
      } catch (err) {
        if (stopping.signal.aborted) return
        log.warn({ err }, 'the tenants of the webhook outbox could not be listed')
      }
      await rest(restMs)
    }
  }
  rounds().catch(() => {})
  return () => stopping.abort()
}
