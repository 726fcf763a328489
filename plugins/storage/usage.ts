import { defaultLimits, overLimit, type TenantLimits } from '#contracts/limits'
import type { ObjectBackend, StoreUse } from '#contracts/object-store'

/** Of tenants whose count is in memory; beyond it those that rest longest are counted again when they write. */
const mostTenants = 10_000

interface Counted {
  bytes: number
  objects: number
  /** Of writes under way. */
  held: { bytes: number; objects: number }
  at: number
  recounting: boolean
}

interface Options {
  readonly backend: ObjectBackend
  readonly limits: Pick<TenantLimits, 'of'> | undefined
  /** Milliseconds after which a count is taken anew: other processes write, too. */
  readonly recountMs: number
}

/** Room for one object that is being written. */
export interface Room {
  /** So many bytes more. Throws 409 `limit_exceeded`. */
  grow(bytes: number): void
  /** Over: it was stored, with the bytes of what it replaced, or it was not. */
  close(stored?: { readonly bytes: number; readonly replaced: number | undefined }): void
}

/**
 * What each tenant has in the store: counted there once, then kept in memory with what this process writes, and counted anew behind
 * the back of whoever writes next. So a read asks nobody, and a write only the first time.
 */
export class Usage {
  readonly #options: Options
  readonly #tenants = new Map<string, Promise<Counted>>()

  constructor(options: Options) {
    this.#options = options
  }

  async of(tenantId: string): Promise<StoreUse> {
    const { bytes, objects } = await this.#counted(tenantId)
    return { bytes, objects }
  }

  /** Room for an object of so many bytes, or of none yet, where `replaced` of them are in its place already. */
  async room(tenantId: string, bytes: number, replaced: () => Promise<number | undefined>): Promise<Room> {
    const counted = await this.#counted(tenantId)
    const { held } = counted
    let [mine, added] = [bytes, 1]
    let over = this.#over(tenantId, counted, mine, added)
    if (over) {
      const before = await replaced()
      if (before !== undefined) [mine, added] = [bytes - before, 0]
      over = this.#over(tenantId, counted, mine, added)
      if (over) throw over
    }
    held.bytes += mine
    held.objects += added
    const grow = (more: number): void => {
      const now = this.#over(tenantId, counted, more, 0)
      if (now) throw now
      mine += more
      held.bytes += more
    }
    return {
      grow,
      close: (stored) => {
        held.bytes -= mine
        held.objects -= added
        if (!stored) return
        counted.bytes += stored.bytes - (stored.replaced ?? 0)
        counted.objects += stored.replaced === undefined ? 1 : 0
      },
    }
  }

  /** Objects are gone. */
  async removed(tenantId: string, { bytes, objects }: StoreUse): Promise<void> {
    const counted = await this.#tenants.get(tenantId)
    if (!counted) return
    counted.bytes = Math.max(0, counted.bytes - bytes)
    counted.objects = Math.max(0, counted.objects - objects)
  }

  #over(tenantId: string, { bytes, objects, held }: Counted, moreBytes: number, moreObjects: number) {
    const { objectBytes, objects: most } = this.#options.limits?.of(tenantId) ?? defaultLimits
    if (moreBytes > 0 && bytes + held.bytes + moreBytes > objectBytes) return overLimit('objectBytes', objectBytes)
    if (moreObjects > 0 && objects + held.objects + moreObjects > most) return overLimit('objects', most)
    return undefined
  }

  async #counted(tenantId: string): Promise<Counted> {
    const kept = this.#tenants.get(tenantId)
    this.#tenants.delete(tenantId)
    const counting = kept ?? this.#count(tenantId)
    this.#tenants.set(tenantId, counting)
    if (this.#tenants.size > mostTenants) this.#tenants.delete(this.#tenants.keys().next().value!)
    try {
      const counted = await counting
      if (Date.now() - counted.at > this.#options.recountMs) void this.#recount(tenantId, counted)
      return counted
    } catch (error) {
      if (this.#tenants.get(tenantId) === counting) this.#tenants.delete(tenantId)
      throw error
    }
  }
  async #count(tenantId: string): Promise<Counted> {
    const use = await this.#options.backend.use(tenantId)
    return { ...use, held: { bytes: 0, objects: 0 }, at: Date.now(), recounting: false }
  }
  /** What this process writes meanwhile is added to what was found; the next count knows better. */
  async #recount(tenantId: string, counted: Counted): Promise<void> {
    if (counted.recounting) return
    counted.recounting = true
    const before = { bytes: counted.bytes, objects: counted.objects }
    try {
      const found = await this.#options.backend.use(tenantId)
      counted.bytes = Math.max(0, found.bytes + counted.bytes - before.bytes)
      counted.objects = Math.max(0, found.objects + counted.objects - before.objects)
    } catch {
      // The store is away: the old count holds until the next time.
    } finally {
      counted.at = Date.now()
      counted.recounting = false
    }
  }
}
