import type { TenantTx } from '#contracts/database'
import type { Prices } from '#contracts/prices'
import { parseLine, peekType } from '#contracts/run-event'
import type { FinishRun } from '#contracts/run-store'
import { createUsageTally } from '#contracts/usage'

// Only chunks that hold such an event leave the database: the text of a run is none of its meters.
const telling = {
  name: 'run-telling-chunks',
  text: `
    SELECT lines FROM run_events
    WHERE tenant_id = $1 AND run_id = $2
      AND (position('{"type":"usage"'::bytea IN lines) > 0 OR position('{"type":"tool_call"'::bytea IN lines) > 0)
    ORDER BY first_seq`,
}

/** What a run has used, from its stored log: whoever executed it is gone and tells no more. */
export async function tallyOf(
  tx: TenantTx,
  runId: string,
  prices: Prices | undefined,
): Promise<Pick<FinishRun, 'usage' | 'toolCalls'>> {
  const tally = createUsageTally(prices)
  let toolCalls = 0
  for (const { lines } of await tx.query<{ lines: Buffer }>({ ...telling, values: [tx.tenantId, runId] })) {
    for (let start = 0, end = lines.indexOf(0x0a); end >= 0; start = end + 1, end = lines.indexOf(0x0a, start)) {
      const line = lines.subarray(start, end)
      const type = peekType(line)
      if (type === 'tool_call') toolCalls++
      const event = type === 'usage' ? parseLine(line) : undefined
      if (event) tally.add(event)
    }
  }
  return { toolCalls, ...(tally.usage ? { usage: tally.usage } : {}) }
}
