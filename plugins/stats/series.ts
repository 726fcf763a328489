import type { Statement } from '#contracts/database'
import type { Bucket, Timeseries } from '#contracts/stats'
import {
  type AmountRow,
  amountsIn,
  failedOf,
  type MeterRow,
  rangeValues,
  summedColumns,
  toAmounts,
  toMetered,
  toRange,
} from './meters.ts'
import type { Reader } from './reader.ts'
import { metered, rolledValues } from './rollups.ts'
import type { Grid } from './window.ts'

/** SQL for the bucket of a time. $4: the bucket size. Every size divides a day, so any midnight in UTC can be the origin. */
export const binOf = (time: string): string => `date_bin($4::interval, ${time}, '2000-01-01T00:00:00Z') AS bin`
export const gridValues = (tenantId: string, grid: Grid): unknown[] => [
  ...rangeValues(tenantId, grid),
  `${grid.size} milliseconds`,
]

// The statement has no name, so that PostgreSQL plans it for the actual range, which may be a minute or a month.
const runs = (size: number): string =>
  `SELECT date_bin($5::interval, at, '2000-01-01T00:00:00Z') AS bin, ${summedColumns} FROM ${metered(size / 60_000)} GROUP BY bin`
const amounts = `SELECT ${binOf(`CASE meter WHEN 'ingress' THEN minute ELSE recorded_at END`)}, meter, sum(amount)::bigint AS amount
  FROM usage_meters WHERE ${amountsIn} GROUP BY bin, meter`

export interface Binned {
  readonly bin: string
}

export async function readSeries(reader: Reader, tenantId: string, grid: Grid): Promise<Timeseries> {
  const values = gridValues(tenantId, grid)
  const statements: Statement[] = [
    { text: runs(grid.size), values: [...rolledValues(tenantId, grid), `${grid.size} milliseconds`] },
    { text: amounts, values },
  ]
  const [runRows, amountRows] = await reader.read<[(MeterRow & Binned)[], (AmountRow & Binned)[]]>(tenantId, statements)
  return { ...toRange(grid), bucket: grid.bucket, buckets: fill(grid, runRows, amountRows) }
}

/** Returns a bucket for every start in the grid, including buckets without any activity. */
export function fill(
  grid: Grid,
  runRows: readonly (MeterRow & Binned)[],
  amountRows: readonly (AmountRow & Binned)[],
): Bucket[] {
  const runsAt = new Map(runRows.map((row) => [Date.parse(row.bin), row]))
  const amountsAt = Map.groupBy(amountRows, (row) => Date.parse(row.bin))
  return grid.starts.map((start) => ({
    start: new Date(start).toISOString(),
    end: new Date(start + grid.size).toISOString(),
    ...toMetered(runsAt.get(start)),
    failedRuns: failedOf(runsAt.get(start)),
    ...toAmounts(amountsAt.get(start) ?? []),
  }))
}
