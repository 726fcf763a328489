import { overLimit } from '#contracts/limits'

/** Sessions are counted again after 1/20 of those left. */
const countedPart = 20
const countAgainMs = 200
const countEveryMs = 600_000

/** The sessions of one tenant: those at the last count, and those that this process has begun since. */
export class SessionCount {
  readonly #count: (most: number) => Promise<number>
  #stored = 0
  #begun = 0
  /** Those of the begun ones that may not be stored yet. */
  #storing = 0
  #counting: Promise<void> | undefined
  #countedAt = 0

  /** `count` asks the store, and need not count further than to `most`. */
  constructor(count: (most: number) => Promise<number>) {
    this.#count = count
  }

  /** Refuses a new session when there are as many as may be. The caller then says when the session is stored, or will not be. */
  async admit(most: number): Promise<void> {
    const isFull = (): boolean => this.#stored + this.#begun >= most
    const age = Date.now() - this.#countedAt
    const unseen = Math.max(1, Math.floor((most - this.#stored) / countedPart))
    const mustCount = isFull() ? this.#begun > this.#storing || age > countAgainMs : this.#begun >= 2 * unseen
    if (mustCount) await this.#countAgain(most)
    // Count without delaying the start: a tenant may have very many sessions.
    else if (age > countEveryMs || this.#begun >= unseen) void this.#countAgain(most).catch(() => {})
    if (isFull()) throw overLimit('sessions', most)
    this.#begun++
    this.#storing++
  }
  stored(): void {
    this.#storing--
  }
  /** Whether the count is too old to be kept, and no session is on its way to the store. */
  get isOutdated(): boolean {
    return this.#storing === 0 && Date.now() > this.#countedAt + countEveryMs
  }

  #countAgain(most: number): Promise<void> {
    const count = async (): Promise<void> => {
      // The count includes these for certain. Those on their way to the store may be missing, so they stay counted here.
      const stored = this.#begun - this.#storing
      this.#countedAt = Date.now()
      this.#stored = await this.#count(most)
      this.#begun -= stored
    }
    return (this.#counting ??= count().finally(() => (this.#counting = undefined)))
  }
}
