/** Random numbers that a seed repeats. */
export interface Random {
  /** From 0 up to, not including, 1. */
  next(): number
  between(least: number, most: number): number
  pick<T>(from: readonly T[]): T
  chance(probability: number): boolean
}

/** Mulberry32: small, and good enough to choose faults with. */
export function createRandom(seed: number): Random {
  let state = seed >>> 0
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0
    let t = state
    t = Math.imul(t ^ (t >>> 15), t | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296
  }
  return {
    next,
    between: (least, most) => least + next() * (most - least),
    pick: (from) => from[Math.floor(next() * from.length)]!,
    chance: (probability) => next() < probability,
  }
}
