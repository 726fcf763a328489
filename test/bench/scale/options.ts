import { parseArgs } from 'node:util'

export interface Options {
  /** How many runs the tenant has, each size seeded anew. The first is what the others are held to. */
  readonly runs: readonly number[]
  /** Requests of each kind whose median counts. */
  readonly samples: number
}

export const usage = `npm run bench:scale -- [--runs 10000,1000000,10000000] [--samples 15]
  --runs     how many runs a tenant has; needs 2 KB of disk for each
  --samples  requests of each kind`

export function readOptions(args: string[]): Options {
  const { values } = parseArgs({
    args,
    options: {
      runs: { type: 'string', default: '10000,1000000' },
      samples: { type: 'string', default: '15' },
    },
  })
  const runs = values.runs.split(',').map(Number)
  if (!runs.every((count) => Number.isSafeInteger(count) && count >= 10_000))
    throw new Error('--runs takes whole numbers of at least 10,000, with commas')
  const samples = Number(values.samples)
  if (!Number.isSafeInteger(samples) || samples < 1) throw new Error('--samples takes a whole number')
  return { runs, samples }
}
