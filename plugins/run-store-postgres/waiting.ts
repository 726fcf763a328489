import type { Database } from '#contracts/database'
import type { OnWanted } from './orphans.ts'

const listTenants = { name: 'queue-tenants', text: 'SELECT tenant_id, stamp::text AS stamp FROM run_queue_tenants' }
// What nobody may be about to start: the free sessions, and those that a waiting interrupt wants for itself.
const listWanted = {
  name: 'queue-wanted',
  text: `
    SELECT q.session_id, bool_or(q.front) OR s.status <> 'running' AS wanted
    FROM run_queue q JOIN sessions s ON s.tenant_id = q.tenant_id AND s.id = q.session_id
    WHERE q.tenant_id = $1 GROUP BY q.session_id, s.status`,
}
const forget = {
  name: 'queue-forget-tenant',
  text: 'DELETE FROM run_queue_tenants WHERE tenant_id = $1 AND stamp::text = $2',
}

interface WantedRow {
  readonly session_id: string
  readonly wanted: boolean
}

/**
 * Tells of every session that runs wait for and nobody executes in. A conductor may die between the end of one run and the
 * start of the next, or between an interrupt and what it is for: then all the others hear of it here.
 */
export async function sweepQueues(db: Database, onWanted: OnWanted): Promise<void> {
  const [tenants] = await db.systemBatch<[{ tenant_id: string; stamp: string }[]]>([listTenants])
  for (const { tenant_id: tenantId, stamp } of tenants) {
    const [sessions] = await db.batch<[WantedRow[]]>(tenantId, [{ ...listWanted, values: [tenantId] }])
    for (const { session_id, wanted } of sessions) if (wanted) onWanted(tenantId, session_id)
    if (sessions.length === 0) await db.systemBatch([{ ...forget, values: [tenantId, stamp] }])
  }
}
