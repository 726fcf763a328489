import type { Fleet, FleetMember } from '#contracts/runner'
import { type Profile, substrateOf } from '#contracts/profiles'
import type { ProfileView, WorkerPlacement } from './schema.ts'

/** Adds the fields that are computed when a profile is read. */
export type ViewOf = (profile: Profile) => ProfileView

export const createView =
  (fleet: Fleet | undefined): ViewOf =>
  (profile) => {
    const { placement: _, ...stored } = profile
    const workerPlacement = workerPlacementOf(profile, fleet?.describe() ?? [])
    return { ...stored, ...(workerPlacement ? { workerPlacement } : {}) }
  }

/**
 * What would currently happen to a sandbox worker of this profile, judged by the reports of the live runners that may take its sessions. Undefined:
 * the profile has no sandbox worker, or no runner has reported its abilities. Specification 2.6.
 */
export function workerPlacementOf(profile: Profile, fleet: readonly FleetMember[]): WorkerPlacement | undefined {
  const { placement: pool } = profile
  if (profile.workerMode !== 'sandbox' || (pool?.runtimes && !pool.runtimes.includes(profile.runtime))) return undefined
  const live = fleet.filter(
    (runner) =>
      runner.state === 'live' && runner.substratesKnown && (!pool?.runners || pool.runners.includes(runner.hash)),
  )
  if (live.length === 0) return undefined
  const runners = live.filter(({ capabilities }) => capabilities.length === 0 || capabilities.includes(profile.runtime))
  if (runners.length === 0) {
    const detail = `No live runner has the runtime '${profile.runtime}'.`
    return { substrate: null, source: 'unresolved', servable: false, detail }
  }
  const requested = substrateOf(profile)
  return typeof requested === 'string' ? asRequested(requested, runners) : byDefault(runners)
}

/** Sessions go to the runners that have the requested substrate. */
function asRequested(requested: string, runners: readonly FleetMember[]): WorkerPlacement {
  if (runners.some(({ substrates }) => substrates.includes(requested))) {
    return { substrate: requested, source: 'profile', servable: true }
  }
  const others = sorted(runners.flatMap(({ substrates }) => substrates))
  const detail =
    others.length === 0
      ? `No live runner has '${requested}', nor any other substrate.`
      : `No live runner has '${requested}'; they have ${others.join(', ')}.`
  return { substrate: null, source: 'unresolved', servable: false, requested, detail }
}

/** Sessions go to the runners that have a default substrate. */
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
  return { substrate: only, source: 'default', servable: true }
}

const sorted = (names: readonly string[]): string[] => [...new Set(names)].sort()
