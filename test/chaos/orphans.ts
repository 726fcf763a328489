import type { Name, Store } from './schedule.ts'
import { stateful } from './schedule.ts'
import { openRunsOf, type Stored } from './stored.ts'

/** Longer than this, a frozen process is dead to the others. */
const leaseMs = 12_000

interface Interval {
  readonly from: number
  to: number
}

export interface Orphan {
  readonly id: string
  readonly ms: number
}

/** The runs that processes had under way when they died, and how long it took until those ended. */
export interface Orphans {
  /** Processes that did not stop when they were told to. */
  readonly stuck: string[]
  /** Begins a time in which the process, or its connection to a store, is away; the returned function ends it. */
  processAway(name: Name): () => void
  storeAway(on: Name | 'all', store: Store): () => void
  /** Notes the runs that the process has under way. */
  ownerDied(name: Name, how: 'killed' | 'frozen', forMs: number): Promise<void>
  /** Milliseconds from the death of its owner to the end of each orphan, without the time in which no process could have ended it. */
  times(stored: Stored): Orphan[]
}

export function createOrphans(dsn: string, instancesOf: (name: Name) => readonly string[]): Orphans {
  const deaths: { at: number; runs: readonly string[]; publicRuns: readonly string[] }[] = []
  const away = new Map<Name, Interval[]>()
  const begin = (names: readonly Name[]): (() => void) => {
    const interval = { from: Date.now(), to: Number.POSITIVE_INFINITY }
    for (const name of names) away.set(name, [...(away.get(name) ?? []), interval])
    return () => {
      interval.to = Date.now()
    }
  }
  const isUp = (name: Name, at: number): boolean =>
    !(away.get(name) ?? []).some((span) => span.from <= at && at < span.to)
  const conductors = stateful.filter((name) => name.startsWith('conductor'))
  const gateways = stateful.filter((name) => name.startsWith('gateway'))
  const couldEndRuns = (at: number): boolean => conductors.some((name) => isUp(name, at))
  // A gateway asks how a run ended, and every second request goes to the conductor that is away.
  const couldEndPublicRuns = (at: number): boolean =>
    gateways.some((name) => isUp(name, at)) && conductors.every((name) => isUp(name, at))
  /** Milliseconds of a span in which a process could work. */
  const ableMs = (could: (at: number) => boolean, from: number, to: number): number => {
    const edges = [...away.values()].flat().flatMap((span) => [span.from, span.to])
    const points = [from, ...edges.filter((at) => at > from && at < to), to].sort((a, b) => a - b)
    let able = 0
    for (let i = 1; i < points.length; i++) {
      if (could((points[i - 1]! + points[i]!) / 2)) able += points[i]! - points[i - 1]!
    }
    return able
  }
  return {
    stuck: [],
    processAway: (name) => begin([name]),
    // Without Redis a conductor still ends what a dead one left.
    storeAway: (on, store) => (store === 'redis' ? () => {} : begin(on === 'all' ? stateful : [on])),
    async ownerDied(name, how, forMs) {
      if (!stateful.includes(name) || (how === 'frozen' && forMs < leaseMs + 2_000)) return
      const at = Date.now()
      // A store that is being restarted cannot list claims.
      const open = await openRunsOf(dsn, instancesOf(name)).catch(() => undefined)
      if (open) deaths.push({ at, ...open })
    },
    times({ runs, publicRuns }) {
      const ends = new Map(runs.map((run) => [run.id, run]))
      const publicEnds = new Map(publicRuns.map((run) => [run.id, run]))
      return deaths.flatMap(({ at, runs: orphaned, publicRuns: unwatched }) => [
        ...orphaned.flatMap((id) => {
          const run = ends.get(id)
          return run?.status === 'interrupted' && run.finishedAt !== undefined
            ? [{ id, ms: ableMs(couldEndRuns, at, run.finishedAt) }]
            : []
        }),
        ...unwatched.flatMap((id) => {
          const run = publicEnds.get(id)
          if (run?.finishedAt === undefined) return []
          // Its run goes on without its gateway: only what comes after both counts.
          const from = Math.max(at, ends.get(run.runId)?.finishedAt ?? at)
          return [{ id, ms: ableMs(couldEndPublicRuns, from, Math.max(from, run.finishedAt)) }]
        }),
      ])
    },
  }
}
