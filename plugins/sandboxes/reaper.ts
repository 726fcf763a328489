import type { FastifyBaseLogger } from 'fastify'
import { isGone } from './errors.ts'
import type { Sandbox } from './sandbox.ts'
import type { Substrate } from './substrates.ts'
import { atMost } from './waiting.ts'

/** How long a caller waits for a provider to end a sandbox; after that it is tried again in the background. */
const destroyMs = 10_000
/** After a failed attempt, doubled up to the second. */
const firstRetryMs = 1_000
const lastRetryMs = 60_000

type Doomed = Pick<Sandbox, 'substrate' | 'sandboxId'>

/** Ends sandboxes, and tries again while a provider is away: a forgotten sandbox would cost money for ever. */
export interface Reaper {
  /** Registers a launch under way, so that its sandbox is destroyed on stop even when nobody waits for it any more. */
  expect(substrate: Substrate, launching: Promise<{ readonly sandboxId: string }>): void
  /** Never rejects. Resolves when it is destroyed, or is going to be tried again. */
  destroy(sandbox: Doomed): Promise<void>
  /** Destroys what a former process of this owner left behind. Rejects when the provider cannot list it. */
  sweep(substrate: Substrate, owner: string): Promise<number>
  /** Destroys all that this process launched: their handles are lost with it. */
  stop(): Promise<void>
}

export function createReaper(log: FastifyBaseLogger): Reaper {
  const ours = new Map<string, Doomed>()
  const launches = new Set<Promise<void>>()
  const underWay = new Map<string, Promise<void>>()
  const retries = new Set<NodeJS.Timeout>()
  let stopped = false
  const keyOf = ({ substrate, sandboxId }: Doomed): string => `${substrate.name}\n${sandboxId}`

  const attempt = (doomed: Doomed, retryMs: number): Promise<void> => {
    const key = keyOf(doomed)
    const joined = underWay.get(key) ?? end(doomed, retryMs).finally(() => underWay.delete(key))
    underWay.set(key, joined)
    return joined
  }
  const end = async (doomed: Doomed, retryMs: number): Promise<void> => {
    const { substrate, sandboxId } = doomed
    const failure = await substrate.provider.destroy(sandboxId).catch((error: unknown) => error ?? new Error('unknown'))
    if (failure === undefined || isGone(failure)) return void ours.delete(keyOf(doomed))
    log.warn({ err: failure, provider: substrate.name, sandboxId }, 'a sandbox could not be destroyed')
    if (!stopped) again(doomed, retryMs)
  }
  const again = (doomed: Doomed, retryMs: number): void => {
    const timer = setTimeout(() => {
      retries.delete(timer)
      void attempt(doomed, Math.min(retryMs * 2, lastRetryMs))
    }, retryMs).unref()
    retries.add(timer)
  }
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
    destroy: (doomed) => atMost(destroyMs, attempt(doomed, firstRetryMs)),
    async sweep(substrate, owner) {
      const found = (await substrate.provider.list?.(owner)) ?? []
      // The list may have sandboxes whose launch is still under way: only then is it known that they are this process's.
      await Promise.all(launches)
      const left = found.map((sandboxId) => ({ substrate, sandboxId })).filter((doomed) => !ours.has(keyOf(doomed)))
      await Promise.all(left.map((doomed) => attempt(doomed, firstRetryMs)))
      return left.length
    },
    async stop() {
      stopped = true
      for (const timer of retries) clearTimeout(timer)
      await Promise.all(launches)
      await Promise.all([...ours.values()].map((doomed) => attempt(doomed, 0)))
    },
  }
}
