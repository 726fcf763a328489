import { limitErrors } from '#contracts/limits'
import { AtOnce } from '#kit'

/** Limits the concurrent requests of each tenant. */
export class Shares {
  readonly #most: number
  readonly #taken = new AtOnce()

  constructor(most: number) {
    this.#most = most
  }

  /** Takes one share of the tenant. The returned function releases it, and calling that function again is harmless. Throws 429 `limit_reached`. */
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
