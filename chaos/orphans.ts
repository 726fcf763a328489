import type { Name, Store } from './schedule.ts'
import { stateful } from './schedule.ts'
import { openRunsOf, type Stored } from './stored.ts'

/** Longer than this, a frozen process is dead to the others. */
const leaseMs = 12_000

interface Interval {
  readonly from: number
  to: number
}

/** What processes had under way when they died, and how long it took until it was over. */
export interface Orphans {
  /** Stopping processes that did not stop. */
  readonly stuck: string[]
  /** Begins a time in which the process, or its way to a store, is away; the function ends it. */
  processAway(name: Name): () => void
  storeAway(on: Name | 'all', store: Store): () => void
  /** Notes what the process has under way. */
  ownerDied(name: Name, how: 'killed' | 'frozen', forMs: number): Promise<void>
  /** Milliseconds from the death of its owner to the end of each orphan, without the time in which nobody could have ended it. */
  times(stored: Stored): number[]
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
  /** Milliseconds of a span in which at least one process of the role could work. */
  const ableMs = (role: string, from: number, to: number): number => {
    const peers = stateful.filter((name) => name.startsWith(role))
    const edges = peers.flatMap((name) => (away.get(name) ?? []).flatMap((span) => [span.from, span.to]))
    const points = [from, ...edges.filter((at) => at > from && at < to), to].sort((a, b) => a - b)
    let able = 0
    for (let i = 1; i < points.length; i++) {
      const middle = (points[i - 1]! + points[i]!) / 2
      const up = peers.some((name) => !(away.get(name) ?? []).some((span) => span.from <= middle && middle < span.to))
      if (up) able += points[i]! - points[i - 1]!
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
      // A store that is being restarted has nobody's claims to tell.
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
            ? [ableMs('conductor', at, run.finishedAt)]
            : []
        }),
        ...unwatched.flatMap((id) => {
          const run = publicEnds.get(id)
          if (run?.finishedAt === undefined) return []
          // Its run goes on without its gateway: only what comes after both counts.
          const from = Math.max(at, ends.get(run.runId)?.finishedAt ?? at)
          return [ableMs('gateway', from, Math.max(from, run.finishedAt))]
        }),
      ])
    },
  }
}
