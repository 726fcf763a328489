/** How many attempts may hold megabytes at once, of one tenant and of all. Each holds its scope, what it made from the scope, and its answer. */
const mostOfTenant = 3
const mostOfAll = 12

/**
 * Makes attempts that need much memory take turns, so that no tenant can fill the memory of a process. Waiting attempts leave their data in stores
 * and sockets.
 */
export class LargeTurns {
  readonly #held = new Map<string, number>()
  /** Waiting attempts by tenant. The first tenant in the map has the next turn. */
  readonly #waiting = new Map<string, (() => void)[]>()
  #all = 0

  /** A ticket for one attempt. An attempt that never calls `enter` takes no turn. */
  ticket(tenantId: string): LargeTicket {
    let entered: Promise<void> | undefined
    return {
      enter: () => (entered ??= this.#enter(tenantId)),
      leave: () => void entered?.then(() => this.#leave(tenantId)),
    }
  }

  #enter(tenantId: string): Promise<void> {
    return new Promise((resolve) => {
      const line = this.#waiting.get(tenantId) ?? []
      line.push(resolve)
      this.#waiting.set(tenantId, line)
      this.#next()
    })
  }
  #leave(tenantId: string): void {
    this.#all--
    const left = this.#held.get(tenantId)! - 1
    if (left > 0) this.#held.set(tenantId, left)
    else this.#held.delete(tenantId)
    this.#next()
  }
  #next(): void {
    for (const [tenantId, line] of this.#waiting) {
      if (this.#all >= mostOfAll) return
      const held = this.#held.get(tenantId) ?? 0
      if (held >= mostOfTenant) continue
      this.#all++
      this.#held.set(tenantId, held + 1)
      this.#waiting.delete(tenantId)
      line.shift()!()
      if (line.length > 0) this.#waiting.set(tenantId, line)
    }
  }
}

export interface LargeTicket {
  /** Resolves when it is the attempt's turn, and at once when the attempt has its turn already. */
  enter(): Promise<void>
  leave(): void
}
