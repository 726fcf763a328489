import type { FastifyBaseLogger } from 'fastify'
import type { Database, Statement } from '#contracts/database'
import { overLimit, type StoredBytes } from '#contracts/limits'
import { Pace } from '#kit'

/** What this process knows about the stored bytes of one tenant. */
interface Count {
  /** Bytes in the database, as it last answered. */
  stored: number
  /** Bytes that this process has written but not yet added to the database. */
  unsaved: number
  usedAt: number
  telling: Promise<void> | undefined
}

const sweepEveryMs = 10_000
const forgetAfterMs = 600_000
/**
 * How many small writes of a name a full tenant may make at once, and how often one after these: some 25 MB a day at most, since a key takes 17 KiB at
 * most, for each role.
 */
const mostBeyond = 1_000
const oneBeyondEveryMs = 60_000

// The condition keeps a tenant that is erased meanwhile from getting a new row.
const add = (tenantId: string, bytes: number): Statement => ({
  name: 'stored_bytes_add',
  text: `INSERT INTO tenant_storage AS s (tenant_id, bytes)
         SELECT id, greatest(0, $2::bigint) FROM tenants WHERE id = $1 AND deleted_at IS NULL
         ON CONFLICT (tenant_id) DO UPDATE SET bytes = greatest(0, s.bytes + $2::bigint)
         RETURNING bytes::float8 AS bytes`,
  values: [tenantId, bytes],
})
const read = (tenantId: string): Statement => ({
  name: 'stored_bytes_read',
  text: 'SELECT bytes::float8 AS bytes FROM tenant_storage WHERE tenant_id = $1',
  values: [tenantId],
})

/**
 * Counts the stored bytes of each tenant. A process adds up what it writes, and every 10 s adds the sum to the database and reads the total of all
 * processes; within that time a tenant may exceed its limit. Triggers in the database subtract what is deleted.
 */
export class KeptStoredBytes implements StoredBytes {
  readonly #database: Database | undefined
  readonly #limitOf: (tenantId: string) => number
  readonly #log: Pick<FastifyBaseLogger, 'warn'>
  readonly #counts = new Map<string, Count>()
  readonly #beyond = new Pace({ atOnce: mostBeyond - 1, longestMs: 0 })
  #timer: NodeJS.Timeout | undefined
  #sweeping: Promise<void> | undefined

  /** Without a database nothing is stored. */
  constructor(
    database: Database | undefined,
    limitOf: (tenantId: string) => number,
    log: Pick<FastifyBaseLogger, 'warn'>,
  ) {
    this.#database = database
    this.#limitOf = limitOf
    this.#log = log
  }

  add(tenantId: string, bytes: number): void {
    if (this.#database && bytes !== 0) this.#of(tenantId).unsaved += Math.round(bytes)
  }
  isFull(tenantId: string): boolean {
    return this.#database !== undefined && this.#exceeds(tenantId, this.#of(tenantId))
  }
  admit(tenantId: string, few?: string): void {
    if (!this.isFull(tenantId)) return
    if (few !== undefined && this.#beyond.turnOf(`${tenantId} ${few}`, oneBeyondEveryMs) !== undefined) return
    throw overLimit('storedBytes', this.#limitOf(tenantId))
  }
  /** The stored bytes of a tenant: the total in the database, plus what this process has not added yet. */
  async used(tenantId: string): Promise<number> {
    const [row] = await this.#database!.unit<{ bytes: number }>(tenantId, read(tenantId))
    return Math.max(0, (row?.bytes ?? 0) + (this.#counts.get(tenantId)?.unsaved ?? 0))
  }

  start(): void {
    if (this.#database) this.#timer = setInterval(() => void this.sweep(), sweepEveryMs).unref()
  }
  async stop(): Promise<void> {
    clearInterval(this.#timer)
    await this.#sweeping
    await this.sweep()
  }
  /** Adds what was written to the database, and reads the totals of full tenants again, since something may have been deleted. Never rejects. */
  sweep(): Promise<void> {
    return (this.#sweeping ??= this.#sweep().finally(() => (this.#sweeping = undefined)))
  }

  async #sweep(): Promise<void> {
    const oldest = Date.now() - forgetAfterMs
    const told: Promise<void>[] = []
    // A statement under way may not include the latest writes, so it is awaited before the sums are taken.
    await Promise.allSettled([...this.#counts.values()].map(({ telling }) => telling))
    for (const [tenantId, count] of this.#counts) {
      if (count.unsaved !== 0 || this.#exceeds(tenantId, count)) told.push(this.#tell(tenantId, count))
      else if (count.usedAt < oldest) this.#counts.delete(tenantId)
    }
    // What could not be added now is added by the next sweep.
    const failed = (await Promise.allSettled(told)).find((one) => one.status === 'rejected')
    if (failed) this.#log.warn({ err: failed.reason }, 'the stored bytes of tenants could not be counted yet')
  }
  #exceeds(tenantId: string, { stored, unsaved }: Count): boolean {
    return stored + unsaved >= this.#limitOf(tenantId)
  }
  #of(tenantId: string): Count {
    let count = this.#counts.get(tenantId)
    if (!count) {
      count = { stored: 0, unsaved: 0, usedAt: 0, telling: undefined }
      this.#counts.set(tenantId, count)
      // Learns what other processes have written. A failure is ignored, because the next sweep tries again.
      this.#tell(tenantId, count).catch(() => {})
    }
    count.usedAt = Date.now()
    return count
  }
  #tell(tenantId: string, count: Count): Promise<void> {
    return (count.telling ??= this.#ask(tenantId, count).finally(() => (count.telling = undefined)))
  }
  async #ask(tenantId: string, count: Count): Promise<void> {
    const { unsaved } = count
    const statement = unsaved === 0 ? read(tenantId) : add(tenantId, unsaved)
    const [row] = await this.#database!.unit<{ bytes: number }>(tenantId, statement, { order: `stored ${tenantId}` })
    count.stored = row?.bytes ?? 0
    count.unsaved -= unsaved
  }
}
