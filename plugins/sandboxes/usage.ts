/** Counts who uses a sandbox at this moment, and knows since when nobody does. */
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

/** Measures how long a sandbox was awake outside of runs, which account for their own time. */
export interface AwakeMeter {
  woke(): void
  slept(): void
  /** Awake and not accounted for, in ms. */
  readonly ms: number
  /** Called when the time until now was accounted for: starts from 0 again. */
  settle(): void
}

export function createAwakeMeter(now: () => number = Date.now): AwakeMeter {
  let since: number | undefined
  let before = 0
  const total = (): number => before + (since === undefined ? 0 : now() - since)
  return {
    woke() {
      since ??= now()
    },
    slept() {
      before = total()
      since = undefined
    },
    get ms() {
      return total()
    },
    settle() {
      before = 0
      if (since !== undefined) since = now()
    },
  }
}
