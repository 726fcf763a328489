import { linesOf } from '#kernel'
import type { TenantTx } from '#contracts/database'
import type { Prices } from '#contracts/prices'
import { parseLine, peekType } from '#contracts/run-event'
import { createSandboxUseReader } from '#contracts/sandbox-use'
import type { FinishRun } from '#contracts/run-store'
import { createUsageTally } from '#contracts/usage'

// Only chunks that hold such an event leave the database: the text of a run is none of its meters. The last one tells until when
// the run was heard of.
const telling = {
  name: 'run-telling-chunks',
  text: `
    SELECT first_seq, lines FROM run_events
    WHERE tenant_id = $1 AND run_id = $2
      AND (position('{"type":"usage"'::bytea IN lines) > 0 OR position('{"type":"tool_call"'::bytea IN lines) > 0
        OR position('"stage":"runner_accepted"'::bytea IN lines) > 0 OR position('"stage":"sandbox"'::bytea IN lines) > 0
        OR first_seq = (SELECT max(first_seq) FROM run_events WHERE tenant_id = $1 AND run_id = $2))
    ORDER BY first_seq`,
}

/** What a run has used, from its stored log: whoever executed it is gone and tells no more. */
export async function tallyOf(
  tx: TenantTx,
  runId: string,
  prices: Prices | undefined,
): Promise<Pick<FinishRun, 'usage' | 'toolCalls' | 'sandbox'>> {
  const tally = createUsageTally(prices)
  const sandboxes = createSandboxUseReader()
  let toolCalls = 0
  let first: Buffer | undefined
  let last: Buffer | undefined
  const rows = await tx.query<{ first_seq: number; lines: Buffer }>({ ...telling, values: [tx.tenantId, runId] })
  for (const { first_seq: firstSeq, lines } of rows) {
    let seq = firstSeq
    for (const line of linesOf(lines)) {
      first ??= line
      last = line
      sandboxes.read(line, seq++)
      const type = peekType(line)
      if (type === 'tool_call') toolCalls++
      const event = type === 'usage' ? parseLine(line) : undefined
      if (event) tally.add(event)
    }
  }
  return {
    toolCalls,
    ...(tally.usage ? { usage: tally.usage } : {}),
    ...(sandboxes.use ? { sandbox: { ...sandboxes.use, runSeconds: secondsBetween(first!, last!) } } : {}),
  }
}

/** Nobody may have looked for long after it was cut off, and its sandbox was idle since. */
function secondsBetween(first: Buffer, last: Buffer): number {
  const [from, to] = [first, last].map((line) => Date.parse(String(parseLine(line)?.['at'])))
  return Math.max(0, Math.round((to! - from!) / 1_000)) || 0
}
