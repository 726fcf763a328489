import { draw, shown } from '../table.ts'
import type { Judgement } from './fit.ts'
import { countOf, judgeProcess, type ProcessVerdict, type Seen } from './verdict.ts'

export interface Outcome {
  readonly minutes: number
  readonly rate: number
  readonly seed: number
  readonly stories: number
  readonly requests: number
  readonly webhooks: number
  readonly errors: number
  readonly messages: Readonly<Record<string, number>>
  readonly processes: readonly (ProcessVerdict & Pick<Seen, 'before' | 'samples' | 'after'>)[]
  readonly problems: readonly string[]
}

type Counted = Omit<Outcome, 'processes' | 'problems'>

/** `notAtRest`: what the service reports as under way although there is no load. */
export function judgeAll(counted: Counted, seen: readonly Seen[], notAtRest: readonly string[]): Outcome {
  const processes = seen.map((one) => ({
    ...judgeProcess(one),
    before: one.before,
    samples: one.samples,
    after: one.after,
  }))
  const failed = Object.entries(counted.messages).map(([text, times]) => `${times} times: ${text}`)
  return {
    ...counted,
    processes,
    problems: [...processes.flatMap(({ problems }) => problems), ...notAtRest, ...failed],
  }
}

const mib = 1024 ** 2
const slope = ({ slope, error }: Judgement): string => `${shown(slope, 2)} ± ${shown(error, 2)}`

export function table({ processes }: Outcome): string {
  const rows = processes.map(({ name, heap, external, resources, left, before, samples, after, problems }) => {
    const over = (of: (sample: Seen['before']) => number, digits: number): string =>
      [before, ...samples.slice(-1), after].map((sample) => shown(of(sample), digits)).join(' / ')
    return [
      name,
      over(({ heapUsed }) => heapUsed / mib, 1),
      slope(heap),
      over(({ external: bytes }) => bytes / mib, 1),
      slope(external),
      over(({ rss }) => rss / mib, 0),
      over(countOf, 0),
      slope(resources),
      String(left),
      problems.length === 0 ? 'steady' : 'FAILED',
    ]
  })
  const head = [
    'before / under load / at rest',
    'heap MiB',
    'a minute',
    'external MiB',
    'a minute',
    'resident MiB',
    'handles, timers, requests',
    'a minute',
    'left',
    '',
  ]
  return draw([head, ...rows])
}

export function summary({ minutes, rate, stories, requests, webhooks, errors, problems }: Outcome): string {
  const count = (n: number): string => n.toLocaleString('en')
  return [
    `${shown(minutes, 1)} minutes at ${rate} stories a second: ${count(stories)} stories, ${count(requests)} requests, ${count(webhooks)} webhooks, ${count(errors)} errors`,
    ...problems.map((problem) => `!! ${problem}`),
    problems.length === 0 ? 'PASSED: nothing grows, nothing was left behind, nothing failed' : 'FAILED',
  ].join('\n')
}
