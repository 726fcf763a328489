/** Work by key that is under way: whoever asks for the same meanwhile gets the same promise. */
export class SingleFlight<T> {
  readonly #underWay = new Map<string, Promise<T>>()

  run(key: string, work: () => Promise<T>): Promise<T> {
    const joined = this.#underWay.get(key)
    if (joined) return joined
    const begun = work().finally(() => this.#underWay.delete(key))
    this.#underWay.set(key, begun)
    return begun
  }
}

/** Work of this process that is done again and again: never twice at once, and done again the next time where it fails. */
export class Sweep {
  readonly #everyMs: number
  readonly #work: () => Promise<unknown>
  readonly #onFailure: (err: unknown) => void
  #timer: NodeJS.Timeout | undefined
  #underWay: Promise<void> | undefined

  constructor(everyMs: number, work: () => Promise<unknown>, onFailure: (err: unknown) => void) {
    this.#everyMs = everyMs
    this.#work = work
    this.#onFailure = onFailure
  }

  /** The first is due in `everyMs`. */
  start(): void {
    this.#timer = setInterval(() => void this.now(), this.#everyMs).unref()
  }
  /** Does the work at once, or joins that under way. Never rejects. */
  now(): Promise<void> {
    return (this.#underWay ??= this.#work()
      .then(() => {}, this.#onFailure)
      .finally(() => (this.#underWay = undefined)))
  }
  /** Ends it, behind the work under way. */
  async stop(): Promise<void> {
    clearInterval(this.#timer)
    await this.#underWay
  }
}
