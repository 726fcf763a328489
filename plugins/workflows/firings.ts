import { isAppError } from '#kernel'
import type { Database, Statement, TenantTx } from '#contracts/database'
import type { Listing, Page } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import type { Target } from './lookups.ts'
import type { Firing, RunStatus, ScheduleBody } from './schema.ts'

/** How many firings of a schedule are kept. */
export const keptFirings = 1_000

interface Row {
  at: string
  kind: Firing['kind']
  outcome: Firing['outcome']
  run_id: string | null
  message: string | null
}

/** What a schedule did at one of its times. */
interface Became {
  readonly outcome: Firing['outcome']
  readonly runId?: string
  readonly message?: string
}

export function listFirings(database: Database, tenantId: string, id: string, page: Page): Promise<Listing<Firing>> {
  const list: ListSql = {
    columns: 'at, kind, outcome, run_id, message',
    from: 'workflow_firings',
    where: 'tenant_id = $1 AND schedule_id = $2',
    values: [tenantId, id],
    order: { at: 'timestamptz', kind: 'text' },
    newestFirst: true,
    atOnce: 200,
  }
  return readList({ database, tenantId }, list, page, (row: Row) => ({
    at: row.at,
    kind: row.kind,
    outcome: row.outcome,
    ...(row.run_id === null ? {} : { runId: row.run_id }),
    ...(row.message === null ? {} : { message: row.message }),
  }))
}

/** What decides about the next run of a schedule. */
export interface Stand {
  /** A run of the schedule is under way. A paused run waits for a person and does not count. */
  readonly busy: boolean
  /** The run of an earlier time waits for that. */
  readonly queued: boolean
}

export const standOf = (tenantId: string, scheduleId: string): Statement => ({
  name: 'workflow-schedule-stand',
  text: `SELECT EXISTS (SELECT FROM workflow_runs WHERE tenant_id = $1 AND schedule_id = $2 AND status = 1) AS busy,
           EXISTS (SELECT FROM workflow_firings WHERE tenant_id = $1 AND schedule_id = $2 AND outcome = 'queued') AS queued`,
  values: [tenantId, scheduleId],
})

interface FiringParts {
  readonly overlap: ScheduleBody['overlap']
  readonly target: Target
  /** Begins a run in the transaction. Rejects with an error below 500 when the tenant may not begin one. */
  readonly start: (target: Exclude<Target, { failure: string }>) => Promise<{ id: string; status: RunStatus }>
  readonly fired: (outcome: Firing['outcome']) => void
}

/**
 * What a schedule does in a transaction that holds its row. What became of each time is collected here and written with the commit, because a
 * process may have to do this for many schedules at the same second.
 */
export class Firings {
  readonly #tx: TenantTx
  readonly #of: readonly [string, string]
  readonly #parts: FiringParts
  readonly #records: { readonly at: Date; readonly became: Became }[] = []
  #busy: boolean
  #queued: boolean

  constructor(tx: TenantTx, scheduleId: string, { busy, queued }: Stand, parts: FiringParts) {
    this.#tx = tx
    this.#of = [tx.tenantId, scheduleId]
    this.#parts = parts
    this.#busy = busy
    this.#queued = queued
  }

  /** Begins the queued run if nothing holds it up any more. */
  async startQueued(): Promise<void> {
    if (!this.#queued || this.#busy || 'failure' in this.#parts.target) return
    this.#tx.atEnd(unqueue(this.#of, await this.#begin()))
    this.#queued = false
  }
  /** Handles one scheduled time. */
  async fireAt(at: Date): Promise<void> {
    const { overlap = 'skip', target } = this.#parts
    const isHeldUp = !('failure' in target) && overlap !== 'allow' && this.#busy
    if (!isHeldUp) return this.#record(at, await this.#begin())
    const waits = overlap === 'queue' && !this.#queued
    this.#queued ||= waits
    this.#record(at, { outcome: waits ? 'queued' : 'skipped' })
  }
  missed(at: Date): void {
    this.#record(at, { outcome: 'missed' })
  }
  /** Writes what became of the handled times, and forgets the oldest. */
  write(): void {
    if (this.#records.length === 0) return
    this.#tx.atEnd({
      name: 'workflow-firings-record',
      text: `INSERT INTO workflow_firings (tenant_id, schedule_id, at, kind, outcome, run_id, message)
             SELECT $1, $2, at, 'cron', outcome, run_id, message
             FROM unnest($3::timestamptz[], $4::text[], $5::text[], $6::text[]) AS t (at, outcome, run_id, message) ON CONFLICT DO NOTHING`,
      values: [
        ...this.#of,
        this.#records.map(({ at }) => at),
        this.#records.map(({ became }) => became.outcome),
        this.#records.map(({ became }) => became.runId ?? null),
        this.#records.map(({ became }) => became.message ?? null),
      ],
    })
    this.#tx.atEnd(trim(this.#of))
  }

  async #begin(): Promise<Became> {
    const { target, start } = this.#parts
    if ('failure' in target) return { outcome: 'failed', message: target.failure }
    try {
      const { id } = await start(target)
      this.#busy = true
      return { outcome: 'started', runId: id }
    } catch (error) {
      // The tenant is at a limit. The failure is recorded, and the schedule goes on with its next time.
      if (!isAppError(error) || error.status >= 500) throw error
      return { outcome: 'failed', message: error.sentence ?? error.code }
    }
  }
  #record(at: Date, became: Became): void {
    this.#records.push({ at, became })
    this.#parts.fired(became.outcome)
  }
}

/** Records what became of the queued time. */
export const unqueue = (of: readonly [string, string], { outcome, runId, message }: Became): Statement => ({
  name: 'workflow-firing-unqueue',
  text: `UPDATE workflow_firings SET outcome = $3, run_id = $4, message = $5 WHERE tenant_id = $1 AND schedule_id = $2 AND outcome = 'queued'`,
  values: [...of, outcome, runId ?? null, message ?? null],
})
/** Records a run that a client started by hand. */
export const manual = (of: readonly [string, string], runId: string): Statement[] => [
  {
    text: `INSERT INTO workflow_firings (tenant_id, schedule_id, at, kind, outcome, run_id) VALUES ($1, $2, clock_timestamp(), 'manual', 'started', $3)`,
    values: [...of, runId],
  },
  trim(of),
]
const trim = (of: readonly [string, string]): Statement => ({
  name: 'workflow-firings-trim',
  text: `DELETE FROM workflow_firings WHERE tenant_id = $1 AND schedule_id = $2 AND at <= (
           SELECT at FROM workflow_firings WHERE tenant_id = $1 AND schedule_id = $2 ORDER BY at DESC OFFSET ${keptFirings} LIMIT 1)
           AND NOT EXISTS (SELECT FROM tenants WHERE id = $1 AND legal_hold)`,
  values: of,
})
