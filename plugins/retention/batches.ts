import { setTimeout as sleep } from 'node:timers/promises'
import { type Database, databaseErrors, type TenantTx } from '#contracts/database'
import { isAppError } from '#kernel'
import { type AskStore, retentionErrors, unlessHeld } from '#contracts/retention'
import { Shares } from '#kit/turns'
import { inSeconds, type Patience } from './outside.ts'

/** A batch that takes longer than this is followed by a smaller one. No statement should take 200 ms. */
const targetMs = 80
const first = 50
const least = 5
const most = 1_000
/** Milliseconds for which a store that did not answer is left alone: each try costs everybody a connection for some seconds. */
const restMs = 30_000

/** The position of a walk: the values of the columns it is ordered by, as text. Undefined: the beginning. */
export type Place = readonly string[] | undefined

/** The result of one batch. */
export interface Done {
  /** Deleted rows, by table or by the name that users know. */
  readonly deleted: Readonly<Record<string, number>>
  /** Where the next batch begins; undefined when this was the last one. */
  readonly next: Place
}

/** One transaction's share of a deletion: at most about `limit` rows, from `place` on. */
export type Batch = (tx: TenantTx, limit: number, place: Place) => Promise<Done>
/** As `Batch`, with work outside the database, which is done by `ask`. */
export type OutsideBatch = (tx: TenantTx, limit: number, place: Place, ask: AskStore) => Promise<Done>

/** Deletes in small transactions with pauses between them, so that no other work has to wait. */
export class Batches {
  readonly #database: Database
  readonly #pauseMs: number
  readonly #onDeleted: (rows: Done['deleted']) => void
  readonly #patience: Patience | undefined
  readonly #turns = new Shares({ together: 1, each: 1, mostWaiting: 100, busy: databaseErrors.databaseBusy })
  /** The names of those who did not answer, with the time until which they are left alone. */
  readonly #silent = new Map<string, number>()

  constructor(
    database: Database,
    pauseMs: number,
    onDeleted: (rows: Done['deleted']) => void = () => {},
    patience?: Patience,
  ) {
    // The connections for reads are shared with lists and figures. No run and no chat waits for them.
    this.#database = database.as('reads')
    this.#pauseMs = pauseMs
    this.#onDeleted = onDeleted
    this.#patience = patience
  }

  /** Does work in one transaction. Rejects with 409 `legal_hold`. */
  async once<T>(tenantId: string, work: (tx: TenantTx) => Promise<T>): Promise<T> {
    return this.#database.tenant(tenantId, async (tx) => {
      const [row] = await tx.query(unlessHeld(tenantId))
      if (!row) throw retentionErrors.legalHold()
      return work(tx)
    })
  }
  /** Runs batches until the walk ends. Resolves to the deleted rows by kind. The signal stops it between two batches. */
  all(tenantId: string, batch: Batch, signal: AbortSignal): Promise<Record<string, number>> {
    return this.#all(signal, (limit, place) => this.once(tenantId, (tx) => batch(tx, limit, place)))
  }
  /**
   * As `all`, for data outside the database, kept by whoever has this name. A connection is held while they answer, which keeps a legal hold waiting:
   * for a few seconds, after which they are left alone for a while, and a process has one of these batches under way at a time. Tenants take turns.
   * Rejects with 503 `store_silent`.
   */
  outside(tenantId: string, name: string, batch: OutsideBatch, signal: AbortSignal): Promise<Record<string, number>> {
    return this.#all(signal, async (limit, place) => {
      const leave = await this.#turns.enter(tenantId, signal)
      try {
        if (performance.now() < (this.#silent.get(name) ?? 0)) throw retentionErrors.storeSilent()
        const ask: AskStore = (what) =>
          inSeconds(what, this.#patience).catch((error: unknown) => {
            if (isSilence(error)) this.#silent.set(name, performance.now() + restMs)
            throw error
          })
        return await this.once(tenantId, (tx) => batch(tx, limit, place, ask))
      } finally {
        leave()
      }
    })
  }
  async #all(
    signal: AbortSignal,
    one: (limit: number, place: Place) => Promise<Done>,
  ): Promise<Record<string, number>> {
    const total: Record<string, number> = {}
    let limit = first
    let place: Place
    do {
      signal.throwIfAborted()
      const began = performance.now()
      const { deleted, next } = await one(limit, place)
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

const isSilence = (error: unknown): boolean => isAppError(error) && error.code === retentionErrors.storeSilent.row.code

/** Does work that the signal stops by an error. */
export async function inTime<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T | undefined> {
  try {
    return await work()
  } catch (error) {
    if (!signal.aborted) throw error
    return undefined
  }
}
