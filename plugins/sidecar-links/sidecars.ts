import type { SidecarHealth, SidecarLink, Sidecars, SidecarSlot } from '#contracts/sidecar'
import { runtimeUnavailable } from './errors.ts'
import { standardRuntimes } from './remote-sidecar.ts'

/** One sidecar that this runner was told about. */
export interface Known {
  readonly link: SidecarLink
  /** '' for a sidecar in the same process. */
  readonly url: string
}

/** How long an answer of `/health` is believed; a failed probe is repeated sooner, since the sidecar may just be starting. */
const freshMs = 5_000
const retryMs = 1_000
/** A sidecar that was silent for so long offers nothing: a runner that still announced its runtimes would draw runs and fail them. */
const goneMs = 10_000

/**
 * Chooses the sidecar of a runtime: its own URL, else the poly-sidecar's, else the local one. `shared` is the
 * poly-sidecar or the local one, which is asked what it can run.
 */
export function createSidecars(
  own: ReadonlyMap<string, Known>,
  shared: Known | undefined,
  now: () => number = Date.now,
): Sidecars {
  let known: readonly string[] | undefined
  let missing: Readonly<Record<string, string>> = {}
  let askedAt = -Infinity
  let answeredAt = -Infinity
  let asking: Promise<void> | undefined
  const ask = async (source: Known): Promise<void> => {
    const health: SidecarHealth | undefined = await source.link.health().catch(() => undefined)
    if (health) {
      known = health.runtimes
      missing = health.missing ?? {}
      answeredAt = now()
    } else if (now() - answeredAt >= goneMs) known = undefined
    askedAt = now() - (health ? 0 : freshMs - retryMs)
  }
  const refresh = (): Promise<void> => {
    if (!shared || now() - askedAt < freshMs) return Promise.resolve()
    asking ??= ask(shared).finally(() => {
      asking = undefined
    })
    return asking
  }
  const names = (): string[] => [...new Set([...own.keys(), ...(known ?? [])])].sort()
  return {
    forRuntime(runtime) {
      const serving = own.get(runtime) ?? shared
      if (!serving) {
        throw runtimeUnavailable({ message: `No sidecar is configured for the runtime '${runtime}'.` })
      }
      return serving.link
    },
    async runtimes() {
      await refresh()
      return names()
    },
    slots() {
      // Not awaited: the caller gets what is known now, the next one what was found out.
      void refresh()
      const slotOf = (runtime: string): SidecarSlot => {
        const override = own.get(runtime)
        if (override) return { runtime, mode: 'sidecar', url: override.url }
        if (!shared) return { runtime, mode: 'stub', url: '' }
        if (!known) return { runtime, mode: 'unknown', url: shared.url }
        if (known.includes(runtime)) return { runtime, mode: 'sidecar', url: shared.url }
        const why = missing[runtime]
        return { runtime, mode: 'stub', url: '', ...(why === undefined ? {} : { missing: why }) }
      }
      return [...new Set([...standardRuntimes, ...names(), ...Object.keys(missing)])].map(slotOf)
    },
  }
}
