import { setTimeout as sleep } from 'node:timers/promises'
import type { Database, Statement, TenantTx } from '#contracts/database'
import { retentionErrors } from '#contracts/retention'

/** A batch that takes longer is followed by a smaller one. No statement is to take 200 ms. */
const targetMs = 80
const first = 50
const least = 5
const most = 1_000

/** Where a walk has come to: the values of the order's columns, as text. Undefined: at its beginning. */
export type Place = readonly string[] | undefined

/** What one batch did. */
export interface Done {
  /** Rows by table, or by what users call them. */
  readonly deleted: Readonly<Record<string, number>>
  /** Where the next batch begins; undefined when this was the last one. */
  readonly next: Place
}

/** One transaction's share of a deletion: at most about `limit` rows, from `place` on. */
export type Batch = (tx: TenantTx, limit: number, place: Place) => Promise<Done>

/** The tenant's row is held until the batch is over: whoever sets a legal hold knows that nothing is deleted from then on. */
const mayDelete: Statement = {
  name: 'retention-may',
  text: 'SELECT id FROM tenants WHERE id = $1 AND NOT legal_hold FOR SHARE',
}

/** Deletes in small transactions with pauses between them, so that nobody waits for it. */
export class Batches {
  readonly #database: Database
  readonly #pauseMs: number
  readonly #onDeleted: (rows: Done['deleted']) => void

  constructor(database: Database, pauseMs: number, onDeleted: (rows: Done['deleted']) => void = () => {}) {
    // Beside lists and figures: nothing that runs or answers a chat waits for these connections.
    this.#database = database.as('reads')
    this.#pauseMs = pauseMs
    this.#onDeleted = onDeleted
  }

  /** One transaction. Rejects with 409 `legal_hold`. */
  async once<T>(tenantId: string, work: (tx: TenantTx) => Promise<T>): Promise<T> {
    return this.#database.tenant(tenantId, async (tx) => {
      const [row] = await tx.query({ ...mayDelete, values: [tenantId] })
      if (!row) throw retentionErrors.legalHold()
      return work(tx)
    })
  }
  /** Batch after batch, to the end of the walk. Resolves to the rows that went; the signal ends it between two batches. */
  async all(tenantId: string, batch: Batch, signal: AbortSignal): Promise<Record<string, number>> {
    const total: Record<string, number> = {}
    let limit = first
    let place: Place
    do {
      signal.throwIfAborted()
      const from = place
      const began = performance.now()
      const { deleted, next } = await this.once(tenantId, (tx) => batch(tx, limit, from))
      const tookMs = performance.now() - began
      for (const [kind, rows] of Object.entries(deleted)) total[kind] = (total[kind] ?? 0) + rows
      this.#onDeleted(deleted)
      if (tookMs > targetMs) limit = Math.max(least, Math.floor(limit / 2))
      else if (tookMs < targetMs / 3) limit = Math.min(most, limit * 2)
      place = next
      if (place) await sleep(this.#pauseMs, undefined, { signal })
    } while (place)
    return total
  }
}
