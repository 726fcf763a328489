import { defaultLimits, type Limits, overLimit, type TenantLimits } from '#contracts/limits'
import type { StoreUse } from '#contracts/object-store'

export type StoreLimits = Pick<Limits, 'objects' | 'objectBytes'>

/** Counts the usage of each tenant. */
export interface Counter {
  of(tenantId: string): Promise<StoreUse>
  /** Adds this much unless the sum exceeds `most`. Resolves to the name of the exceeded limit; undefined if it was added. */
  take(tenantId: string, more: StoreUse, most: StoreLimits): Promise<keyof StoreLimits | undefined>
  /** Adds or subtracts this much, whatever the limits are. */
  add(tenantId: string, change: StoreUse): Promise<void>
  /** Counts the store again, and replaces the count. */
  recount(tenantId: string): Promise<void>
}

export const overBy = (has: StoreUse, more: StoreUse, most: StoreLimits): keyof StoreLimits | undefined =>
  more.bytes > 0 && has.bytes + more.bytes > most.objectBytes
    ? 'objectBytes'
    : more.objects > 0 && has.objects + more.objects > most.objects
      ? 'objects'
      : undefined

/** An upload of unknown length reserves room in steps of this size. */
const stepBytes = 1024 * 1024

/** The reservation of one object that is being written. */
export interface Room {
  /** Reports how many bytes have arrived of an object of unknown length. Rejects with 409 `limit_exceeded`. */
  grow(bytes: number): Promise<void>
  /** Ends the reservation. `stored` has the bytes of the stored object and of the object that it replaced; absent if nothing was stored. */
  close(stored?: { readonly bytes: number; readonly replaced: number | undefined }): Promise<void>
}

interface Order {
  /** Undefined for an upload of unknown length. */
  readonly bytes: number | undefined
  /** The tenant's limits, if this process does not know them itself. */
  readonly limits: StoreLimits | undefined
  /** Resolves to the bytes of the existing object with this key; undefined if there is none. */
  replaced(): Promise<number | undefined>
}

/** Enforces the limits of tenants. Room is reserved before bytes are written, so that concurrent uploads cannot exceed a limit together. */
export class Usage {
  readonly #counter: Counter
  readonly #limits: Pick<TenantLimits, 'of'> | undefined
  readonly #areOfTenants: boolean

  /** `areOfTenants`: the limits are those that operators set for each tenant, so they are newer than any that come with an upload. */
  constructor(counter: Counter, limits: Pick<TenantLimits, 'of'> | undefined, areOfTenants: boolean) {
    this.#counter = counter
    this.#limits = limits
    this.#areOfTenants = areOfTenants
  }

  async room(tenantId: string, { bytes = 0, limits, replaced }: Order): Promise<Room> {
    const counter = this.#counter
    const own = this.#limits?.of(tenantId)
    const most = (this.#areOfTenants ? (own ?? limits) : (limits ?? own)) ?? defaultLimits
    const taken = { bytes, objects: 1 }
    // Most uploads fit into the limit as new objects. Only if one does not, the object that it replaces is looked up and counted.
    let before: number | undefined
    let over = await counter.take(tenantId, taken, most)
    if (over && (before = await replaced()) !== undefined) {
      Object.assign(taken, { bytes: bytes - before, objects: 0 })
      over = await counter.take(tenantId, taken, most)
    }
    if (over) throw overLimit(over, most[over])
    let arrived = 0
    return {
      async grow(more) {
        arrived += more
        const lacking = (): number => arrived - (before ?? 0) - taken.bytes
        const take = async (step: number) => {
          const full = await counter.take(tenantId, { bytes: step, objects: 0 }, most)
          if (!full) taken.bytes += step
          return full
        }
        if (lacking() <= 0) return
        let full = await take(Math.max(lacking(), stepBytes))
        if (full) full = await take(lacking())
        if (full && before === undefined && (before = await replaced()) !== undefined)
          full = lacking() > 0 ? await take(lacking()) : undefined
        if (full) throw overLimit(full, most[full])
      },
      async close(stored) {
        const has = stored
          ? { bytes: stored.bytes - (stored.replaced ?? 0), objects: stored.replaced === undefined ? 1 : 0 }
          : { bytes: 0, objects: 0 }
        const change = { bytes: has.bytes - taken.bytes, objects: has.objects - taken.objects }
        if (change.bytes !== 0 || change.objects !== 0) await counter.add(tenantId, change)
      },
    }
  }

  /** Releases the usage of deleted objects. */
  async removed(tenantId: string, { bytes, objects }: StoreUse): Promise<void> {
    if (objects > 0) await this.#counter.add(tenantId, { bytes: -bytes, objects: -objects })
  }
}
