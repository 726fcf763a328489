import type { VfsEntry } from '#contracts/vfs'
import { placeOf } from './tree.ts'

interface Placed {
  readonly entry: VfsEntry
  readonly place: Buffer
}

/** Picks the first entries of many, ordered by place. It holds at most twice as many entries as it picks. */
export class First {
  readonly #most: number
  #held: Placed[] = []
  /** The first place that is too late to be picked; undefined while there is none. */
  #end: Buffer | undefined

  constructor(most: number) {
    this.#most = most
  }

  offer(entry: VfsEntry): void {
    const place = Buffer.from(placeOf(entry))
    if (this.#end && place.compare(this.#end) >= 0) return
    this.#held.push({ entry, place })
    if (this.#held.length >= 2 * this.#most) this.#cut()
  }

  taken(): { entries: VfsEntry[]; more: boolean } {
    this.#cut()
    return { entries: this.#held.map(({ entry }) => entry), more: this.#end !== undefined }
  }

  #cut(): void {
    this.#held.sort((a, b) => a.place.compare(b.place))
    if (this.#held.length <= this.#most) return
    this.#end = this.#held[this.#most]!.place
    this.#held.length = this.#most
  }
}
