import { rangeValues } from './meters.ts'
import type { Range } from './window.ts'

/** The lengths in minutes of the intervals over which runs are rolled up; see migrations/0031_run_rollups.sql. */
const spans = [1, 5, 60, 1440] as const
const minute = 60_000

/**
 * Values of $1 tenant, $2 start, $3 end, $4 the first minute, five minutes, hour and day that begin in the range. The range ends now. Every roll-up
 * after its start belongs to it, because roll-ups hold only runs that ended before their edge.
 */
export const rolledValues = (tenantId: string, range: Range): unknown[] => [
  ...rangeValues(tenantId, range),
  spans.map((span) => new Date(Math.ceil(range.start.getTime() / (span * minute)) * span * minute).toISOString()),
]
const firstOf = (i: number): string => `($4::timestamptz[])[${i + 1}]`
const whole = firstOf(0)

const raw = (columns: string, from: string, until: string): string =>
  `SELECT ${columns} FROM run_meters WHERE tenant_id = $1 AND recorded_at >= ${from} AND recorded_at < ${until}`

/** SQL for the runs that no roll-up of the range holds: runs before the first whole minute, and runs after the edge of the roll-ups. */
const unrolled = (columns: string): string =>
  `${raw(columns, '$2', `least(${whole}, $3::timestamptz)`)} UNION ALL ${raw(columns, `greatest(${whole}, rolled_until())`, '$3')}`

/**
 * SQL that covers the range with few rows by taking the longest roll-ups that fit: minutes up to the first five minutes, these up to the first
 * hour, hours up to the first day, then days. `longest` is the longest allowed roll-up, in minutes.
 */
function rolled(table: string, columns: string, longest: number): string {
  const used = spans.filter((span) => span <= longest)
  const parts = used.map((span, i) => {
    const until = i === used.length - 1 ? '' : ` AND at < ${firstOf(i + 1)}`
    return `SELECT ${columns} FROM ${table} WHERE tenant_id = $1 AND span = ${span} AND at >= ${firstOf(i)}${until}`
  })
  return parts.join(' UNION ALL ')
}

const counters = ['ok', 'error', 'cancelled', 'interrupted']
const amounts = ['input_tokens', 'output_tokens', 'cached_tokens', 'tool_calls']

const sums = (table: string, own: Readonly<Record<string, string>>, longest: number): string => `(
  ${unrolled(`recorded_at AS at, ${counters.map((status) => `(status = '${status}')::int::bigint AS ${status}`).join(', ')},
    ${amounts.map((one) => `${one}::bigint`).join(', ')}, cost_microcents, (cost_microcents IS NULL)::int::bigint AS unpriced
    ${Object.entries(own)
      .map(([name, value]) => `, ${value} AS ${name}`)
      .join('')}`)}
  UNION ALL ${rolled(table, ['at', ...counters, ...amounts, 'cost_microcents', 'unpriced', ...Object.keys(own)].join(', '), longest)}
) metered`

/** SQL for the sums of the runs that ended in a range. No row covers more than `longest` minutes, so that each row fits into one bucket of a series. */
export const metered = (longest = 1440): string => sums('run_totals', {}, longest)
/** SQL for the same by profile, with the sessions whose last run ended there and when their last run ended. */
export const meteredByProfile = sums(
  'run_rollups',
  { profile: 'profile', sessions: '0::bigint', last_at: 'recorded_at' },
  1440,
)

/** SQL for how long runs took. Each row is a group of runs of about the same duration, with their number and their mean in seconds. */
export const durations = `(
  SELECT sum(runs)::int AS runs, sum(seconds) / sum(runs) AS seconds FROM (
    ${unrolled(`floor(ln(greatest(date_part('epoch', recorded_at - started_at), 0.001)) / ln(1.05))::int AS bin, 1 AS runs,
      date_part('epoch', recorded_at - started_at) AS seconds`)}
    UNION ALL ${rolled('run_durations', 'bin, runs, seconds', 1440)}
  ) took GROUP BY bin
)`

/** SQL for the sessions of each profile that no roll-up of the range counts, because their last run is in no roll-up. */
export const unrolledSessions = `
  SELECT profile, count(*) AS sessions FROM (SELECT DISTINCT profile, session_id FROM (${unrolled('profile, session_id')}) run) session
  WHERE NOT EXISTS (SELECT 1 FROM session_ends e WHERE e.tenant_id = $1 AND e.session_id = session.session_id AND e.last_at >= ${whole})
  GROUP BY profile`

export interface Duration {
  readonly runs: number
  readonly seconds: number
}

/**
 * The duration in seconds that the share `part` (0 to 1) of the runs did not exceed. Between two runs it is interpolated, like percentile_cont of
 * PostgreSQL.
 */
export function percentile(sorted: readonly Duration[], part: number): number {
  const place = part * (sorted.reduce((sum, { runs }) => sum + runs, 0) - 1)
  const at = (index: number): number => {
    let passed = 0
    return sorted.find(({ runs }) => (passed += runs) > index)!.seconds
  }
  const [low, high] = [at(Math.floor(place)), at(Math.ceil(place))]
  return low + (high - low) * (place - Math.floor(place))
}
