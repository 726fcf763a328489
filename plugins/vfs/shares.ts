import { limitErrors } from '#contracts/limits'

/** How much of something tenants have under way at once. */
export class Shares {
  readonly #most: number
  readonly #taken = new Map<string, number>()

  constructor(most: number) {
    this.#most = most
  }

  /** Takes one, until it is given back, which may be told more than once. Throws 429 `limit_reached`. */
  take(tenantId: string): () => void {
    const taken = this.#taken.get(tenantId) ?? 0
    if (taken >= this.#most) {
      throw limitErrors.limitReached({
        message: `This tenant has ${this.#most} requests to the VirtualFS under way; come again when one is over.`,
        detail: { limit: 'vfs requests at once', max: this.#most },
        headers: { 'retry-after': '1' },
      })
    }
    this.#taken.set(tenantId, taken + 1)
    let over = false
    return () => {
      if (over) return
      over = true
      const left = this.#taken.get(tenantId)! - 1
      if (left > 0) this.#taken.set(tenantId, left)
      else this.#taken.delete(tenantId)
    }
  }
}
