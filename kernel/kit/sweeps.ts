import type { Database } from '#contracts/database'

/** Periodic work of this process. It never runs twice at once, and a failed run is repeated at the next interval. */
export class Sweep {
  readonly #everyMs: number
  readonly #work: () => Promise<unknown>
  readonly #onFailure: (err: unknown) => void
  #timer: NodeJS.Timeout | undefined
  #underWay: Promise<void> | undefined

  constructor(everyMs: number, work: () => Promise<unknown>, onFailure: (err: unknown) => void) {
    this.#everyMs = everyMs
    this.#work = work
    this.#onFailure = onFailure
  }

  /** Starts the interval. The first run is due after `everyMs`. */
  start(): void {
    this.#timer = setInterval(() => void this.now(), this.#everyMs).unref()
  }
  /** Runs the work at once, or joins the run under way. Never rejects. */
  now(): Promise<void> {
    return (this.#underWay ??= this.#work()
      .then(() => {}, this.#onFailure)
      .finally(() => (this.#underWay = undefined)))
  }
  /** Stops the interval, and waits for the run under way. */
  async stop(): Promise<void> {
    clearInterval(this.#timer)
    await this.#underWay
  }
}

/** Tenants per read. */
const atOnce = 200

const page = (which: string, name: string) => ({
  name: `tenant-ids-${name}`,
  text: `SELECT id FROM tenants WHERE id > $1 AND ${which} IS NULL ORDER BY id LIMIT ${atOnce}`,
})
const pages = {
  /** Tenants with stored rows, including deleted ones until they are erased. */
  stored: page('erased_at', 'stored'),
  /** Tenants that are not deleted. */
  active: page('deleted_at', 'active'),
} as const

/**
 * All tenants one after the other, for work that is done tenant by tenant, because row security hides rows from a statement without a tenant. Only
 * one page of tenants is in memory.
 */
export async function* tenantIds(
  database: Pick<Database, 'systemBatch'>,
  which: keyof typeof pages,
): AsyncGenerator<string, void> {
  for (let after = '', full = true; full;) {
    const [rows] = await database.systemBatch<[{ id: string }[]]>([{ ...pages[which], values: [after] }])
    for (const { id } of rows) yield id
    full = rows.length === atOnce
    after = rows.at(-1)?.id ?? ''
  }
}

/** Shares running work by key: concurrent requests for the same key get the same promise. */
export class SingleFlight<T> {
  readonly #underWay = new Map<string, Promise<T>>()

  run(key: string, work: () => Promise<T>): Promise<T> {
    const joined = this.#underWay.get(key)
    if (joined) return joined
    const begun = work().finally(() => this.#underWay.delete(key))
    this.#underWay.set(key, begun)
    return begun
  }
}
