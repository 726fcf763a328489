import { type AmountRow, amountsIn, amountTotals, finishedIn, rangeValues, toAmounts, toRange } from './meters.ts'
import type { Reader } from './reader.ts'
import type { UsageTotals } from './schema.ts'
import type { Range } from './window.ts'

const toolCalls = `SELECT coalesce(sum(tool_calls), 0)::bigint AS tool_calls FROM run_meters WHERE ${finishedIn}`
// A publication that has ended keeps its row, so its requests keep their name.
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
    { text: toolCalls, values },
    amountTotals(tenantId, range),
    { text: topPublished, values },
  ])
  return {
    ...toRange(range),
    totals: { toolCalls: calls!.tool_calls, ...toAmounts(amounts) },
    topPublishedAgents: top.map(({ amount, ...agent }) => ({ ...agent, ingressRequests: amount })),
  }
}
