import type { Statement } from '#contracts/database'
import { type Listing, type Page, pageOf } from '#contracts/paging'
import { nextOf, offsetOf } from '#kit/lists'
import type { PublishedMetrics, PublishedStats } from '#contracts/stats'
import {
  type AmountRow,
  amountsIn,
  amountTotals,
  failedOf,
  finishedIn,
  meterColumns,
  type MeterRow,
  rangeValues,
  summedColumns,
  toAmounts,
  toMetered,
  toRange,
} from './meters.ts'
import type { Reader } from './reader.ts'
import {
  type Duration,
  durations,
  metered,
  meteredByProfile,
  percentile,
  rolledValues,
  unrolledSessions,
} from './rollups.ts'
import type { AgentSort, AgentStats, Overview, UsageTotals } from './schema.ts'
import { type Binned, binOf, fill, gridValues } from './series.ts'
import { type Grid, gridOf, type Range } from './window.ts'

const totals = `SELECT ${summedColumns},
    (SELECT json_agg(took ORDER BY took.seconds) FROM ${durations} took) AS durations
  FROM ${metered()}`
// Runs that started before the edge of the roll-ups are found by their marks in run_marks. No run is older than its longest timeout, which is a
// day.
const now = `SELECT
    (SELECT count(*)::int FROM runs
     WHERE tenant_id = $1 AND status = 'running' AND started_at >= greatest(now() - interval '25 hours', rolled_until()))
    + (SELECT count(*)::int FROM run_marks m JOIN runs r ON r.tenant_id = $1 AND r.id = m.run_id
       WHERE m.tenant_id = $1 AND m.status = 'running' AND r.status = 'running') AS running,
    (SELECT count(*)::int FROM run_queue WHERE tenant_id = $1) AS queued,
    (SELECT count(*)::int FROM profiles WHERE tenant_id = $1) AS profiles,
    (SELECT count(*)::int FROM published_agents WHERE tenant_id = $1 AND unpublished_at IS NULL) AS published`
/** The most sessions that are read to count sessions by status. */
const mostSessions = 10_000
// The status of a session changes often. An index on it would make claims slower, so only the newest sessions are read and counted.
const sessions = `SELECT status, count(*)::int AS count FROM (
    SELECT status FROM sessions WHERE tenant_id = $1 AND created_at >= $2 AND created_at < $3
    ORDER BY created_at DESC, id DESC LIMIT ${mostSessions}
  ) newest GROUP BY status`

type Totals = MeterRow & { readonly durations: readonly Duration[] | null }
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
    { text: totals, values: rolledValues(tenantId, range) },
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
  const created = idle + busy + errored + shutdown
  return {
    ...toRange(range),
    runs: { ...runs, running, queued },
    failedRuns,
    successRate: decided === 0 ? null : runs.ok / decided,
    durationMs: total!.durations && {
      p50: ms(percentile(total!.durations, 0.5)),
      p95: ms(percentile(total!.durations, 0.95)),
    },
    ...metered,
    ...toAmounts(amounts),
    sessions: { total: created, exact: created < mostSessions, idle, running: busy, errored, shutdown },
    profiles,
    publishedAgents: published,
  }
}

const ms = (seconds: number): number => Math.round(seconds * 1_000)

const toolCalls = `SELECT coalesce(sum(tool_calls), 0)::bigint AS tool_calls FROM ${metered()}`
// The row of a publication stays after the publication has ended, so its requests can still be shown by name.
const topPublished = `
  SELECT top.id, agent.slug, agent.profile_name AS profile, agent.unpublished_at IS NULL AS active, top.amount
  FROM (
    SELECT subject AS id, sum(amount)::bigint AS amount FROM usage_meters
    WHERE ${amountsIn} AND meter = 'ingress' GROUP BY subject ORDER BY amount DESC, subject LIMIT 10
  ) top JOIN published_agents agent ON agent.tenant_id = $1 AND agent.id = top.id
  ORDER BY top.amount DESC, top.id`

interface TopRow {
  readonly id: string
  readonly slug: string
  readonly profile: string
  readonly active: boolean
  readonly amount: number
}

export async function readUsage(reader: Reader, tenantId: string, range: Range): Promise<UsageTotals> {
  const values = rangeValues(tenantId, range)
  const [[calls], amounts, top] = await reader.read<[{ tool_calls: number }[], AmountRow[], TopRow[]]>(tenantId, [
    { text: toolCalls, values: rolledValues(tenantId, range) },
    amountTotals(tenantId, range),
    { text: topPublished, values },
  ])
  return {
    ...toRange(range),
    totals: { toolCalls: calls!.tool_calls, ...toAmounts(amounts) },
    topPublishedAgents: top.map(({ amount, ...agent }) => ({ ...agent, ingressRequests: amount })),
  }
}

const orders: Readonly<Record<AgentSort, string>> = {
  last_activity_desc: 'last_at DESC NULLS LAST',
  tokens_desc: 'input_tokens + output_tokens DESC',
  failures_desc: 'error + interrupted DESC',
  runs_desc: 'total DESC',
  sessions_desc: 'sessions DESC',
  name_asc: 'profile COLLATE "C"',
}
// Profiles with equal figures are sorted by name, so that pages neither overlap nor have gaps. COLLATE "C" keeps the order independent of the
// server's locale.
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

// A profile without runs is listed with zeros. A deleted profile is listed as long as its runs exist, so that the rows add up to the totals.
const listed = `
  WITH used AS (
    SELECT profile, max(last_at) AS last_at, sum(sessions) AS sessions, ${summedColumns} FROM ${meteredByProfile} GROUP BY profile
    HAVING sum(ok + error + cancelled + interrupted) > 0
  ), lived AS (${unrolledSessions}
  ), listed AS (
    SELECT coalesce(existing.name, used.profile) AS profile, existing.name IS NULL AS deleted,
      (coalesce(used.sessions, 0) + coalesce(lived.sessions, 0))::int AS sessions, used.last_at,
      ${counters.map((counter) => `coalesce(used.${counter}, 0)::bigint AS ${counter}`).join(', ')}
    FROM (SELECT name FROM profiles WHERE tenant_id = $1) existing
    FULL JOIN used ON used.profile = existing.name
    LEFT JOIN lived ON lived.profile = used.profile
  )`

const page = (sort: AgentSort): string => `${listed}
  SELECT all_rows.count, page.*
  FROM (SELECT count(*)::int AS count FROM listed) all_rows
  LEFT JOIN (SELECT * FROM listed ORDER BY ${ordered(sort)} LIMIT $5 OFFSET $6) page ON true
  ORDER BY ${ordered(sort)}`

type AgentRow = MeterRow & {
  readonly count: number
  /** Null in the only row of a page that is beyond the end of the list. */
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
): Promise<Listing<AgentStats>> {
  const { limit = Infinity } = pageOf(paging)
  const offset = offsetOf(paging)
  const read = async (from: number) => {
    const size = Math.min(limit - (from - offset), rowsAtOnce)
    const values = [...rolledValues(tenantId, range), size, from]
    const [rows] = await reader.read<[AgentRow[]]>(tenantId, [{ text: page(sort), values }])
    const agents = rows.flatMap((row) => (row.profile === null ? [] : [toAgent(row, row.profile)]))
    return { agents, total: rows[0]?.count ?? 0 }
  }
  const { agents, total } = await read(offset)
  const end = Math.min(offset + limit, total)
  const rest = async function* () {
    for (let from = offset + rowsAtOnce; from < end; from += rowsAtOnce) yield (await read(from)).agents
  }
  return { items: agents, total, ...nextOf(paging, total), ...(end - offset > rowsAtOnce ? { rest: rest() } : {}) }
}

/**
 * Profiles of one read, which is about a megabyte of figures. For a tenant with more profiles, the figures are computed again for each further
 * read.
 */
const rowsAtOnce = 2_000

const toAgent = (row: AgentRow, profile: string): AgentStats => ({
  profile,
  deleted: row.deleted,
  sessions: row.sessions,
  lastActivityAt: row.last_at,
  failedRuns: failedOf(row),
  ...toMetered(row),
})

/** Condition on public_runs. $1: tenant, $2: start, $3: end, $4: publication. */
const askedIn = 'tenant_id = $1 AND created_at >= $2 AND created_at < $3 AND published_id = $4'
const requests = `
  SELECT count(*)::int AS total, count(*) FILTER (WHERE status = 'ok')::int AS ok,
    count(*) FILTER (WHERE status = 'error')::int AS error, count(*) FILTER (WHERE status = 'lost')::int AS lost,
    count(*) FILTER (WHERE finished_at IS NULL)::int AS open
  FROM public_runs WHERE ${askedIn}`
const conversations = `
  SELECT count(*)::int AS active, count(*) FILTER (WHERE conversation.created_at >= $2)::int AS started
  FROM (SELECT DISTINCT conversation_id FROM public_runs WHERE ${askedIn}) asked
  JOIN conversations conversation ON conversation.tenant_id = $1 AND conversation.id = asked.conversation_id`

// No run lasts longer than a day, so a run that finished in the range was requested at most a day before its start.
const runs = `
  SELECT ${binOf('recorded_at')}, ${meterColumns} FROM run_meters
  WHERE ${finishedIn} AND profile = $6 AND run_id IN (
    SELECT run_id FROM public_runs
    WHERE tenant_id = $1 AND created_at >= $2::timestamptz - interval '25 hours' AND created_at < $3 AND published_id = $5)
  GROUP BY bin`
const asked = `
  SELECT ${binOf('created_at')}, 'ingress' AS meter, count(*)::int AS amount FROM public_runs
  WHERE tenant_id = $1 AND created_at >= $2 AND created_at < $3 AND published_id = $5 GROUP BY bin`

type RunRow = MeterRow & Binned
type Asked = Binned & { readonly meter: 'ingress'; readonly amount: number }
type Requests = PublishedMetrics['requests']
type Conversations = PublishedMetrics['conversations']

/** Reads the metrics of a published agent. Requests are counted in public_runs, because the ingress meter is updated only some time later. */
async function readPublished(
  reader: Reader,
  tenantId: string,
  agent: Parameters<PublishedStats['metrics']>[1],
  grid: Grid,
): Promise<PublishedMetrics> {
  const inRange = [...rangeValues(tenantId, grid), agent.id]
  const inGrid = [...gridValues(tenantId, grid), agent.id]
  const [[request], [conversation], runRows, askedRows] = await reader.read<
    [Requests[], Conversations[], RunRow[], Asked[]]
  >(tenantId, [
    { text: requests, values: inRange },
    { text: conversations, values: inRange },
    { text: runs, values: [...inGrid, agent.profile] },
    { text: asked, values: inGrid },
  ])
  return {
    ...toRange(grid),
    publishedId: agent.id,
    profile: agent.profile,
    slug: agent.slug,
    requests: request!,
    conversations: conversation!,
    ...toMetered(sumOf(runRows)),
    failedRuns: 0,
    sandboxSeconds: 0,
    ingressRequests: request!.total,
    bucket: grid.bucket,
    buckets: fill(grid, runRows, askedRows).map((bucket) => ({ ...bucket, failedRuns: 0 })),
  }
}

const sumOf = (rows: readonly MeterRow[]): MeterRow | undefined =>
  rows.reduce<MeterRow | undefined>((sum, row) => (sum ? added(sum, row) : row), undefined)

const added = (a: MeterRow, b: MeterRow): MeterRow => ({
  total: a.total + b.total,
  ok: a.ok + b.ok,
  error: a.error + b.error,
  cancelled: a.cancelled + b.cancelled,
  interrupted: a.interrupted + b.interrupted,
  input_tokens: a.input_tokens + b.input_tokens,
  output_tokens: a.output_tokens + b.output_tokens,
  cached_tokens: a.cached_tokens + b.cached_tokens,
  tool_calls: a.tool_calls + b.tool_calls,
  cost_microcents: a.cost_microcents + b.cost_microcents,
  unpriced: a.unpriced + b.unpriced,
})

export const createPublishedStats = (reader: Reader): PublishedStats => ({
  async metrics(tenantId, agent, query) {
    return readPublished(reader, tenantId, agent, gridOf(query, await reader.now()))
  },
})
