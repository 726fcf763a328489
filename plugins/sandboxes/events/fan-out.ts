import type { FastifyBaseLogger } from 'fastify'
import type { Fleet } from '#contracts/runner'

/** Specification 4.9. */
const maxFanOuts = 32
/** How long the runners may take. Best effort is enough: a cached state that is not dropped expires soon by itself. */
const windowMs = 2_000

export interface FanOutOptions {
  readonly fleet: Pick<Fleet, 'all'>
  readonly log: FastifyBaseLogger
  /** Called with the number of cached states that the runners dropped. */
  onDropped(count: number): void
  readonly windowMs?: number
}

/** Tells every runner, in the background, that a sandbox changed. */
export interface FanOut {
  readonly active: number
  /** False: too many are under way, and this one is shed. */
  offer(provider: string, sandboxId: string): boolean
}

export function createFanOut({ fleet, log, onDropped, windowMs: ms = windowMs }: FanOutOptions): FanOut {
  let active = 0
  const tell = async (provider: string, sandboxId: string): Promise<void> => {
    const late = AbortSignal.timeout(ms)
    await Promise.all(
      fleet.all().map((link) =>
        within(link.invalidateSandbox(provider, sandboxId), late).then(onDropped, (err: unknown) => {
          log.debug({ err, runner: link.hash, provider, sandboxId }, 'a runner was not told that a sandbox changed')
        }),
      ),
    )
  }
  return {
    get active() {
      return active
    },
    offer(provider, sandboxId) {
      if (active >= maxFanOuts) {
        log.warn({ provider, sandboxId }, 'sandbox_event.fanout_shed')
        return false
      }
      active++
      void tell(provider, sandboxId).finally(() => active--)
      return true
    },
  }
}

/** Rejects when the signal aborts; the call itself ends by its own limit. */
const within = <T>(answer: Promise<T>, signal: AbortSignal): Promise<T> =>
  new Promise((resolve, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true })
    answer.then(resolve, reject)
  })
