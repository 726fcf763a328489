import type { Database } from '#contracts/database'
import { type EndUserStore, retentionErrors, unlessHeld } from '#contracts/retention'
import { columns, type Row, toApproval } from './store.ts'

/** Approvals per read: the arguments of each may have a megabyte. */
const atOnce = 20

/**
 * The personal data in approvals: what agents asked for on behalf of an end user. Approvals that still wait are not erased here; they go with their
 * runs.
 */
export const createEndUserData = (database: Database): EndUserStore => ({
  async *items(tenantId, endUserId) {
    for (let after = '', rows: Row[]; ; after = rows.at(-1)!.id) {
      const page = {
        text: `SELECT ${columns} FROM approvals WHERE tenant_id = $1 AND end_user_id = $2 AND id > $3 ORDER BY id LIMIT ${atOnce}`,
        values: [tenantId, endUserId, after],
      }
      ;[rows] = await database.as('reads').batch<[Row[]]>(tenantId, [page])
      if (rows.length === 0) return
      yield rows.map((row) => ({ ...toApproval(row) }))
    }
  },
  async erase(tenantId, endUserId) {
    const gone = `DELETE FROM approvals WHERE tenant_id = $1 AND end_user_id = $2 AND status <> 'waiting' RETURNING 1`
    return database.as('reads').tenant(tenantId, async (tx) => {
      if ((await tx.query(unlessHeld(tenantId))).length === 0) throw retentionErrors.legalHold()
      return (await tx.query({ text: gone, values: [tenantId, endUserId] })).length
    })
  },
})
