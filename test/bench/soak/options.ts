import { parseArgs } from 'node:util'

export interface Options {
  readonly minutes: number
  /** Stories begun per second. */
  readonly rate: number
  readonly seed: number
  readonly json: boolean
  /** Where heap snapshots go: one of each process after a third, one at the end. */
  readonly snapshots?: string
}

export const usage = `npm run soak -- [--minutes 30] [--rate 8] [--seed N] [--snapshots DIR] [--json]
  --rate       chats, runs and other stories begun per second
  --snapshots  write heap snapshots of every process to DIR, after a third of the time and at the end
  --json       print the data only`

export function readOptions(args: readonly string[]): Options {
  const { values } = parseArgs({
    args: [...args],
    options: {
      minutes: { type: 'string', default: '30' },
      rate: { type: 'string', default: '8' },
      seed: { type: 'string', default: '1' },
      snapshots: { type: 'string' },
      json: { type: 'boolean', default: false },
    },
  })
  const positive = (name: 'minutes' | 'rate' | 'seed'): number => {
    const value = Number(values[name])
    if (!(value > 0)) throw new TypeError(`--${name} expects a number above 0`)
    return value
  }
  return {
    minutes: positive('minutes'),
    rate: positive('rate'),
    seed: positive('seed'),
    json: values.json,
    ...(values.snapshots === undefined ? {} : { snapshots: values.snapshots }),
  }
}
