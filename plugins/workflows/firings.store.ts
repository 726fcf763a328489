import type { Database, TenantTx } from '#contracts/database'
import type { Listing, Page } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import type { Firing } from './schema.ts'

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
export interface Became {
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

/** The history of one schedule, in a transaction that holds its row. */
export class Firings {
  readonly #tx: TenantTx
  readonly #of: readonly [string, string]
  constructor(tx: TenantTx, scheduleId: string) {
    this.#tx = tx
    this.#of = [tx.tenantId, scheduleId]
  }

  async record(at: Date, { outcome, runId, message }: Became): Promise<void> {
    await this.#tx.query({
      text: `INSERT INTO workflow_firings (tenant_id, schedule_id, at, kind, outcome, run_id, message)
             VALUES ($1, $2, $3, 'cron', $4, $5, $6) ON CONFLICT DO NOTHING`,
      values: [...this.#of, at, outcome, runId ?? null, message ?? null],
    })
  }
  async recordMissed(times: readonly Date[]): Promise<void> {
    if (times.length === 0) return
    await this.#tx.query({
      text: `INSERT INTO workflow_firings (tenant_id, schedule_id, at, kind, outcome)
             SELECT $1, $2, at, 'cron', 'missed' FROM unnest($3::timestamptz[]) AS t (at) ON CONFLICT DO NOTHING`,
      values: [...this.#of, times.map((at) => at.toISOString())],
    })
  }
  /** Records a run that a client started by hand. */
  async recordManual(runId: string): Promise<void> {
    await this.#tx.query({
      text: `INSERT INTO workflow_firings (tenant_id, schedule_id, at, kind, outcome, run_id) VALUES ($1, $2, clock_timestamp(), 'manual', 'started', $3)`,
      values: [...this.#of, runId],
    })
  }
  /** The scheduled time whose run is queued. Undefined: no run is queued. */
  async queued(): Promise<string | undefined> {
    const [row] = await this.#tx.query<{ at: string }>({
      text: `SELECT at FROM workflow_firings WHERE tenant_id = $1 AND schedule_id = $2 AND outcome = 'queued' ORDER BY at LIMIT 1`,
      values: this.#of,
    })
    return row?.at
  }
  /** Records the outcome of the queued firing. */
  async unqueue({ outcome, runId, message }: Became): Promise<void> {
    await this.#tx.query({
      text: `UPDATE workflow_firings SET outcome = $3, run_id = $4, message = $5 WHERE tenant_id = $1 AND schedule_id = $2 AND outcome = 'queued'`,
      values: [...this.#of, outcome, runId ?? null, message ?? null],
    })
  }
  async trim(): Promise<void> {
    await this.#tx.query({
      text: `DELETE FROM workflow_firings WHERE tenant_id = $1 AND schedule_id = $2 AND at <= (
               SELECT at FROM workflow_firings WHERE tenant_id = $1 AND schedule_id = $2 ORDER BY at DESC OFFSET ${keptFirings} LIMIT 1)`,
      values: this.#of,
    })
  }
}
