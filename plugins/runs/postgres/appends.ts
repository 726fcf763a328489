import { type Database, sqlState, type Statement } from '#contracts/database'
import type { LogChunk } from '#contracts/run-event'
import type { Claim, RunStore } from '#contracts/run-store'
import { claimed, prepared } from './rows.ts'

// The share lock makes an append and the end of its run wait for each other, so nothing lands behind the terminal event.
// A conflict is our own retry after a lost answer: only the holder of the epoch writes this log.
const one = prepared(
  'run-append',
  `WITH owned AS (SELECT 1 FROM runs WHERE ${claimed} FOR SHARE), added AS (
     INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
     SELECT :tenant, :run, :firstSeq, :count, :lines FROM owned ON CONFLICT DO NOTHING
   )
   SELECT 1 FROM owned`,
)

// The lines of all chunks travel as one binary value, because an array of them would travel as text. PostgreSQL never turns a locking sub-select
// into a join, so each run is found by its key, whatever the planner knows about the table.
const many = prepared(
  'run-append-many',
  `WITH owned AS (
     SELECT g.* FROM unnest(:runs::text[], :epochs::bigint[], :firstSeqs::int[], :counts::int[], :starts::int[], :sizes::int[])
       WITH ORDINALITY AS g(run, epoch, first_seq, count, start, size, place)
     CROSS JOIN LATERAL (
       SELECT FROM runs WHERE tenant_id = :tenant AND id = g.run AND finished_at IS NULL AND claim_epoch = g.epoch FOR SHARE
     ) AS r
   ), added AS (
     INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
     SELECT :tenant, run, first_seq, count, substring(:lines::bytea FROM start FOR size) FROM owned ON CONFLICT DO NOTHING
   )
   SELECT place::int FROM owned`,
)

/** The most chunks of one statement: PostgreSQL finishes it within some milliseconds. */
const mostChunks = 128
const mostBytes = 256 * 1024

interface Waiting {
  readonly claim: Claim
  readonly chunk: LogChunk
  readonly resolve: (owned: boolean) => void
  readonly reject: (error: unknown) => void
}

/**
 * Appends to the logs of runs. Appends of one tenant that are requested in one turn of the event loop become one statement. With thousands of
 * streams that each produce a word a second, a statement per word would be most of their cost.
 */
export class Appends {
  readonly #db: Database
  /** Appends that wait for the end of this turn, by tenant. */
  #waiting = new Map<string, Waiting[]>()

  constructor(db: Database) {
    this.#db = db
  }

  /** Resolves to false when the claim was lost and nothing was written. */
  readonly append: RunStore['append'] = (claim, chunk) =>
    new Promise((resolve, reject) => {
      if (this.#waiting.size === 0) queueMicrotask(() => this.#send())
      const ofTenant = this.#waiting.get(claim.tenantId)
      const waiting = { claim, chunk, resolve, reject }
      if (ofTenant) ofTenant.push(waiting)
      else this.#waiting.set(claim.tenantId, [waiting])
    })

  #send(): void {
    const all = this.#waiting
    this.#waiting = new Map()
    for (const [tenantId, waiting] of all) for (const group of groupsOf(waiting)) void this.#write(tenantId, group)
  }

  async #write(tenantId: string, group: readonly Waiting[]): Promise<void> {
    const [first] = group
    if (!first) return
    try {
      const rows = await this.#db.unit<{ place?: number }>(tenantId, statementOf(group), {
        order: first.claim.sessionId,
        bytes: group.reduce((sum, { chunk }) => sum + chunk.lines.length, 0),
      })
      const owned = new Set(rows.map(({ place = 1 }) => place))
      group.forEach(({ resolve }, i) => resolve(owned.has(i + 1)))
    } catch (error) {
      // If the server refuses one append, the whole group is rolled back and nothing was written. Retry each append alone.
      if (group.length > 1 && sqlState(error) !== undefined) {
        await Promise.all(group.map((waiting) => this.#write(tenantId, [waiting])))
      } else for (const { reject } of group) reject(error)
    }
  }
}

/** Sorted by session, the order in which all units of work take their locks. */
function groupsOf(waiting: readonly Waiting[]): Waiting[][] {
  const groups: Waiting[][] = []
  let bytes = Infinity
  for (const next of waiting.toSorted((a, b) => (a.claim.sessionId < b.claim.sessionId ? -1 : 1))) {
    const group = groups.at(-1)
    bytes += next.chunk.lines.length
    if (group && group.length < mostChunks && bytes <= mostBytes) group.push(next)
    else {
      groups.push([next])
      bytes = next.chunk.lines.length
    }
  }
  return groups
}

function statementOf(group: readonly Waiting[]): Statement {
  const [{ claim, chunk }] = group as readonly [Waiting]
  const { tenantId: tenant, runId: run, epoch } = claim
  if (group.length === 1) return one({ tenant, run, epoch, ...chunk })
  const chunks = group.map((waiting) => waiting.chunk)
  let end = 1
  return many({
    tenant,
    runs: group.map((waiting) => waiting.claim.runId),
    epochs: group.map((waiting) => waiting.claim.epoch),
    firstSeqs: chunks.map(({ firstSeq }) => firstSeq),
    counts: chunks.map(({ count }) => count),
    starts: chunks.map(({ lines }) => (end += lines.length) - lines.length),
    sizes: chunks.map(({ lines }) => lines.length),
    lines: Buffer.concat(chunks.map(({ lines }) => lines)),
  })
}
