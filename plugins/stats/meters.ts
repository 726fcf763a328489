import type { Statement } from '#contracts/database'
import { microcentsPerCent } from '#contracts/prices'
import type { Range } from './window.ts'

/** The sums over the meters of finished runs. */
export interface MeterRow {
  readonly total: number
  readonly ok: number
  readonly error: number
  readonly cancelled: number
  readonly interrupted: number
  readonly input_tokens: number
  readonly output_tokens: number
  readonly cached_tokens: number
  readonly tool_calls: number
  readonly cost_microcents: number
  readonly unpriced: number
}

const statuses = ['ok', 'error', 'cancelled', 'interrupted']
const amounts = ['input_tokens', 'output_tokens', 'cached_tokens', 'tool_calls', 'cost_microcents']
const ended = (status: string): string => `count(*) FILTER (WHERE status = '${status}')::int AS ${status}`
const sum = (column: string): string => `coalesce(sum(${column}), 0)::bigint AS ${column}`

/** SQL columns of a `MeterRow`, summed over rows of `run_meters`. */
export const meterColumns = `count(*)::int AS total, ${statuses.map(ended).join(', ')}, ${amounts.map(sum).join(', ')},
  count(*) FILTER (WHERE cost_microcents IS NULL)::int AS unpriced`

/** SQL columns of a `MeterRow`, summed over rows of `metered`. */
export const summedColumns = `coalesce(sum(${statuses.join(' + ')}), 0)::int AS total,
  ${statuses.map((status) => `coalesce(sum(${status}), 0)::int AS ${status}`).join(', ')}, ${amounts.map(sum).join(', ')},
  coalesce(sum(unpriced), 0)::int AS unpriced`

/** Condition for runs that finished in a range of the primary key. $1: tenant, $2: start (inclusive), $3: end (exclusive). */
export const finishedIn = 'tenant_id = $1 AND recorded_at >= $2 AND recorded_at < $3'
export const rangeValues = (tenantId: string, { start, end }: Range): [string, Date, Date] => [tenantId, start, end]

const nothing: MeterRow = {
  total: 0,
  ok: 0,
  error: 0,
  cancelled: 0,
  interrupted: 0,
  input_tokens: 0,
  output_tokens: 0,
  cached_tokens: 0,
  tool_calls: 0,
  cost_microcents: 0,
  unpriced: 0,
}

export const toMetered = (row: MeterRow = nothing) => ({
  runs: { total: row.total, ok: row.ok, error: row.error, cancelled: row.cancelled, interrupted: row.interrupted },
  inputTokens: row.input_tokens,
  outputTokens: row.output_tokens,
  cachedTokens: row.cached_tokens,
  toolCalls: row.tool_calls,
  costCents: row.cost_microcents / microcentsPerCent,
  unpricedRuns: row.unpriced,
})

export const failedOf = ({ error, interrupted }: Pick<MeterRow, 'error' | 'interrupted'> = nothing): number =>
  error + interrupted

/**
 * Sandbox seconds count at the time they were recorded (specification 4.15). Requests count in the minute in which they arrived. A minute is always
 * recorded after it began, so the indexed `recorded_at` is a lower bound for both.
 */
export const amountsIn = `tenant_id = $1 AND meter IN ('sandbox_seconds', 'ingress') AND recorded_at >= $2
  AND CASE meter WHEN 'ingress' THEN minute >= $2 AND minute < $3 ELSE recorded_at < $3 END`

export interface AmountRow {
  readonly meter: 'sandbox_seconds' | 'ingress'
  readonly amount: number
}
export const amountTotals = (tenantId: string, range: Range): Statement => ({
  name: 'stats-amounts',
  text: `SELECT meter, sum(amount)::bigint AS amount FROM usage_meters WHERE ${amountsIn} GROUP BY meter`,
  values: rangeValues(tenantId, range),
})

export const toAmounts = (rows: readonly AmountRow[]) => ({
  sandboxSeconds: rows.find((row) => row.meter === 'sandbox_seconds')?.amount ?? 0,
  ingressRequests: rows.find((row) => row.meter === 'ingress')?.amount ?? 0,
})

export const toRange = ({ window, start, end }: Range) => ({
  window,
  start: start.toISOString(),
  end: end.toISOString(),
})
