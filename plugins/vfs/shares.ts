import { limitErrors } from '#contracts/limits'
import { AtOnce } from '#kit'

/** How much of something tenants have under way at once. */
export class Shares {
  readonly #most: number
  readonly #taken = new AtOnce()

  constructor(most: number) {
    this.#most = most
  }

  /** Takes one, until it is given back, which may be told more than once. Throws 429 `limit_reached`. */
  take(tenantId: string): () => void {
    if (this.#taken.of(tenantId) >= this.#most) {
      throw limitErrors.limitReached({
        message: `This tenant has ${this.#most} requests to the VirtualFS under way; come again when one is over.`,
        detail: { limit: 'vfs requests at once', max: this.#most },
        headers: { 'retry-after': '1' },
      })
    }
    return this.#taken.begin(tenantId)
  }
}
