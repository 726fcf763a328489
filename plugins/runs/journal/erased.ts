import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { Sweep } from '#kit'
import type { JournalFolder } from './folder.ts'

const everyMs = 60_000
const atOnce = 500

const tenants = {
  name: 'erased-tenants',
  text: 'SELECT id, erased_at IS NOT NULL AS erased FROM tenants WHERE id = ANY($1)',
}
// What is written late is older than what was read before: each look begins a minute back.
const runs = {
  name: 'erased-runs',
  text: `SELECT run_id, at::text FROM erased_runs WHERE tenant_id = $1
           AND (at, run_id) > ($2::timestamptz, $3) ORDER BY at, run_id LIMIT ${atOnce}`,
}
const overlap = `SELECT (coalesce(max(at), '-infinity') - interval '1 minute')::text AS since FROM erased_runs WHERE tenant_id = $1`

/**
 * Removes the files of runs that retention or an erasure has deleted, and the folders of erased tenants. A run that the database
 * does not know otherwise keeps its file: it may belong to another database.
 */
export class ErasedFiles {
  readonly #database: Database
  readonly #folder: JournalFolder
  /** From when on each tenant is looked at; the first look sees all. */
  readonly #since = new Map<string, string>()
  readonly #looks: Sweep

  constructor(database: Database, folder: JournalFolder, log: Pick<FastifyBaseLogger, 'warn'>) {
    this.#database = database.as('reads')
    this.#folder = folder
    const failed = (err: unknown): void =>
      log.warn({ err }, 'files of deleted runs could not be removed; it is tried again')
    this.#looks = new Sweep(everyMs, () => this.look(), failed)
  }
  start(): void {
    void this.#looks.now()
    this.#looks.start()
  }
  stop(): Promise<void> {
    return this.#looks.stop()
  }
  /** One look at all tenants that have files here. */
  async look(): Promise<void> {
    const present = await this.#folder.tenants()
    if (present.length === 0) return
    type Row = { id: string; erased: boolean }
    const [rows] = await this.#database.systemBatch<[Row[]]>([{ ...tenants, values: [present] }])
    for (const { id, erased } of rows) {
      if (erased) await this.#folder.removeTenant(id)
      else await this.#lookAt(id)
    }
  }
  async #lookAt(tenantId: string): Promise<void> {
    let place = [this.#since.get(tenantId) ?? '-infinity', '']
    const [[next]] = await this.#database.batch<[{ since: string }[]]>(tenantId, [
      { text: overlap, values: [tenantId] },
    ])
    for (;;) {
      type Row = { run_id: string; at: string }
      const [rows] = await this.#database.batch<[Row[]]>(tenantId, [{ ...runs, values: [tenantId, ...place] }])
      if (rows.length > 0) await this.#folder.removeRuns(tenantId, new Set(rows.map((row) => row.run_id)))
      if (rows.length < atOnce) break
      const last = rows.at(-1)!
      place = [last.at, last.run_id]
    }
    this.#since.set(tenantId, next!.since)
  }
}
