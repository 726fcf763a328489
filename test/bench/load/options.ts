import { parseArgs } from 'node:util'

export interface Options {
  readonly json: boolean
  readonly cells: readonly CellName[]
  readonly rounds: number
  /** Runs per second that arrive, and for how long in each round. */
  readonly rate: number
  readonly runsMs: number
  /** How many streams are open, one measurement each. */
  readonly streams: readonly number[]
  /** Streams opened per second: slow enough that opening them is no test of its own. */
  readonly openPerSecond: number
  /** How long lateness is measured once all are open. */
  readonly openMs: number
  readonly chatsMs: number
}

export const cellNames = ['runs', 'streams', 'chats'] as const
export type CellName = (typeof cellNames)[number]

export const usage = `npm run bench:load -- [--quick] [--cells ${cellNames.join(',')}] [--rounds N] [--rate N] [--seconds N] [--streams N,...] [--json]
  --quick    about two minutes: one short round, 500 streams
  --rate     runs per second that arrive; 50 unless given
  --seconds  how long they do, over all rounds; 60 unless given
  --streams  how many streams are open; 1000,5000 unless given
  --json     print the data only`

export function readOptions(args: readonly string[]): Options {
  const { values } = parseArgs({
    args: [...args],
    options: {
      quick: { type: 'boolean', default: false },
      json: { type: 'boolean', default: false },
      cells: { type: 'string' },
      rounds: { type: 'string' },
      rate: { type: 'string' },
      seconds: { type: 'string' },
      streams: { type: 'string' },
    },
  })
  const number = (text: string | undefined, otherwise: number): number => {
    if (text === undefined) return otherwise
    if (!/^[1-9]\d*$/.test(text)) throw new TypeError(`not a number above 0: ${text}`)
    return Number(text)
  }
  const { quick } = values
  const wanted = values.cells?.split(',') ?? cellNames
  const unknown = wanted.find((name) => !cellNames.some((known) => known === name))
  if (unknown !== undefined) throw new TypeError(`no cell ${unknown}`)
  const rounds = number(values.rounds, quick ? 1 : 3)
  return {
    json: values.json,
    cells: cellNames.filter((name) => wanted.includes(name)),
    rounds,
    rate: number(values.rate, 50),
    runsMs: (number(values.seconds, quick ? 10 : 60) * 1000) / rounds,
    streams: values.streams?.split(',').map((text) => number(text, 0)) ?? (quick ? [500] : [1_000, 5_000]),
    openPerSecond: 60,
    openMs: quick ? 6_000 : 20_000,
    chatsMs: quick ? 2_000 : 5_000,
  }
}
