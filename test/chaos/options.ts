import { parseArgs } from 'node:util'

export interface Options {
  readonly minutes: number
  readonly seed: number
  readonly json: boolean
  /** Chats and runs begun per second. */
  readonly rate: number
}

export const usage = 'npm run chaos -- [--minutes 10] [--seed N] [--rate 5] [--json]'

export function readOptions(args: readonly string[]): Options {
  const { values } = parseArgs({
    args: [...args],
    options: {
      minutes: { type: 'string', default: '10' },
      seed: { type: 'string', default: String(Math.floor(Math.random() * 1e9)) },
      rate: { type: 'string', default: '5' },
      json: { type: 'boolean', default: false },
    },
  })
  const positive = (name: 'minutes' | 'rate'): number => {
    const value = Number(values[name])
    if (!(value > 0)) throw new Error(`--${name} expects a number above 0`)
    return value
  }
  const seed = Number(values.seed)
  if (!Number.isSafeInteger(seed) || seed < 0) throw new Error('--seed expects a whole number')
  return { minutes: positive('minutes'), seed, rate: positive('rate'), json: values.json }
}
