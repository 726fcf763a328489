import type { Database, TenantTx } from '#contracts/database'
import { type EndUserStore, retentionErrors, unlessHeld } from '#contracts/retention'
import { columns, type MemoryRow, personOf, toMemory } from './bank/rows.ts'
import { lock } from './bank/statements.ts'

/** Memories of one read, each of which may have two texts of 32 KB. */
const atOnce = 20
/** Rows of one transaction. */
const goneAtOnce = 200

/**
 * An end user's memories: those that name the end user, and those without a name from the sessions of the end user's chats and from the end user's
 * other runs, whose sessions may have runs of others. Finding the latter two needs the runs, so memories are deleted before runs.
 */
const theirs = `(m.end_user_id = $2 OR (m.end_user_id IS NULL AND (m.session_id IN (
    SELECT r.session_id FROM public_runs p JOIN runs r ON r.tenant_id = $1 AND r.id = p.run_id WHERE p.tenant_id = $1 AND p.end_user_id = $2
  ) OR m.run_id IN (SELECT run_id FROM run_people WHERE tenant_id = $1 AND person = sha256(convert_to($2, 'UTF8'))))))`

/** Exports and erases all memories of an end user, including superseded and expired ones. */
export const endUserMemories = (database: Database): EndUserStore => ({
  async *items(tenantId, endUserId) {
    for (let after = 0; ;) {
      const read = {
        text: `SELECT ${columns}, m.number::float8 AS number FROM memories m WHERE m.tenant_id = $1 AND ${theirs} AND m.number > $3::bigint
               ORDER BY m.number LIMIT ${atOnce}`,
        values: [tenantId, endUserId, after],
      }
      const [rows] = await database.as('reads').batch<[(MemoryRow & { number: number })[]]>(tenantId, [read])
      if (rows.length === 0) return
      yield rows.map(shown)
      after = rows.at(-1)!.number
    }
  },
  async erase(tenantId, endUserId, signal) {
    let deleted = 0
    for (let full = true; full && !signal.aborted;) {
      const gone = await database.as('reads').tenant(tenantId, (tx) => eraseSome(tx, endUserId))
      deleted += gone
      full = gone === goneAtOnce
    }
    return deleted
  },
})

async function eraseSome(tx: TenantTx, endUserId: string): Promise<number> {
  if ((await tx.query(unlessHeld(tx.tenantId))).length === 0) throw retentionErrors.legalHold()
  await tx.query({ ...lock, values: [tx.tenantId] })
  const gone = await tx.query<{ id: string }>({
    text: `DELETE FROM memories WHERE tenant_id = $1 AND id = ANY (ARRAY(
             SELECT m.id FROM memories m WHERE m.tenant_id = $1 AND ${theirs} LIMIT ${goneAtOnce})) RETURNING id`,
    values: [tx.tenantId, endUserId],
  })
  // Runs that began before the erasure must not bring memories of this end user back, and neither must mining their messages.
  const noted = {
    text: `INSERT INTO memory_erasures (tenant_id, person, at) VALUES ($1, $2, clock_timestamp())
           ON CONFLICT (tenant_id, person) DO UPDATE SET at = excluded.at`,
    values: [tx.tenantId, personOf(endUserId)],
  }
  await tx.query(noted)
  const recalls = { text: 'DELETE FROM memory_recalls WHERE tenant_id = $1 AND memory_id = ANY ($2::text[])' }
  await tx.query({ ...recalls, values: [tx.tenantId, gone.map(({ id }) => id)] })
  return gone.length
}

function shown(row: MemoryRow & { readonly number: number }): Record<string, unknown> {
  const { number: _, ...memory } = row
  return toMemory(memory)
}
