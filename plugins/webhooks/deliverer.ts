import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import type { Outbox, Settled, Taken } from './store.ts'

/** Messages on their way at once, from this process. */
const abreast = 16
/** Messages of one tenant taken at once: a tenant whose receiver is slow leaves room for others. */
const perTenant = 4
/** A message whose process died on the way is due again after this; longer than any attempt takes. */
const leaseMs = 60_000
/** Beyond this a wake-up is left to the next round. */
const maxWaitMs = 10 * 60_000

interface DelivererOptions {
  readonly outbox: Pick<Outbox, 'take' | 'settle'>
  /** Makes one attempt. Rejects when it could not even be made: then the lease runs out. */
  readonly attempt: (tenantId: string, message: Taken) => Promise<Settled>
  readonly log: FastifyBaseLogger
}

/** Empties the outbox, tenant by tenant. Any number of processes may do so at once: each takes what no other has. */
interface Deliverer {
  /** Something of this tenant is due, or may be. */
  wake(tenantId: string): void
  /** Takes nothing any more, and resolves when what was on its way is settled. */
  stop(): Promise<void>
}

export function createDeliverer({ outbox, attempt, log }: DelivererOptions): Deliverer {
  const due = new Set<string>()
  const underWay = new Map<string, number>()
  const timers = new Map<string, { readonly at: number; readonly timer: NodeJS.Timeout }>()
  const work = new Set<Promise<void>>()
  let total = 0
  let stopped = false

  const later = (tenantId: string, inMs: number): void => {
    const known = timers.get(tenantId)
    const at = Date.now() + Math.max(inMs, 10)
    if (stopped || inMs > maxWaitMs || (known && known.at <= at)) return
    clearTimeout(known?.timer)
    const timer = setTimeout(() => {
      timers.delete(tenantId)
      wake(tenantId)
    }, at - Date.now()).unref()
    timers.set(tenantId, { at, timer })
  }
  const deliver = async (tenantId: string, message: Taken): Promise<void> => {
    try {
      const how = await attempt(tenantId, message)
      await outbox.settle(tenantId, message, how)
      if (how.state === 'pending') later(tenantId, how.inMs)
      if (how.state === 'dead') log.warn({ delivery: message.id, runId: message.runId }, 'a webhook was given up')
    } catch (err) {
      // Its lease runs out, and it is sent again: receivers know it by its id.
      log.warn({ err, delivery: message.id }, 'what became of a webhook could not be stored')
    }
  }
  const serve = async (tenantId: string): Promise<void> => {
    const room = Math.min(perTenant - (underWay.get(tenantId) ?? 0), abreast - total)
    const { taken, inMs } = await outbox.take(tenantId, room, leaseMs)
    if (inMs !== undefined) later(tenantId, inMs)
    total += taken.length
    underWay.set(tenantId, (underWay.get(tenantId) ?? 0) + taken.length)
    if (taken.length === room) due.add(tenantId)
    for (const message of taken) {
      track(
        deliver(tenantId, message).finally(() => {
          total--
          const left = underWay.get(tenantId)! - 1
          if (left === 0) underWay.delete(tenantId)
          else underWay.set(tenantId, left)
          pump()
        }),
      )
    }
  }
  const track = (promise: Promise<void>): void => {
    work.add(promise)
    void promise.finally(() => work.delete(promise))
  }
  let pumping = false
  const pump = (): void => {
    if (pumping || stopped) return
    pumping = true
    const round = async (): Promise<void> => {
      for (const tenantId of due) {
        if (stopped || total >= abreast) break
        if ((underWay.get(tenantId) ?? 0) >= perTenant) continue
        due.delete(tenantId)
        await serve(tenantId).catch((err: unknown) => {
          log.warn({ err }, 'the webhook outbox could not be read')
          later(tenantId, 5_000)
        })
      }
    }
    track(
      round().finally(() => {
        pumping = false
        if (!stopped && total < abreast && [...due].some((id) => (underWay.get(id) ?? 0) < perTenant)) pump()
      }),
    )
  }
  const wake = (tenantId: string): void => {
    due.add(tenantId)
    pump()
  }
  return {
    wake,
    async stop() {
      stopped = true
      for (const { timer } of timers.values()) clearTimeout(timer)
      while (work.size > 0) await Promise.all(work)
    },
  }
}

/** Between two rounds, and between two tenants of a round: it only finds what nobody was woken for. */
const restMs = 30_000
const stepMs = 20

/**
 * Goes through all tenants again and again, for messages of processes that died and for notifications that were lost. Row
 * security hides every message from a transaction without a tenant, so each is woken for itself.
 */
export function startRounds(database: Database, wake: (tenantId: string) => void, log: FastifyBaseLogger): () => void {
  const stopping = new AbortController()
  const rest = (ms: number): Promise<unknown> => sleep(ms, undefined, { signal: stopping.signal, ref: false })
  const rounds = async (): Promise<void> => {
    for (;;) {
      try {
        const [tenants] = await database.systemBatch<[{ id: string }[]]>([
          { name: 'webhooks-tenants', text: 'SELECT id FROM tenants WHERE deleted_at IS NULL' },
        ])
        for (const { id } of tenants) {
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
