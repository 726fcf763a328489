import type { RunJob } from './load-client.ts'
import { measureCell, measureLong, type Sample } from './measure.ts'
import type { Options } from './options.ts'
import type { Target } from './targets.ts'

/** The figures of one target, a sample for each round. */
export interface Rounds {
  readonly cells: Map<string, Sample[]>
  /** Deltas per second of one long stream. */
  readonly long: number[]
  errors: number
}

/**
 * Lets a target work on everything that will be measured, so that its code is compiled: cold code costs three times as much,
 * and the first cell of the first round would measure the compiler.
 */
export async function warmUp(run: RunJob, target: Target, options: Options): Promise<void> {
  for (const cell of options.cells) {
    await measureCell(run, target, cell, options.warmUpMs / options.cells.length, 0)
  }
  if (options.longTimes > 0) await measureLong(run, target, options.longTimes)
}

/** Every round begins with another target, so that none always follows the same one. */
export async function measureRounds(
  run: RunJob,
  targets: readonly Target[],
  options: Options,
  say: (text: string) => void,
): Promise<ReadonlyMap<Target, Rounds>> {
  const kept = new Map<Target, Rounds>()
  for (const target of targets) kept.set(target, { cells: new Map(), long: [], errors: 0 })
  for (let round = 0; round < options.rounds; round++) {
    say(`round ${round + 1} of ${options.rounds}`)
    const order = targets.map((_, i) => targets[(i + round) % targets.length]).filter((target) => target !== undefined)
    for (const cell of options.cells) {
      for (const target of order) {
        const { cells } = kept.get(target)!
        const sample = await measureCell(run, target, cell, options.warmMs, options.ms)
        cells.set(cell.name, [...(cells.get(cell.name) ?? []), sample])
      }
    }
    if (options.longTimes === 0) continue
    for (const target of order) {
      const rounds = kept.get(target)!
      const { perSecond, errors } = await measureLong(run, target, options.longTimes)
      rounds.long.push(perSecond)
      rounds.errors += errors
    }
  }
  return kept
}
