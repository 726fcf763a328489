import { parseArgs } from 'node:util'
import { cells, type Cell } from './measure.ts'
import type { TargetName } from './targets.ts'

export interface Options {
  readonly quick: boolean
  readonly targets: readonly TargetName[]
  readonly cells: readonly Cell[]
  readonly rounds: number
  readonly warmMs: number
  readonly ms: number
  readonly longTimes: number
  readonly slowStreams: number
  /** Deltas, and so seconds, of one slow stream. */
  readonly slowDeltas: number
  /** Directory for CPU profiles of every role; profiling slows everything, so figures are marked. */
  readonly profile?: string
}

const all: readonly TargetName[] = ['model', 'proxy', 'single', 'four']

export const usage = `npm run bench -- [--quick] [--targets model,proxy,single,four] [--cells NAME,...] [--rounds N]
                 [--ms N] [--slow N] [--profile DIR]
  --quick    about a minute: 2 short rounds, 200 slow streams
  --cells    of: ${cells.map((cell) => cell.name).join(', ')}; also long, slow
  --profile  write a CPU profile of every role to DIR, and no results worth keeping`

export function readOptions(args: string[]): Options {
  const { values } = parseArgs({
    args,
    options: {
      quick: { type: 'boolean', default: false },
      targets: { type: 'string' },
      cells: { type: 'string' },
      rounds: { type: 'string' },
      ms: { type: 'string' },
      slow: { type: 'string' },
      profile: { type: 'string' },
    },
  })
  const { quick } = values
  const number = (text: string | undefined, otherwise: number): number => {
    if (text === undefined) return otherwise
    if (!/^\d+$/.test(text)) throw new TypeError(`not a number: ${text}`)
    return Number(text)
  }
  const wanted = values.cells?.split(',')
  const has = (name: string): boolean => wanted === undefined || wanted.includes(name)
  const targets = values.targets === undefined ? all : all.filter((name) => values.targets?.split(',').includes(name))
  return {
    quick,
    targets,
    cells: cells.filter((cell) => has(cell.name)),
    rounds: number(values.rounds, quick ? 2 : 5),
    warmMs: quick ? 250 : 600,
    ms: number(values.ms, quick ? 500 : 1_500),
    longTimes: has('long') ? (quick ? 2 : 3) : 0,
    slowStreams: has('slow') ? number(values.slow, quick ? 200 : 1_000) : 0,
    slowDeltas: quick ? 6 : 12,
    ...(values.profile === undefined ? {} : { profile: values.profile }),
  }
}
