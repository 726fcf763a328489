interface PaceOptions {
  /** So many turns pass at once after a pause. */
  readonly atOnce: number
  /** Nobody waits for longer. */
  readonly longestMs: number
}

/** Spreads what comes at once over time, by key: a minute's worth in a single second would be felt by everybody else. */
export class Pace {
  readonly #options: PaceOptions
  /** When the next turn of each key is. */
  readonly #next = new Map<string, number>()
  #cleanAt = 0

  constructor(options: PaceOptions) {
    this.#options = options
  }

  /** How long to wait for one's turn, in milliseconds; undefined: too long, and the turn was not taken. Turns are `everyMs` apart. */
  turnOf(key: string, everyMs: number, turns = 1): number | undefined {
    const { atOnce, longestMs } = this.#options
    // There are no turns at all.
    if (everyMs === Infinity) return undefined
    const now = performance.now()
    if (now > this.#cleanAt) this.#clean(now)
    const next = Math.max(now, this.#next.get(key) ?? 0)
    const waitMs = Math.max(0, next - now - atOnce * everyMs)
    if (waitMs > longestMs) return undefined
    this.#next.set(key, next + turns * everyMs)
    return waitMs
  }

  #clean(now: number): void {
    for (const [key, next] of this.#next) if (next <= now) this.#next.delete(key)
    this.#cleanAt = now + 60_000
  }
}
