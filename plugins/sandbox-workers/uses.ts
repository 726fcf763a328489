/** Who needs a sandbox at this moment, and since when nobody does. */
export interface Uses {
  readonly count: number
  readonly lastAt: number
  /** Until the returned function is called, and counted as used from then on. */
  use(): () => void
  /** The same, without counting as used. */
  hold(): () => void
}

export function createUses(now: () => number = Date.now): Uses {
  let count = 0
  let lastAt = now()
  const hold = (): (() => void) => {
    count++
    return () => {
      count--
    }
  }
  return {
    get count() {
      return count
    },
    get lastAt() {
      return lastAt
    },
    hold,
    use() {
      const leave = hold()
      lastAt = now()
      return () => {
        leave()
        lastAt = now()
      }
    },
  }
}
