import type { Measured } from '../inspector.ts'
import { judge, type Judgement, type Point } from './fit.ts'

export interface Sample extends Measured {
  readonly minutes: number
}

/** The measurements of one process. */
export interface Seen {
  readonly name: string
  /** Before any load, under load, and once load has ended and idle connections have closed. */
  readonly before: Measured
  readonly samples: readonly Sample[]
  readonly after: Measured
  /** Warnings that Node gave in the process. */
  readonly warnings: readonly string[]
}

const mib = 1024 ** 2
/** The most growth per minute under steady load that is still put down to chance. */
export const limits = {
  heapMibPerMinute: 2,
  externalMibPerMinute: 2,
  /** Handles, timers and requests under way: as if one story in a hundred left one behind. A slower leak shows at rest. */
  resourcesPerMinute: 5,
  /** How many more there may be at rest than before the load: pools keep some connections open. */
  resourcesLeft: 40,
}

export interface ProcessVerdict {
  readonly name: string
  readonly heap: Judgement
  readonly external: Judgement
  readonly resources: Judgement
  /** How many more there are at rest than before the load, by kind, largest first. */
  readonly left: number
  readonly leftKinds: readonly (readonly [kind: string, more: number])[]
  readonly problems: readonly string[]
}

export const countOf = ({ resources }: Measured): number => Object.values(resources).reduce((sum, n) => sum + n, 0)

export function judgeProcess({ name, before, samples, after, warnings }: Seen): ProcessVerdict {
  const series = (of: (sample: Sample) => number): Point[] =>
    samples.map((sample) => ({ minutes: sample.minutes, value: of(sample) }))
  const heap = judge(
    series(({ heapUsed }) => heapUsed / mib),
    limits.heapMibPerMinute,
  )
  const external = judge(
    series(({ external: bytes }) => bytes / mib),
    limits.externalMibPerMinute,
  )
  const resources = judge(series(countOf), limits.resourcesPerMinute)
  const left = countOf(after) - countOf(before)
  const leftKinds = Object.entries(after.resources)
    .map(([kind, count]) => [kind, count - (before.resources[kind] ?? 0)] as const)
    .filter(([, more]) => more > 0)
    .toSorted(([, a], [, b]) => b - a)
  const say = (what: string, unit: string, { finding, slope, error }: Judgement): string[] =>
    finding === 'steady'
      ? []
      : finding === 'grows'
        ? [`${name}: ${what} grows by ${slope.toFixed(2)} ${unit} a minute`]
        : [
            `${name}: ${what} is too noisy to tell growth (${slope.toFixed(2)} ± ${error.toFixed(2)} ${unit} a minute): run longer`,
          ]
  const problems = [
    ...say('the heap', 'MiB', heap),
    ...say('memory outside the heap', 'MiB', external),
    ...say('the number of handles, timers and requests', '', resources),
    ...(left > limits.resourcesLeft
      ? [`${name}: at rest ${left} more than before: ${leftKinds.map(([kind, more]) => `${more} ${kind}`).join(', ')}`]
      : []),
    // Node's own sign of listeners that pile up on one object.
    ...warnings.filter((text) => text.startsWith('MaxListenersExceeded')).map((text) => `${name}: ${text}`),
  ]
  return { name, heap, external, resources, left, leftKinds, problems }
}
