import type { TenantTx } from '#contracts/database'
import type { Batch, Batches } from './batches.ts'
import { endedRuns } from './conversations.ts'

/**
 * Deletes the event logs of runs that are to be deleted, and of those that they delegated, if all of them have ended. It locks no session: logs may be
 * large, and starts in the sessions would wait meanwhile.
 */
export async function dropLogs(
  batches: Batches,
  tenantId: string,
  find: (tx: TenantTx) => Promise<readonly string[]>,
  signal: AbortSignal,
): Promise<void> {
  const runs = await batches.once(tenantId, async (tx) => endedRuns(tx, await find(tx)))
  if (runs.length > 0) await batches.all(tenantId, logsOf(runs), signal)
}

/** The place of the walk is that of the run in the list. */
const logsOf =
  (runs: readonly string[]): Batch =>
  async (tx, limit, place) => {
    const from = Number(place?.[0] ?? 0)
    const gone = await tx.query<{ nth: number }>({
      text: `DELETE FROM run_events e USING (
               SELECT wanted.nth, l.run_id, l.first_seq FROM unnest($2::text[]) WITH ORDINALITY AS wanted (id, nth)
               CROSS JOIN LATERAL (
                 SELECT id FROM runs WHERE tenant_id = $1 AND id = wanted.id AND finished_at IS NOT NULL OFFSET 0) r
               CROSS JOIN LATERAL (SELECT run_id, first_seq FROM run_events WHERE tenant_id = $1 AND run_id = r.id OFFSET 0) l
               ORDER BY wanted.nth LIMIT $3) due
             WHERE e.tenant_id = $1 AND e.run_id = due.run_id AND e.first_seq = due.first_seq RETURNING due.nth::int`,
      values: [tx.tenantId, runs.slice(from), limit],
    })
    const last = Math.max(1, ...gone.map(({ nth }) => nth))
    return { deleted: {}, next: gone.length < limit ? undefined : [String(from + last - 1)] }
  }
