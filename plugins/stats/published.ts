import type { PublishedMetrics, PublishedStats } from '#contracts/stats'
import { finishedIn, meterColumns, type MeterRow, rangeValues, toMetered, toRange } from './meters.ts'
import type { Reader } from './reader.ts'
import { type Binned, binOf, fill, gridValues } from './series.ts'
import { type Grid, gridOf } from './window.ts'

/** $4: the publication. */
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

// A run that finished in this time was asked for a day earlier at most: no run lasts longer.
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

/** Requests are counted from their own table, because the ingress meter is filled from it some time later. */
export async function readPublished(
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
