import { createHash } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import { appError } from '#kernel'
import type { Database } from '#contracts/database'
import type { Attempt, Idempotency, Plan } from '#contracts/idempotency'
import { claimKey, cleanKeys, forgetKey, type Held, releaseKey, renewKeys, tenantIds } from './store.ts'

const keyReused = appError(
  'idempotency_key_reused',
  422,
  'This Idempotency-Key was used with another request body; send a new key.',
)
const inFlight = appError(
  'idempotency_in_flight',
  409,
  'A request with this Idempotency-Key is under way; repeat it when that one has ended.',
)

// The key of a process that died is free within 12 s. A live process renews its keys three times within a lease.
const beatMs = 4_000
const leaseSeconds = 12
const keptSeconds = 24 * 3_600
const cleanMs = 10 * 60_000
const retryAfterSeconds = '2'

export interface Keys extends Idempotency {
  /** Renews the leases of the keys whose requests are under way. */
  beat(): Promise<void>
  /** Deletes expired keys, tenant by tenant, because row security hides their rows from a statement without one. */
  clean(): Promise<number>
  start(): void
  stop(): Promise<void>
}

export function createKeys(database: Database, log: FastifyBaseLogger): Keys {
  const holding = new Set<Held>()
  const stopped = new AbortController()
  const timers: NodeJS.Timeout[] = []
  let cleaning: Promise<unknown> | undefined
  let beating: Promise<void> | undefined

  const settle = async (held: Held, write: () => Promise<void>): Promise<void> => {
    holding.delete(held)
    await write().catch((err: unknown) => {
      // The lease runs out by itself, and whoever repeats the request joins what was begun.
      log.warn({ err }, 'an idempotency key could not be released; its lease runs out')
    })
  }
  const attemptOf = <P extends Plan>(held: Held, plan: P, repeated: boolean): Attempt<P> => {
    holding.add(held)
    return {
      plan,
      repeated,
      answer: undefined,
      end: (answer) => settle(held, () => releaseKey(database, held, answer)),
      forget: () => settle(held, () => forgetKey(database, held)),
    }
  }
  const renew = async (): Promise<void> => {
    for (const [tenantId, held] of Map.groupBy(holding, (one) => one.tenantId)) {
      await renewKeys(database, tenantId, held, leaseSeconds)
    }
  }
  const keys: Keys = {
    async begin<P extends Plan>({ tenantId, scope, key, body, plan }: Parameters<Idempotency['begin']>[0]) {
      const claim = { tenantId, scope, key, fingerprint: fingerprint(body), plan, leaseSeconds, keptSeconds }
      // The second statement finds what a concurrent request has just written.
      const row = (await claimKey(database, claim)) ?? (await claimKey(database, claim))
      if (row && !row.same) throw keyReused()
      if (row?.claimed) return attemptOf({ tenantId, scope, key, attempt: row.attempt }, row.plan as P, row.repeated)
      if (!row?.answer) throw inFlight({ headers: { 'retry-after': retryAfterSeconds }, retryable: true })
      const nothing = async (): Promise<void> => {}
      return { plan: row.plan as P, repeated: true, answer: row.answer, end: nothing, forget: nothing }
    },
    beat: () =>
      (beating ??= renew()
        .catch((err: unknown) => log.warn({ err }, 'idempotency keys could not be renewed'))
        .finally(() => {
          beating = undefined
        })),
    async clean() {
      let count = 0
      for (const tenantId of await tenantIds(database)) {
        if (stopped.signal.aborted) break
        count += await cleanKeys(database, tenantId)
      }
      return count
    },
    start() {
      const clean = (): void => {
        cleaning ??= keys
          .clean()
          .catch((err: unknown) => log.warn({ err }, 'expired idempotency keys could not be deleted'))
          .finally(() => {
            cleaning = undefined
          })
      }
      timers.push(setInterval(() => void keys.beat(), beatMs).unref(), setInterval(clean, cleanMs).unref())
    },
    async stop() {
      stopped.abort()
      for (const timer of timers) clearInterval(timer)
      await Promise.all([beating, cleaning])
    },
  }
  return keys
}

/** SHA-256 of a JSON value, whatever the order in which its members were sent. */
const fingerprint = (body: unknown): Buffer => createHash('sha256').update(canonical(body)).digest()

// Bodies nest 64 levels at most: the kernel refuses deeper ones before they are parsed.
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null'
  const members = Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1))
  return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${canonical(member)}`).join(',')}}`
}
