import type { Database } from '#contracts/database'
import { type EndUserStore, retentionErrors, unlessHeld } from '#contracts/retention'
import type { Accounts } from './connections/accounts.ts'
import { columns, type Connection, deleteConnection, lockConnection, markRevoked } from './connections/store.ts'
import { viewOf } from './connections.routes.ts'

/** The most connections of one page. A person has one for each toolkit. */
const atOnce = 50

/** The data of end users in this plugin: their connected accounts. Before an account is erased, it is revoked at its app. */
export function createEndUserData(database: Database, accounts: Pick<Accounts, 'revoke'>): EndUserStore {
  const list = async (tenantId: string, endUserId: string, after: string): Promise<Connection[]> => {
    const page = {
      text: `SELECT ${columns} FROM app_connections WHERE tenant_id = $1 AND end_user_id = $2 AND id > $3 ORDER BY id LIMIT ${atOnce}`,
      values: [tenantId, endUserId, after],
    }
    const [rows] = await database.as('reads').batch<[Connection[]]>(tenantId, [page])
    return rows
  }
  return {
    async *items(tenantId, endUserId) {
      for (let rows = await list(tenantId, endUserId, ''); rows.length > 0;) {
        yield rows.map(viewOf)
        rows = await list(tenantId, endUserId, rows.at(-1)!.id)
      }
    },
    async erase(tenantId, endUserId, signal) {
      let erased = 0
      for (let rows = await list(tenantId, endUserId, ''); rows.length > 0 && !signal.aborted;) {
        for (const { id } of rows) {
          const revoked = await database.tenant(tenantId, async (tx) => {
            if ((await tx.query(unlessHeld(tenantId))).length === 0) throw retentionErrors.legalHold()
            if (!(await lockConnection(tx, id))) return undefined
            await markRevoked(tx, id)
            return lockConnection(tx, id)
          })
          if (!revoked) continue
          await accounts.revoke(tenantId, revoked)
          await database.tenant(tenantId, (tx) => deleteConnection(tx, id))
          erased++
        }
        rows = await list(tenantId, endUserId, rows.at(-1)!.id)
      }
      return erased
    },
  }
}
