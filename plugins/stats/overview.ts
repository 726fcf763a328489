import type { Statement } from '#contracts/database'
import {
  type AmountRow,
  amountTotals,
  failedOf,
  finishedIn,
  meterColumns,
  type MeterRow,
  rangeValues,
  toAmounts,
  toMetered,
  toRange,
} from './meters.ts'
import type { Reader } from './reader.ts'
import type { Overview } from './schema.ts'
import type { Range } from './window.ts'

const totals = `SELECT ${meterColumns},
    percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY date_part('epoch', recorded_at - started_at)) AS seconds
  FROM run_meters WHERE ${finishedIn}`
// No run is older than its longest timeout, a day: the bound keeps this from reading all that the tenant ever ran.
const now = `SELECT
    (SELECT count(*)::int FROM runs
     WHERE tenant_id = $1 AND started_at > now() - interval '25 hours' AND status = 'running') AS running,
    (SELECT count(*)::int FROM run_queue WHERE tenant_id = $1) AS queued,
    (SELECT count(*)::int FROM profiles WHERE tenant_id = $1) AS profiles,
    (SELECT count(*)::int FROM published_agents WHERE tenant_id = $1 AND unpublished_at IS NULL) AS published`
// The status of a session is not indexed, so that claims stay cheap: its creation is, and bounds what is read.
const sessions = `SELECT status, count(*)::int AS count FROM sessions
  WHERE tenant_id = $1 AND created_at >= $2 AND created_at < $3 GROUP BY status`

type Totals = MeterRow & { readonly seconds: readonly [p50: number, p95: number] | null }
interface Now {
  readonly running: number
  readonly queued: number
  readonly profiles: number
  readonly published: number
}
interface SessionCount {
  readonly status: 'idle' | 'running' | 'errored' | 'shutdown'
  readonly count: number
}

export async function readOverview(reader: Reader, tenantId: string, range: Range): Promise<Overview> {
  const values = rangeValues(tenantId, range)
  const statements: Statement[] = [
    { text: totals, values },
    { name: 'stats-now', text: now, values: [tenantId] },
    { text: sessions, values },
    amountTotals(tenantId, range),
  ]
  const [[total], [current], byStatus, amounts] = await reader.read<[Totals[], Now[], SessionCount[], AmountRow[]]>(
    tenantId,
    statements,
  )
  const { running, queued, profiles, published } = current!
  const { runs, ...metered } = toMetered(total)
  const failedRuns = failedOf(total)
  const decided = runs.ok + failedRuns
  const counted = Object.fromEntries(byStatus.map((row) => [row.status, row.count]))
  const { idle = 0, running: busy = 0, errored = 0, shutdown = 0 } = counted
  return {
    ...toRange(range),
    runs: { ...runs, running, queued },
    failedRuns,
    successRate: decided === 0 ? null : runs.ok / decided,
    durationMs: total!.seconds && { p50: ms(total!.seconds[0]), p95: ms(total!.seconds[1]) },
    ...metered,
    ...toAmounts(amounts),
    sessions: { total: idle + busy + errored + shutdown, idle, running: busy, errored, shutdown },
    profiles,
    publishedAgents: published,
  }
}

const ms = (seconds: number): number => Math.round(seconds * 1_000)
