import type { Statement } from '#contracts/database'
import type { Failure } from './outcome.ts'
import { runStatuses, type RunSettings, type RunStatus } from './schema.ts'

export interface RunRow {
  readonly id: string
  readonly name: string
  readonly settings: RunSettings
  readonly depth: number
  readonly parentRun: string | undefined
  readonly parentNode: string | undefined
  /** Id of the topmost run: the run's own id, unless it is a child workflow. */
  readonly rootRun: string
  readonly scheduleId: string | undefined
  readonly keyed: boolean
  /** The tenant of the run was deleted. */
  readonly gone: boolean
  status: RunStatus
  unfinished: number
  failed: number
  seq: number
  output: string | undefined
  error: Failure | undefined
}

export interface HeldRow {
  id: string
  name: string
  settings: string
  status: number
  unfinished: number
  failed: number
  seq: number
  depth: number
  keyed: boolean
  gone: boolean
  parent_run: string | null
  parent_node: string | null
  root_run: string | null
  schedule_id: string | null
}
/** Locks the row of a run until the transaction ends, and reads it. */
export const heldRun = (tenantId: string, runId: string): Statement => ({
  name: 'workflow-hold',
  text: `SELECT id, name, settings, status, unfinished, failed, seq, depth, keyed, parent_run, parent_node, root_run, schedule_id,
             EXISTS (SELECT FROM tenants WHERE id = $1 AND deleted_at IS NOT NULL) AS gone
           FROM workflow_runs WHERE tenant_id = $1 AND id = $2 FOR NO KEY UPDATE`,
  values: [tenantId, runId],
})
export function toRunRow(row: HeldRow): RunRow {
  return {
    id: row.id,
    name: row.name,
    settings: JSON.parse(row.settings) as RunSettings,
    depth: row.depth,
    keyed: row.keyed,
    gone: row.gone,
    parentRun: row.parent_run ?? undefined,
    parentNode: row.parent_node ?? undefined,
    rootRun: row.root_run ?? row.id,
    scheduleId: row.schedule_id ?? undefined,
    status: runStatuses[row.status]!,
    unfinished: row.unfinished,
    failed: row.failed,
    seq: row.seq,
    output: undefined,
    error: undefined,
  }
}

/** Stores the new state of a run together with the event that reports it. */
export const movedRun = (tenantId: string, run: RunRow, event: string): Statement => ({
  name: 'workflow-moved',
  text: `WITH run AS (
             UPDATE workflow_runs SET status = $3::smallint, unfinished = $4, failed = $5, seq = $6::int, output = coalesce($7, output),
               error = CASE WHEN $3::smallint IN (1, 3, 5) THEN NULL ELSE coalesce($8, error) END,
               started_at = CASE WHEN $3::smallint > 0 THEN coalesce(started_at, clock_timestamp()) END,
               finished_at = CASE WHEN $3::smallint > 2 THEN clock_timestamp() END, moved_at = clock_timestamp()
             WHERE tenant_id = $1 AND id = $2
           )
           INSERT INTO workflow_events (tenant_id, run_id, seq, event) VALUES ($1, $2, $6::int, $9)`,
  values: [
    tenantId,
    run.id,
    runStatuses.indexOf(run.status),
    run.unfinished,
    run.failed,
    run.seq,
    run.output ?? null,
    run.error ? JSON.stringify(run.error) : null,
    event,
  ],
})
