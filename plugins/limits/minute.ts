/** How often each thing happened in the stretch of time that is under way. */
export class Counts {
  readonly #ms: number
  readonly #counts = new Map<string, number>()
  #stretch = 0

  constructor(ms: number) {
    this.#ms = ms
  }
  of(key: string): number {
    const stretch = Math.floor(Date.now() / this.#ms)
    if (stretch !== this.#stretch) {
      this.#stretch = stretch
      this.#counts.clear()
    }
    return this.#counts.get(key) ?? 0
  }
  /** Counts one more, and returns how many there were. */
  count(key: string): number {
    const count = this.of(key) + 1
    this.#counts.set(key, count)
    return count
  }
}

interface UsedUp {
  readonly max: number
  readonly until: number
}

const cleanEveryMs = 60_000

/**
 * Limits of a minute that are used up, and until when: whoever counts for all processes has said so, and need not be asked again
 * meanwhile. A limit that an operator changes is another one.
 */
export class Spent {
  readonly #now: () => number
  readonly #usedUp = new Map<string, UsedUp>()
  #cleanAt = 0

  /** `now`: milliseconds on a clock that never goes back. */
  constructor(now = () => performance.now()) {
    this.#now = now
  }
  /** How many milliseconds it will still be so; 0 when it is not, or not known. */
  leftOf(key: string, max: number): number {
    const known = this.#usedUp.get(key)
    return known?.max === max ? Math.max(0, known.until - this.#now()) : 0
  }
  found(key: string, max: number, ms: number): void {
    const now = this.#now()
    if (now > this.#cleanAt) {
      for (const [old, { until }] of this.#usedUp) if (until <= now) this.#usedUp.delete(old)
      this.#cleanAt = now + cleanEveryMs
    }
    this.#usedUp.set(key, { max, until: now + ms })
  }
}
