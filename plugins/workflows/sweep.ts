import { setImmediate as turn } from 'node:timers/promises'
import type { Database } from '#contracts/database'
import type { Wake, WakeUps } from '#contracts/jobs'
import { tenantIds } from '#kit'

/** So many runs and schedules of a tenant in one sweep; the next one has the others. */
const atOnce = 1_000

/**
 * Looks for what nobody was woken for: running workflows in which nothing has moved for a while, and schedules whose time is past.
 * Wake-ups are not lost by themselves; this is for tables that were restored from a backup, or emptied by hand.
 */
export async function sweep(database: Database, wakeUps: WakeUps, signal: AbortSignal): Promise<void> {
  for await (const tenantId of tenantIds(database, 'active')) {
    if (signal.aborted) return
    const [runs, agents, schedules] = await database.batch<[{ id: string }[], { id: string }[], { id: string }[]]>(
      tenantId,
      [
        {
          text: `SELECT id FROM workflow_runs WHERE tenant_id = $1 AND status = 1 AND moved_at < now() - interval '10 minutes'
               ORDER BY moved_at LIMIT ${atOnce}`,
          values: [tenantId],
        },
        {
          text: `SELECT waits_for AS id FROM workflow_nodes WHERE tenant_id = $1 AND waits_for IS NOT NULL AND status = 2 AND type = 'agent'
                 AND started_at < now() - interval '10 minutes' LIMIT ${atOnce}`,
          values: [tenantId],
        },
        {
          text: `SELECT id FROM workflow_schedules WHERE tenant_id = $1 AND status = 'active' AND next_at < now() - interval '2 minutes'
               LIMIT ${atOnce}`,
          values: [tenantId],
        },
      ],
    )
    const wakes: Wake[] = [
      ...runs.map(({ id }) => ({ tenantId, what: { tenantId, runId: id }, key: id })),
      ...agents.map(({ id }) => ({ tenantId, what: { tenantId, agent: id }, key: id })),
      ...schedules.map(({ id }) => ({ tenantId, what: { tenantId, scheduleId: id }, key: `${id}/sweep` })),
    ]
    await wakeUps.send(wakes)
    await turn()
  }
}
