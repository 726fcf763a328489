import type { FastifyBaseLogger } from 'fastify'
import type { ReadinessCheck } from '#contracts/health'
import { type Store, storeAway } from './store.ts'

const probeEveryMs = 200
/** How long Redis has to answer without a fault before it is used again. Doubled each time that Redis fails again soon. */
const steadyMs = { first: 1_000, longest: 30_000 }
/** When Redis was up for longer than this, the wait starts from the first value again. */
const lastedMs = 60_000

export interface FailoverOptions {
  readonly log: FastifyBaseLogger
  /** Rejects while Redis cannot be used; bounds itself. */
  probe(): Promise<void>
  /** PostgreSQL answers instead of Redis. */
  readonly replaced: boolean
  /** Called for every command that Redis did not answer. */
  onFallback?(command: string): void
  /** Called after every switch. */
  onSwitch?(up: boolean): void
}

/** Whether Redis is used. It is left with the first fault, and taken back once it has answered for a while. */
export interface Failover {
  readonly up: boolean
  /** Asks Redis while it is up; a command that fails there is answered by the other at once. */
  ask<T>(command: string, redis: () => Promise<T>, other: () => Promise<T>): Promise<T>
  lost(cause: unknown): void
  readonly check: ReadinessCheck
  close(): void
}

export function createFailover(options: FailoverOptions): Failover {
  const { log, probe, replaced, onFallback, onSwitch } = options
  let up = true
  let closed = false
  let neededMs = steadyMs.first
  let backAt = -Infinity
  let timer: NodeJS.Timeout | undefined

  const watch = (answersSince: number | undefined): void => {
    if (closed) return
    timer = setTimeout(async () => {
      const now = performance.now()
      const since = await probe().then(
        () => answersSince ?? now,
        () => undefined,
      )
      if (closed) return
      if (since === undefined || performance.now() - since < neededMs) return watch(since)
      up = true
      backAt = performance.now()
      log.info('Redis answers again and is used')
      onSwitch?.(true)
    }, probeEveryMs).unref()
  }
  const failover: Failover = {
    get up() {
      return up
    },
    async ask(command, redis, other) {
      if (up) {
        try {
          return await redis()
        } catch (error) {
          failover.lost(error)
        }
      }
      onFallback?.(command)
      return other()
    },
    lost(cause) {
      if (!up || closed) return
      up = false
      neededMs = performance.now() - backAt < lastedMs ? Math.min(neededMs * 2, steadyMs.longest) : steadyMs.first
      log.warn(
        { err: cause },
        `Redis does not answer; ${replaced ? 'PostgreSQL stands in' : 'requests that need it are refused'}`,
      )
      onSwitch?.(false)
      watch(undefined)
    },
    async check() {
      if (up) await probe().catch(failover.lost)
      if (up) return undefined
      if (!replaced) throw redisAway()
      return 'Redis does not answer; PostgreSQL stands in for it.'
    },
    close() {
      closed = true
      clearTimeout(timer)
    },
  }
  return failover
}

/** Redis while it is up. While it is down, `other` counts hits, where the role has one; claims fail, since only Redis knows them. */
export function standIn(failover: Failover, redis: Store, other: Store | undefined): Store {
  const nobody = async (): Promise<never> => {
    throw redisAway()
  }
  return {
    claim: (...key) => failover.ask('claim', () => redis.claim(...key), nobody),
    hit: (...key) => {
      const instead = other ? () => other.hit(...key) : nobody
      return failover.ask('hit', () => redis.hit(...key), instead)
    },
  }
}

const redisAway = () => storeAway(new Error('Redis does not answer.'))
