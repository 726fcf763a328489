import type { Database, Statement } from '#contracts/database'
import type { ObjectBackend, StoreUse } from '#contracts/object-store'
import { type Counter, overBy, type StoreLimits } from './usage.ts'

type Backend = Pick<ObjectBackend, 'use'>

/** Tenants whose count is kept in memory. With more tenants, the least recently used ones are counted again at their next write. */
const mostTenants = 10_000

interface Counted {
  bytes: number
  objects: number
  at: number
  recounting: boolean
}

/**
 * Usage for a role without a database. It counts the store once and adds the writes of this process. Other processes write, too, so it counts again
 * in the background after a while.
 */
export class MemoryCounter implements Counter {
  readonly #backend: Backend
  readonly #recountMs: number
  readonly #tenants = new Map<string, Promise<Counted>>()

  constructor(backend: Backend, recountMs: number) {
    this.#backend = backend
    this.#recountMs = recountMs
  }

  async of(tenantId: string): Promise<StoreUse> {
    const { bytes, objects } = await this.#counted(tenantId)
    return { bytes, objects }
  }
  async take(tenantId: string, more: StoreUse, most: StoreLimits): Promise<keyof StoreLimits | undefined> {
    const counted = await this.#counted(tenantId)
    const over = overBy(counted, more, most)
    if (over) return over
    counted.bytes += more.bytes
    counted.objects += more.objects
    return undefined
  }
  async add(tenantId: string, change: StoreUse): Promise<void> {
    const counted = await this.#tenants.get(tenantId)
    if (!counted) return
    counted.bytes = Math.max(0, counted.bytes + change.bytes)
    counted.objects = Math.max(0, counted.objects + change.objects)
  }
  /** Writes of this process during the count are added to the result. The next count corrects the result if that was wrong. */
  async recount(tenantId: string): Promise<void> {
    const counted = await this.#tenants.get(tenantId)
    if (!counted || counted.recounting) return
    counted.recounting = true
    const before = { bytes: counted.bytes, objects: counted.objects }
    try {
      const found = await this.#backend.use(tenantId)
      counted.bytes = Math.max(0, found.bytes + counted.bytes - before.bytes)
      counted.objects = Math.max(0, found.objects + counted.objects - before.objects)
    } catch {
      // The store cannot be reached, so the old count stays until the next attempt.
    } finally {
      counted.at = Date.now()
      counted.recounting = false
    }
  }

  async #counted(tenantId: string): Promise<Counted> {
    const kept = this.#tenants.get(tenantId)
    this.#tenants.delete(tenantId)
    const counting = kept ?? this.#count(tenantId)
    this.#tenants.set(tenantId, counting)
    if (this.#tenants.size > mostTenants) this.#tenants.delete(this.#tenants.keys().next().value!)
    try {
      const counted = await counting
      if (Date.now() - counted.at > this.#recountMs) void this.recount(tenantId)
      return counted
    } catch (error) {
      if (this.#tenants.get(tenantId) === counting) this.#tenants.delete(tenantId)
      throw error
    }
  }
  async #count(tenantId: string): Promise<Counted> {
    return { ...(await this.#backend.use(tenantId)), at: Date.now(), recounting: false }
  }
}

const takeText = `
  UPDATE tenant_objects SET bytes = bytes + $2, objects = objects + $3
  WHERE tenant_id = $1 AND ($2::bigint <= 0 OR bytes + $2 <= $4) AND ($3::bigint <= 0 OR objects + $3 <= $5) RETURNING 1`
const addText = `
  UPDATE tenant_objects SET bytes = greatest(0, bytes + $2::bigint), objects = greatest(0, objects + $3::bigint)
  WHERE tenant_id = $1`
const readText = `
  SELECT bytes::float8 AS bytes, objects::float8 AS objects FROM tenant_objects WHERE tenant_id = $1`
const beginText = `
  INSERT INTO tenant_objects (tenant_id, bytes, objects) SELECT id, $2, $3 FROM tenants
  WHERE id = $1 AND erased_at IS NULL ON CONFLICT DO NOTHING`
// The count may or may not include writes made during it. These writes are added all the same: counting them twice is better than not at all.
const recountText = `
  UPDATE tenant_objects SET bytes = $2::bigint + greatest(0, bytes - $4::bigint),
    objects = $3::bigint + greatest(0, objects - $5::bigint), counted_at = now()
  WHERE tenant_id = $1`

/**
 * Usage in one database row for each tenant. Each write changes the row, so that all processes enforce the same limit. A process that dies during a
 * write leaves its reservation, which the nightly count releases.
 */
export class PostgresCounter implements Counter {
  readonly #db: Database
  readonly #backend: Backend

  constructor(db: Database, backend: Backend) {
    this.#db = db
    this.#backend = backend
  }

  async of(tenantId: string): Promise<StoreUse> {
    const has = await this.#read(tenantId)
    if (has) return has
    const found = await this.#backend.use(tenantId)
    await this.#ask(tenantId, 'objects-begin', beginText, [found.bytes, found.objects])
    return (await this.#read(tenantId)) ?? found
  }
  async take(tenantId: string, more: StoreUse, most: StoreLimits): Promise<keyof StoreLimits | undefined> {
    const values = [more.bytes, more.objects, most.objectBytes, most.objects]
    for (let attempt = 0; attempt < 3; attempt++) {
      const taken = await this.#ask(tenantId, 'objects-take', takeText, values)
      if (taken.length > 0) return undefined
      const over = overBy(await this.of(tenantId), more, most)
      if (over) return over
    }
    // The tenant is erased, or its row changes faster than it can be read.
    return 'objectBytes'
  }
  async add(tenantId: string, change: StoreUse): Promise<void> {
    await this.#ask(tenantId, 'objects-add', addText, [change.bytes, change.objects])
  }
  async recount(tenantId: string): Promise<void> {
    const before = await this.#read(tenantId)
    if (!before) return
    const { bytes, objects } = await this.#backend.use(tenantId)
    await this.#ask(tenantId, 'objects-recount', recountText, [bytes, objects, before.bytes, before.objects])
  }

  async #read(tenantId: string): Promise<StoreUse | undefined> {
    const [row] = await this.#ask<{ bytes: number; objects: number }>(tenantId, 'objects-read', readText, [])
    return row
  }
  async #ask<Row extends object>(
    tenantId: string,
    name: string,
    text: string,
    values: readonly number[],
  ): Promise<Row[]> {
    const statement: Statement = { name, text, values: [tenantId, ...values] }
    const [rows] = await this.#db.batch<[Row[]]>(tenantId, [statement])
    return rows
  }
}
