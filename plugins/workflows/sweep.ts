import { setImmediate as turn } from 'node:timers/promises'
import type { Database } from '#contracts/database'
import type { Wake, WakeUps } from '#contracts/jobs'
import { tenantIds } from '#kit'

/** How many runs and schedules of a tenant one sweep wakes. Runs are picked at random, so the next sweep gets others. */
const atOnce = 1_000

/**
 * Wakes runs that have not moved for a while although something of them is due, and schedules whose time has passed. Runs that only wait are skipped,
 * since thousands of them would hide the one that hangs. No wake-up gets lost in normal operation; this is for tables that were restored from a
 * backup, or emptied by hand.
 */
export async function sweep(database: Database, wakeUps: WakeUps, signal: AbortSignal): Promise<void> {
  for await (const tenantId of tenantIds(database, 'active')) {
    if (signal.aborted) return
    type Over = { id: string; run_id: string; node: string; type: string }
    const [runs, over, schedules] = await database.batch<[{ id: string }[], Over[], { id: string }[]]>(tenantId, [
      {
        text: `SELECT id FROM workflow_runs r WHERE tenant_id = $1 AND status = 1 AND moved_at < now() - interval '10 minutes'
                 AND (unfinished = 0 OR EXISTS (SELECT FROM workflow_nodes n WHERE n.tenant_id = $1 AND n.run_id = r.id
                   AND (n.status = 1 AND coalesce(n.due_at, '-infinity') < now() OR n.status = 2 AND least(n.due_at, n.lease_until) < now())))
               ORDER BY random() LIMIT ${atOnce}`,
        values: [tenantId],
      },
      {
        text: `SELECT n.waits_for AS id, n.run_id, n.id AS node, n.type FROM workflow_nodes n
                 LEFT JOIN runs a ON n.type = 'agent' AND a.tenant_id = $1 AND a.id = n.waits_for
                 LEFT JOIN workflow_runs c ON n.type = 'workflow' AND c.tenant_id = $1 AND c.id = n.waits_for
                 WHERE n.tenant_id = $1 AND n.waits_for IS NOT NULL AND n.status = 2 AND n.type IN ('agent', 'workflow')
                 AND n.started_at < now() - interval '10 minutes'
                 AND (n.type = 'agent' AND (a.id IS NULL OR a.finished_at IS NOT NULL) OR c.status > 2) ORDER BY random() LIMIT ${atOnce}`,
        values: [tenantId],
      },
      {
        text: `SELECT id FROM workflow_schedules WHERE tenant_id = $1 AND status = 'active' AND next_at < now() - interval '2 minutes'
               LIMIT ${atOnce}`,
        values: [tenantId],
      },
    ])
    const wakes: Wake[] = [
      ...runs.map(({ id }) => ({ tenantId, what: { tenantId, runId: id }, key: id })),
      ...over.map(({ id, run_id: runId, node, type }) => ({
        tenantId,
        what: type === 'agent' ? { tenantId, agent: id } : { tenantId, runId, node, child: id },
        key: `${id}/sweep`,
      })),
      ...schedules.map(({ id }) => ({ tenantId, what: { tenantId, scheduleId: id }, key: `${id}/sweep` })),
    ]
    await wakeUps.send(wakes)
    await turn()
  }
}
