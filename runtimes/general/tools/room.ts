/** Bytes of lists and answers of tool servers that the runs of one tenant hold in this process. Values take several times as much as their bytes. */
const mostBytes = 128 * 1024 * 1024

/** What one connection of a run holds. */
export interface Held {
  readonly bytes: number
  /** False: the tenant holds too much already, so it may not have these bytes. */
  take(bytes: number): boolean
  /** Gives back all but so many bytes. */
  keep(bytes: number): void
  /** Gives back everything, and counts nothing more. */
  close(): void
}

/**
 * The room for what tool servers answer, in equal parts for each tenant: the servers are theirs, and 64 calls of one step each bring megabytes that
 * stay until all of them are over.
 */
export class AnswerRoom {
  readonly #held = new Map<string, number>()
  readonly #most: number

  constructor(most: number = mostBytes) {
    this.#most = most
  }
  of(tenantId: string): Held {
    let own = 0
    let closed = false
    const change = (bytes: number): void => {
      own += bytes
      const all = (this.#held.get(tenantId) ?? 0) + bytes
      if (all > 0) this.#held.set(tenantId, all)
      else this.#held.delete(tenantId)
    }
    return {
      get bytes() {
        return own
      },
      take: (bytes) => {
        const fits = (this.#held.get(tenantId) ?? 0) + bytes <= this.#most
        if (fits && !closed) change(bytes)
        return fits
      },
      keep: (bytes) => change(Math.min(bytes, own) - own),
      close() {
        closed = true
        change(-own)
      },
    }
  }
}
