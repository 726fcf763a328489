import { limitErrors } from '#contracts/limits'
import { AtOnce } from '#kit'

/** Concurrent use of something by each tenant. */
export class Shares {
  readonly #most: number
  readonly #taken = new AtOnce()

  constructor(most: number) {
    this.#most = most
  }

  /** Takes one. The returned function gives it back and may be called repeatedly. Throws 429 `limit_reached`. */
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
