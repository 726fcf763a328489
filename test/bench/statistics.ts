/** Milliseconds that a piece of work took. */
export async function timed(work: () => Promise<unknown>): Promise<number> {
  const began = performance.now()
  await work()
  return performance.now() - began
}

export function quantile(values: readonly number[], q: number): number {
  if (values.length === 0) return Number.NaN
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] ?? Number.NaN
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const upper = sorted[sorted.length >> 1] ?? Number.NaN
  const lower = sorted[(sorted.length - 1) >> 1] ?? Number.NaN
  return (upper + lower) / 2
}

/** The median of each numeric field; fields that a sample lacks are left out of it. */
export function medianOf<T extends object>(samples: readonly T[]): T {
  const keys = [...new Set(samples.flatMap((sample) => Object.keys(sample)))] as (keyof T)[]
  return Object.fromEntries(
    keys.map((key) => {
      const values = samples.map((sample) => sample[key]).filter((value) => typeof value === 'number')
      return [key, key === 'errors' ? values.reduce((sum, value) => sum + value, 0) : median(values)]
    }),
  ) as T
}
