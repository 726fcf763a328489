import type { FastifyBaseLogger } from 'fastify'
import { retry, SingleFlight } from '#kit'
import { isGone } from './errors.ts'
import type { Sandbox } from './sandbox.ts'
import type { Substrate } from './substrates.ts'
import { atMost } from './waiting.ts'

/** How long a caller waits for a provider to end a sandbox; after that it is tried again in the background. */
const destroyMs = 10_000
/** After a failed attempt. */
const waits = { firstMs: 1_000, longestMs: 60_000 }

type Doomed = Pick<Sandbox, 'substrate' | 'sandboxId'>

/** Ends sandboxes, and tries again while a provider cannot be reached: a forgotten sandbox would cost money for ever. */
export interface Reaper {
  /** Registers a running launch, so that its sandbox is destroyed on stop even when nobody waits for it any more. */
  expect(substrate: Substrate, launching: Promise<{ readonly sandboxId: string }>): void
  /** Never rejects. Resolves when it is destroyed, or will be tried again. */
  destroy(sandbox: Doomed): Promise<void>
  /** Destroys what a former process of this owner left behind. Rejects when the provider cannot list it. */
  sweep(substrate: Substrate, owner: string): Promise<number>
  /** Destroys all that this process launched: their handles are lost with it. */
  stop(): Promise<void>
}

export function createReaper(log: FastifyBaseLogger): Reaper {
  const ours = new Map<string, Doomed>()
  const launches = new Set<Promise<void>>()
  const ends = new SingleFlight<void>()
  const stopping = new AbortController()
  const keyOf = ({ substrate, sandboxId }: Doomed): string => `${substrate.name}\n${sandboxId}`

  /** Joins a running attempt. */
  const attempt = (doomed: Doomed): Promise<void> => ends.run(keyOf(doomed), () => end(doomed))
  const end = async (doomed: Doomed): Promise<void> => {
    const { substrate, sandboxId } = doomed
    try {
      await substrate.provider.destroy(sandboxId)
    } catch (err) {
      if (!isGone(err)) {
        log.warn({ err, provider: substrate.name, sandboxId }, 'a sandbox could not be destroyed')
        throw err
      }
    }
    ours.delete(keyOf(doomed))
  }
  /** Resolves after the first attempt. */
  const destroy = (doomed: Doomed): Promise<void> =>
    new Promise((resolve) => {
      const attempts = retry(() => attempt(doomed).finally(resolve), { ...waits, stopping: stopping.signal })
      // Given up on stop; it is in the log.
      attempts.catch(() => {})
    })
  return {
    expect(substrate, launching) {
      const settled: Promise<void> = launching
        .then(
          ({ sandboxId }) => {
            const doomed = { substrate, sandboxId }
            ours.set(keyOf(doomed), doomed)
          },
          () => {},
        )
        .finally(() => launches.delete(settled))
      launches.add(settled)
    },
    destroy: (doomed) => atMost(destroyMs, destroy(doomed)),
    async sweep(substrate, owner) {
      const found = (await substrate.provider.list?.(owner)) ?? []
      // The list may contain sandboxes of this process whose launch is still running; after it they are known.
      await Promise.all(launches)
      const left = found.map((sandboxId) => ({ substrate, sandboxId })).filter((doomed) => !ours.has(keyOf(doomed)))
      await Promise.all(left.map(destroy))
      return left.length
    },
    async stop() {
      stopping.abort()
      await Promise.all(launches)
      await Promise.allSettled([...ours.values()].map(attempt))
    },
  }
}
