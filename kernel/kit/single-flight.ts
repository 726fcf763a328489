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
