import { limitErrors } from '#contracts/limits'
import { objectErrors } from '#contracts/object-store'

/**
 * The bytes of uploads under way, which wait on the disk that all tenants share. A tenant has at most as many as are left free: alone half of all, two
 * of them a third each, and so on. So whoever has none finds room, however many others upload.
 */
export class Arriving {
  readonly #mostOfTenant: number
  readonly #most: number
  readonly #byTenant = new Map<string, number>()
  #all = 0

  constructor(mostOfTenant: number, most: number) {
    this.#mostOfTenant = mostOfTenant
    this.#most = most
  }

  /**
   * Admits an upload and counts what it announces until its end, so that no later one takes its room. Throws if the tenant has no room for that now:
   * 429 at its own bound, 503 at that of all.
   */
  begin(tenantId: string, announced: number): Upload {
    this.#check(tenantId, announced)
    let [counted, came] = [0, 0]
    const count = (bytes: number): void => {
      counted += bytes
      this.#count(tenantId, bytes)
    }
    count(announced)
    return {
      came: (bytes) => {
        came += bytes
        if (came <= counted) return
        count(came - counted)
        this.#check(tenantId, 0)
      },
      over: () => count(-counted),
    }
  }

  #check(tenantId: string, more: number): void {
    const own = (this.#byTenant.get(tenantId) ?? 0) + more
    if (own > this.#mostOfTenant) throw tooMuchAtOnce(this.#mostOfTenant)
    if (own > this.#most - this.#all - more) throw tooMuchOfAll()
  }

  #count(tenantId: string, bytes: number): void {
    const own = (this.#byTenant.get(tenantId) ?? 0) + bytes
    if (own > 0) this.#byTenant.set(tenantId, own)
    else this.#byTenant.delete(tenantId)
    this.#all += bytes
  }
}

/** One upload under way. */
interface Upload {
  /** Counts bytes that have come. Throws as `begin` if they are more than was announced and have no room. */
  came(bytes: number): void
  /** Call it once, however the upload ended. */
  over(): void
}

const later = { 'retry-after': '1' }
const tooMuchAtOnce = (max: number) =>
  limitErrors.limitReached({
    message: `The concurrent uploads of this tenant have more than ${max} bytes; try again when one has ended.`,
    detail: { limit: 'vfs bytes at once', max },
    headers: later,
  })
const tooMuchOfAll = () =>
  objectErrors.storageUnavailable({
    message: 'So many uploads are under way that there is no room for this one; try again when others have ended.',
    headers: later,
  })
