import { defaultLimits, type Limits, overLimit, type TenantLimits } from '#contracts/limits'
import type { StoreUse } from '#contracts/object-store'

export type StoreLimits = Pick<Limits, 'objects' | 'objectBytes'>

/** What each tenant has in the store, in some place where it is kept. */
export interface Counter {
  of(tenantId: string): Promise<StoreUse>
  /** Adds so much, unless the tenant would have more than `most` then: resolves to the limit that is in the way. */
  take(tenantId: string, more: StoreUse, most: StoreLimits): Promise<keyof StoreLimits | undefined>
  /** Adds so much, or takes it off, whatever the limits are. */
  add(tenantId: string, change: StoreUse): Promise<void>
  /** Counts anew in the store itself. */
  recount(tenantId: string): Promise<void>
}

export const overBy = (has: StoreUse, more: StoreUse, most: StoreLimits): keyof StoreLimits | undefined =>
  more.bytes > 0 && has.bytes + more.bytes > most.objectBytes
    ? 'objectBytes'
    : more.objects > 0 && has.objects + more.objects > most.objects
      ? 'objects'
      : undefined

/** An upload of unknown length takes room in steps of this. */
const stepBytes = 1024 * 1024

/** Room for one object that is being written. */
export interface Room {
  /** So many bytes have arrived of an object whose length is not known. Rejects with 409 `limit_exceeded`. */
  grow(bytes: number): Promise<void>
  /** Over: it was stored, with the bytes of what it replaced, or it was not. */
  close(stored?: { readonly bytes: number; readonly replaced: number | undefined }): Promise<void>
}

interface Order {
  /** Undefined: nobody knows yet. */
  readonly bytes: number | undefined
  /** What the tenant may have, where this process does not know it by itself. */
  readonly limits: StoreLimits | undefined
  /** The bytes of what is in its place already. */
  replaced(): Promise<number | undefined>
}

/** The limits of tenants on the store: room is taken before bytes are written, so uploads at once do not pass a limit together. */
export class Usage {
  readonly #counter: Counter
  readonly #limits: Pick<TenantLimits, 'of'> | undefined

  constructor(counter: Counter, limits: Pick<TenantLimits, 'of'> | undefined) {
    this.#counter = counter
    this.#limits = limits
  }

  async room(tenantId: string, { bytes = 0, limits, replaced }: Order): Promise<Room> {
    const counter = this.#counter
    const most = limits ?? this.#limits?.of(tenantId) ?? defaultLimits
    const taken = { bytes, objects: 1 }
    // What is replaced counts once somebody needs to know: most uploads fit without.
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

  /** Objects are gone. */
  async removed(tenantId: string, { bytes, objects }: StoreUse): Promise<void> {
    if (objects > 0) await this.#counter.add(tenantId, { bytes: -bytes, objects: -objects })
  }
}
