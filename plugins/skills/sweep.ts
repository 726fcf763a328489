import type { Database, Statement } from '#contracts/database'
import { tenantIds } from '#kit'

/** For every tenant, deletes stagings that were never committed and versions that nobody needs. */
export async function sweepTenants(
  database: Database,
  store: { sweep(tenantId: string): Promise<number> },
  signal: AbortSignal,
): Promise<void> {
  for await (const id of tenantIds(database.as('reads'), 'stored')) {
    // A backlog goes in small transactions.
    while (!signal.aborted && (await store.sweep(id)) >= 100);
    if (signal.aborted) return
  }
}

/**
 * A legal hold keeps also what is needed no more. It counts for the tenant's stored bytes meanwhile. An earlier statement of the transaction has locked
 * the tenant, so that nothing goes any more when a hold was answered.
 */
export const notHeld = 'EXISTS (SELECT FROM tenants WHERE id = $1 AND NOT legal_hold)'

/** Versions to which nothing points: no name, no staging and no session that may still go on. */
const deleteUnused = (which: string): string => `
  DELETE FROM skill_contents WHERE tenant_id = $1 AND ${notHeld} AND digest = ANY (ARRAY(
    SELECT digest FROM skill_contents c WHERE tenant_id = $1
      AND NOT EXISTS (SELECT FROM skills s WHERE s.tenant_id = $1 AND s.digest = c.digest)
      AND NOT EXISTS (SELECT FROM skill_stagings t WHERE t.tenant_id = $1 AND t.digest = c.digest)
      AND NOT EXISTS (
        SELECT FROM skill_pins p JOIN sessions o ON o.tenant_id = $1 AND o.id = p.session_id
        WHERE p.tenant_id = $1 AND p.digest = c.digest AND o.status <> 'shutdown')
    ${which} LIMIT 100)) RETURNING 1`

/** Deletes every version that nobody needs, unless the tenant is under a legal hold. */
export const unused = (tenantId: string): Statement => ({ text: deleteUnused(''), values: [tenantId] })

/** The most unneeded versions of a tenant that may wait for the sweep. */
const mostUnused = 20

/**
 * Each write runs this itself, so that a flood of imports or new versions cannot fill the disk between two sweeps. The transaction has locked the
 * tenant, as every transaction does that stores a version and then refers to it.
 */
export const tooManyUnused = (tenantId: string): Statement => ({
  text: deleteUnused('ORDER BY created_at DESC, digest OFFSET $2'),
  values: [tenantId, mostUnused],
})

export const expired = (tenantId: string): Statement => ({
  text: `DELETE FROM skill_stagings WHERE tenant_id = $1 AND expires_at <= now() AND ${notHeld} RETURNING 1`,
  values: [tenantId],
})
