import { existsSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { cells, type Cell } from './measure.ts'
import type { TargetName } from './targets.ts'

export interface Options {
  readonly quick: boolean
  /** Another checkout of this project, whose service is measured beside this one's. */
  readonly against?: string
  readonly targets: readonly TargetName[]
  readonly cells: readonly Cell[]
  readonly rounds: number
  /** How long each target is warmed up before anything is measured, and before each measurement. */
  readonly warmUpMs: number
  readonly warmMs: number
  readonly ms: number
  readonly longTimes: number
  readonly slowStreams: number
  /** Deltas, and so seconds, of one slow stream. */
  readonly slowDeltas: number
  /** Directory for CPU profiles of every role; profiling slows everything, so figures are marked. */
  readonly profile?: string
}

const own: readonly TargetName[] = ['model', 'proxy', 'single', 'four']
const both: readonly TargetName[] = ['model', 'proxy', 'single', 'single there', 'four', 'four there']

export const usage = `npm run bench -- [--quick] [--targets model,proxy,single,four] [--cells NAME,...] [--rounds N]
                 [--ms N] [--warm SECONDS] [--slow N] [--profile DIR] [--against DIR]
  --quick    two minutes: 2 short rounds, 200 slow streams
  --against  a checkout of another commit, with its node_modules: its service is measured in the same rounds
  --cells    of: ${cells.map((cell) => cell.name).join(', ')}; also long, slow
  --warm     how long each target works before anything is measured; 15 unless given: cold code costs three times as much
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
      warm: { type: 'string' },
      against: { type: 'string' },
      slow: { type: 'string' },
      profile: { type: 'string' },
    },
  })
  const { quick } = values
  const against = values.against === undefined ? undefined : resolve(values.against)
  for (const part of against === undefined ? [] : ['package.json', 'config', 'node_modules']) {
    if (!existsSync(join(against ?? '', part)))
      throw new TypeError(`no checkout that could be started, ${part} is missing: ${against}`)
  }
  const number = (text: string | undefined, otherwise: number): number => {
    if (text === undefined) return otherwise
    if (!/^\d+$/.test(text)) throw new TypeError(`not a number: ${text}`)
    return Number(text)
  }
  const wanted = values.cells?.split(',')
  const has = (name: string): boolean => wanted === undefined || wanted.includes(name)
  const asked = values.targets?.split(',')
  // A form is measured in both checkouts or in none.
  const targets = (against === undefined ? own : both).filter(
    (name) => asked === undefined || asked.includes(name.replace(' there', '')),
  )
  // `npm run bench:load` measures what thousands of streams hold; two services under them at once would measure the machine.
  const slow = wanted === undefined ? against === undefined : wanted.includes('slow')
  return {
    quick,
    ...(against === undefined ? {} : { against }),
    targets,
    cells: cells.filter((cell) => has(cell.name)),
    rounds: number(values.rounds, quick ? 2 : 5),
    warmUpMs: number(values.warm, quick ? 3 : 15) * 1_000,
    warmMs: quick ? 250 : 600,
    ms: number(values.ms, quick ? 500 : 1_500),
    longTimes: has('long') ? (quick ? 2 : 6) : 0,
    slowStreams: slow ? number(values.slow, quick ? 200 : 1_000) : 0,
    slowDeltas: quick ? 6 : 12,
    ...(values.profile === undefined ? {} : { profile: values.profile }),
  }
}
