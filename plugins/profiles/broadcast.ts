import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { Profile } from '#contracts/profiles'
import type { RunnerLink, RunnerPool } from '#contracts/runner'

/** How long an answer waits for the runners: enough for those that are up, little for those that are not. */
const patienceMs = 500
/** Doubling from a quarter of a second to half a minute: about five minutes in all. */
const attempts = 16
const firstDelayMs = 250
const maxDelayMs = 30_000
/** Profiles under way to one runner; beyond that it is told nothing more until it answers. */
const maxPending = 1_000

export interface Change {
  readonly tenantId: string
  readonly name: string
  /** Undefined: deleted. */
  readonly profile: Profile | undefined
}

export interface BroadcastOptions {
  /** Undefined in a role without runners. */
  readonly pool: Pick<RunnerPool, 'all'> | undefined
  readonly log: Pick<FastifyBaseLogger, 'warn' | 'error'>
  readonly signal: AbortSignal
  /** Waits between tries; tests replace it. */
  readonly wait?: (ms: number, signal: AbortSignal) => Promise<unknown>
}

/**
 * Tells every runner about a change that is already committed, and goes on in the background until each has it. Best
 * effort: a new session carries its profile, so a runner that never hears of a change still serves it.
 */
export function createBroadcast({
  pool,
  log,
  signal,
  wait = pause,
}: BroadcastOptions): (change: Change) => Promise<void> {
  // One delivery per runner and profile, and always of its newest state, so that an older one can never arrive last.
  const deliveries = new Map<RunnerLink, Map<string, { newest: Change; done: Promise<void> }>>()

  const deliver = async (link: RunnerLink, delivery: { newest: Change }): Promise<void> => {
    let failed = 0
    let sent: Change | undefined
    while (sent !== delivery.newest && !signal.aborted) {
      const { tenantId, name, profile } = (sent = delivery.newest)
      try {
        await (profile ? link.putProfile(tenantId, profile) : link.deleteProfile(tenantId, name))
        failed = 0
      } catch (err) {
        sent = undefined
        if (++failed === attempts)
          return log.error({ err, profile: name }, 'profile not delivered: gave up on the runner')
        log.warn({ err, profile: name, failed }, 'profile not delivered to a runner yet')
        await wait(Math.min(maxDelayMs, firstDelayMs * 2 ** (failed - 1)), signal).catch(() => {})
      }
    }
  }

  const tell = (link: RunnerLink, change: Change): Promise<void> => {
    const ofRunner = deliveries.get(link) ?? new Map<string, { newest: Change; done: Promise<void> }>()
    deliveries.set(link, ofRunner)
    const key = JSON.stringify([change.tenantId, change.name])
    const running = ofRunner.get(key)
    if (running) {
      running.newest = change
      return running.done
    }
    if (ofRunner.size >= maxPending) {
      log.error({ profile: change.name }, 'profile not delivered: too many wait for the runner')
      return Promise.resolve()
    }
    const delivery = { newest: change, done: Promise.resolve() }
    ofRunner.set(key, delivery)
    delivery.done = deliver(link, delivery).finally(() => {
      ofRunner.delete(key)
      if (ofRunner.size === 0) deliveries.delete(link)
    })
    return delivery.done
  }

  return async (change) => {
    const told = (pool?.all() ?? []).map((link) => tell(link, change))
    if (told.length === 0) return
    const enough = new AbortController()
    await Promise.race([Promise.all(told), pause(patienceMs, AbortSignal.any([enough.signal, signal])).catch(() => {})])
    enough.abort()
  }
}

const pause = (ms: number, signal: AbortSignal): Promise<unknown> => sleep(ms, undefined, { signal, ref: false })
