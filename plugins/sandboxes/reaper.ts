import type { FastifyBaseLogger } from 'fastify'
import { retry, SingleFlight } from '#kit'
import { isGone } from './errors.ts'
import type { Sandbox } from './sandbox.ts'
import type { Substrate } from './substrates.ts'
import { atMost } from './waiting.ts'

/** How long a caller waits for a provider to destroy a sandbox. After that the attempts go on in the background. */
const destroyMs = 10_000
/** The waits between attempts. */
const waits = { firstMs: 1_000, longestMs: 60_000 }

type Doomed = Pick<Sandbox, 'substrate' | 'sandboxId'>

/** Ends sandboxes, and tries again while a provider cannot be reached: a forgotten sandbox would cost money for ever. */
export interface Reaper {
  /** Registers a running launch, so that stopping destroys its sandbox even when the caller has given up. */
  expect(substrate: Substrate, launching: Promise<{ readonly sandboxId: string }>): void
  /** Never rejects. Resolves when the sandbox is destroyed, or when further attempts run in the background. */
  destroy(sandbox: Doomed): Promise<void>
  /** Destroys the sandboxes that a former process of this owner left behind. Resolves to their number; rejects when the provider cannot list them. */
  sweep(substrate: Substrate, owner: string): Promise<number>
  /** Destroys all sandboxes that this process launched, because nobody could find them afterwards. */
  stop(): Promise<void>
}

export function createReaper(log: FastifyBaseLogger): Reaper {
  const ours = new Map<string, Doomed>()
  const launches = new Set<Promise<void>>()
  const ends = new SingleFlight<void>()
  const stopping = new AbortController()
  const keyOf = ({ substrate, sandboxId }: Doomed): string => `${substrate.name}\n${sandboxId}`

  /** Concurrent calls for one sandbox share an attempt. */
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
  /** Resolves after the first attempt, even if it failed. */
  const destroy = (doomed: Doomed): Promise<void> =>
    new Promise((resolve) => {
      const attempts = retry(() => attempt(doomed).finally(resolve), { ...waits, stopping: stopping.signal })
      // The retries end when the runner stops. The failure is in the log already.
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
      // The list may hold sandboxes of this process whose launch is still running. After their launch they are in `ours`.
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
