import type { Database } from '#contracts/database'
import type { EndUserStore } from '#contracts/retention'
import { columns, type Row, toApproval } from './store.ts'

/** Approvals of one look: the arguments of each may be a megabyte. */
const atOnce = 20

/** What is kept of people here: what agents asked for on their behalf. What still waits goes with its run. */
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
    const [rows] = await database.batch<[object[]]>(tenantId, [{ text: gone, values: [tenantId, endUserId] }])
    return rows.length
  },
})
