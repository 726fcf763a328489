import type { Fleet, FleetMember, RunnerLink, RunnerTopology } from '#contracts/runner'

/** A runner that takes longer is shown without its figures: one dead runner must not delay the whole answer. */
const probeTimeoutMs = 1_500

/** What one probe of a runner gave. */
export interface Observation {
  readonly member: FleetMember
  /** The latest probe succeeded. */
  readonly healthy: boolean
  /** How long that probe took. Null: it failed, or was not made because the runner is away. */
  readonly latencyMs: number | null
  readonly topology: RunnerTopology | null
}

interface Probe {
  readonly at: number
  readonly done: Promise<Pick<Observation, 'latencyMs' | 'topology'>>
}

export interface ObserverOptions {
  readonly fleet: Pick<Fleet, 'all' | 'describe'>
  /** How long an observation is shown to whoever asks. */
  readonly freshMs: number
  readonly now?: () => number
}

/** Looks at the runners when somebody asks: each is probed once per `freshMs`, however many ask meanwhile. */
export function createObserver({ fleet, freshMs, now = Date.now }: ObserverOptions): () => Promise<Observation[]> {
  const probes = new WeakMap<RunnerLink, Probe>()
  const probe = async (link: RunnerLink): Promise<Pick<Observation, 'latencyMs' | 'topology'>> => {
    const begun = performance.now()
    try {
      const topology = await link.topology(AbortSignal.timeout(probeTimeoutMs))
      return { topology, latencyMs: Math.round((performance.now() - begun) * 10) / 10 }
    } catch {
      return { topology: null, latencyMs: null }
    }
  }
  const latest = (link: RunnerLink): Probe => {
    const known = probes.get(link)
    if (known && now() - known.at < freshMs) return known
    const fresh = { at: now(), done: probe(link) }
    probes.set(link, fresh)
    return fresh
  }
  return () => {
    // Both lists are in registry order and of one instant.
    const links = fleet.all()
    return Promise.all(
      fleet.describe().map(async (member, i): Promise<Observation> => {
        if (member.state === 'unreachable') return { member, healthy: false, latencyMs: null, topology: null }
        const seen = await latest(links[i]!).done
        return { member, healthy: seen.topology !== null, ...seen }
      }),
    )
  }
}
