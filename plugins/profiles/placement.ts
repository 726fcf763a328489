import type { FleetMember } from '#contracts/runner'
import type { Profile } from '#contracts/profiles'
import type { WorkerPlacement } from './schema.ts'

/**
 * What would happen to a sandbox worker of this profile now, by what the live runners report that may take its sessions.
 * Undefined: it has no sandbox worker, or no such runner has said what it can do. Specification 2.6.
 */
export function workerPlacementOf(profile: Profile, fleet: readonly FleetMember[]): WorkerPlacement | undefined {
  const { placement: pool } = profile
  if (profile.workerMode !== 'sandbox' || (pool?.runtimes && !pool.runtimes.includes(profile.runtime))) return undefined
  const runners = fleet.filter(
    (runner) =>
      runner.state === 'live' &&
      runner.substratesKnown &&
      (runner.capabilities.length === 0 || runner.capabilities.includes(profile.runtime)) &&
      (!pool?.runners || pool.runners.includes(runner.hash)),
  )
  if (runners.length === 0) return undefined
  const requested = (profile.sandbox as { provider?: string } | undefined)?.provider
  return requested === undefined ? byDefault(runners) : asRequested(requested, runners)
}

function asRequested(requested: string, runners: readonly FleetMember[]): WorkerPlacement {
  const having = runners.filter(({ substrates }) => substrates.includes(requested)).length
  if (having === runners.length) return { substrate: requested, source: 'profile', servable: true }
  if (having > 0) {
    const detail = `${having} of ${runners.length} live runners have '${requested}'; sessions on the others have no worker.`
    return { substrate: requested, source: 'profile', servable: true, requested, detail }
  }
  const others = sorted(runners.flatMap(({ substrates }) => substrates))
  const detail =
    others.length === 0
      ? `No live runner has '${requested}', nor any other substrate.`
      : `No live runner has '${requested}'; they have ${others.join(', ')}.`
  return { substrate: null, source: 'unresolved', servable: false, requested, detail }
}

function byDefault(runners: readonly FleetMember[]): WorkerPlacement {
  const defaults = sorted(runners.flatMap(({ defaultSubstrate }) => defaultSubstrate ?? []))
  const [only] = defaults
  if (only === undefined) {
    const detail = 'No live runner has a default substrate; name one as sandbox.provider.'
    return { substrate: null, source: 'unresolved', servable: false, detail }
  }
  if (defaults.length > 1) {
    const detail = `The defaults of the live runners differ: ${defaults.join(', ')}. Name one as sandbox.provider.`
    return { substrate: null, source: 'unresolved', servable: true, detail }
  }
  const having = runners.filter(({ defaultSubstrate }) => defaultSubstrate !== undefined).length
  if (having === runners.length) return { substrate: only, source: 'default', servable: true }
  const detail = `${having} of ${runners.length} live runners have a default substrate; sessions on the others have no worker.`
  return { substrate: only, source: 'default', servable: true, detail }
}

const sorted = (names: readonly string[]): string[] => [...new Set(names)].sort()
