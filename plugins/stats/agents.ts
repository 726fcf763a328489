import type { Page } from '#contracts/paging'
import { pageValues } from '#contracts/paging'
import { finishedIn, meterColumns, type MeterRow, rangeValues, failedOf, toMetered } from './meters.ts'
import type { Reader } from './reader.ts'
import type { AgentSort, AgentStats } from './schema.ts'
import type { Range } from './window.ts'

const orders: Readonly<Record<AgentSort, string>> = {
  last_activity_desc: 'last_at DESC NULLS LAST',
  tokens_desc: 'input_tokens + output_tokens DESC',
  failures_desc: 'error + interrupted DESC',
  runs_desc: 'total DESC',
  sessions_desc: 'sessions DESC',
  name_asc: 'profile COLLATE "C"',
}
// Equal rows are sorted by name, in an order that does not depend on the server's locale, so that pages neither overlap nor have gaps.
const ordered = (sort: AgentSort): string => `${orders[sort]}, profile COLLATE "C"`

const counters = [
  'total',
  'ok',
  'error',
  'cancelled',
  'interrupted',
  'input_tokens',
  'output_tokens',
  'cached_tokens',
  'tool_calls',
  'cost_microcents',
  'unpriced',
] as const

// Sessions are told apart by 64 bits of their ids: a month may hold hundreds of thousands, and grouping the ids themselves
// takes half as long again. `count(DISTINCT …)` would sort every row. A profile without runs has zeros; one that was
// deleted is listed as long as its runs are, so that the rows add up to the totals.
const listed = `
  WITH used AS (
    SELECT profile, max(recorded_at) AS last_at, ${meterColumns} FROM run_meters WHERE ${finishedIn} GROUP BY profile
  ), lived AS (
    SELECT profile, count(*) AS sessions
    FROM (SELECT DISTINCT profile, hashtextextended(session_id, 0) FROM run_meters WHERE ${finishedIn}) session
    GROUP BY profile
  ), listed AS (
    SELECT coalesce(existing.name, used.profile) AS profile, existing.name IS NULL AS deleted,
      coalesce(lived.sessions, 0)::int AS sessions, used.last_at,
      ${counters.map((counter) => `coalesce(used.${counter}, 0)::bigint AS ${counter}`).join(', ')}
    FROM (SELECT name FROM profiles WHERE tenant_id = $1) existing
    FULL JOIN used ON used.profile = existing.name
    LEFT JOIN lived ON lived.profile = used.profile
  )`

const page = (sort: AgentSort): string => `${listed}
  SELECT all_rows.count, page.*
  FROM (SELECT count(*)::int AS count FROM listed) all_rows
  LEFT JOIN (SELECT * FROM listed ORDER BY ${ordered(sort)} LIMIT $4 OFFSET $5) page ON true
  ORDER BY ${ordered(sort)}`

type AgentRow = MeterRow & {
  readonly count: number
  /** Null in the one row of a page behind the end. */
  readonly profile: string | null
  readonly deleted: boolean
  readonly sessions: number
  readonly last_at: string | null
}

export async function readAgents(
  reader: Reader,
  tenantId: string,
  range: Range,
  sort: AgentSort,
  paging: Page,
): Promise<{ agents: AgentStats[]; total: number }> {
  const values = [...rangeValues(tenantId, range), ...pageValues(paging)]
  const [rows] = await reader.read<[AgentRow[]]>(tenantId, [{ text: page(sort), values }])
  const agents = rows.flatMap((row) => (row.profile === null ? [] : [toAgent(row, row.profile)]))
  return { agents, total: rows[0]?.count ?? 0 }
}

const toAgent = (row: AgentRow, profile: string): AgentStats => ({
  profile,
  deleted: row.deleted,
  sessions: row.sessions,
  lastActivityAt: row.last_at,
  failedRuns: failedOf(row),
  ...toMetered(row),
})
