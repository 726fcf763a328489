/** How many are remembered in a line: more than may wait by default. Sweeps find the others again. */
const mostInLine = 4_000

interface Place {
  readonly again: () => void
  /** Bytes of attachments for which it needs room. */
  readonly needs: number
  /** After how many sweeps it was called. Undefined: it was not. */
  called: number | undefined
}

/**
 * What waits for something of its tenant, first come first. Whoever is called keeps its place until it leaves, because another may be faster: then it
 * joins anew, and is the first that is called again.
 */
export class Line {
  readonly #places = new Map<string, Place>()
  #sweeps = 0

  get size(): number {
    return this.#places.size
  }
  /** `again` tries once more. Whoever is in line already keeps its place. */
  join(id: string, again: () => void, needs = 0): void {
    if (this.#places.size >= mostInLine && !this.#places.has(id)) return
    this.#places.set(id, { again, needs, called: undefined })
  }
  leave(id: string): void {
    this.#places.delete(id)
  }
  /** Leaves although it was called, because it can do nothing with what there is: the next one is called. */
  pass(id: string): void {
    const wasCalled = this.#places.get(id)?.called !== undefined
    this.#places.delete(id)
    if (wasCalled) this.callFirst()
  }
  /** Undefined: it is not in line. */
  needsOf(id: string): number | undefined {
    return this.#places.get(id)?.needs
  }
  /** Calls the first ones for which there is enough. `isEnough` is asked in their order; what there is for those called before is theirs. */
  callFirst(count = 1, isEnough: (needs: number) => boolean = () => true): void {
    const called: Place[] = []
    for (const place of this.#places.values()) {
      if (called.length >= count) break
      if (!isEnough(place.needs) || place.called !== undefined) continue
      place.called = this.#sweeps
      called.push(place)
    }
    for (const { again } of called) again()
  }
  /** Forgets whoever was called before the last sweep and has not come since, as when no runner takes its session. */
  sweep(): void {
    for (const [id, { called }] of this.#places)
      if (called !== undefined && called < this.#sweeps) this.#places.delete(id)
    this.#sweeps++
  }
}
