import type { BroadcastChange, BroadcastRevisions } from '#contracts/broadcast'
import type { Database } from '#contracts/database'
import type { ChangeLog } from './broadcast.ts'
import { type PoolRow, toPool } from './pools.ts'
import { type ProfileRow, profileColumns, toProfile } from './store.ts'

/**
 * Limits of one page: its changes, and approximately its bytes of profiles. A conductor holds one page per runner at a time, and a runner parses it in
 * one step, however many values are in its bytes.
 */
const pageChanges = 200
const pageBytes = 256 * 1024
/** How many revisions are asked about at a time. */
const pageTenants = 5_000

/** The columns of a profile are null for a pool, and for a profile that is gone. */
type Row = ChangeRow & (ProfileRow | { [K in keyof ProfileRow]: null })
interface ChangeRow extends Pick<PoolRow, 'description' | 'runners' | 'runtimes'> {
  revision: number
  after: number
  kind: 'profile' | 'pool'
  key: string
  /** Null for a profile, and for a deleted pool. */
  pool_name: string | null
  pool_created_at: string
  more: boolean
}

// Never null: otherwise a deletion or a small change could overtake a change that does not fit into the page.
const size = 'coalesce(octet_length(p.document::text), 0)'

// One statement reads a change and its row at the same instant. A profile larger than a page is sent as a page by itself.
const readPage = {
  name: 'broadcast_page',
  text: `
    SELECT * FROM (
      SELECT c.*, ${profileColumns}, o.name AS pool_name, o.description, o.runners, o.runtimes, o.created_at AS pool_created_at,
        c.listed > row_number() OVER (ORDER BY c.revision) AS more,
        sum(${size}) OVER (ORDER BY c.revision) - ${size} AS before
      FROM (
        SELECT revision, kind, key, start.after, count(*) OVER () AS listed
        FROM broadcast_changes,
          (SELECT coalesce($2::bigint, (SELECT max(revision) - 1 FROM broadcast_changes WHERE tenant_id = $1)) AS after) start
        WHERE tenant_id = $1 AND revision > start.after ORDER BY revision LIMIT $3
      ) c
      LEFT JOIN profiles p ON c.kind = 'profile' AND p.tenant_id = $1 AND p.name = c.key
      LEFT JOIN pools o ON c.kind = 'pool' AND o.tenant_id = $1 AND o.id = c.key
    ) page
    WHERE before < $4 ORDER BY revision`,
}

// Deleted tenants are left out, because nobody can run anything for them.
const readRevisions = {
  name: 'broadcast_revisions',
  text: `SELECT id, broadcast_revision FROM tenants
         WHERE id > $1 AND broadcast_revision > 0 AND deleted_at IS NULL ORDER BY id LIMIT $2`,
}

const toChange = (row: Row): BroadcastChange => {
  const { revision, kind, key, pool_name: name, description, runners, runtimes, pool_created_at: created_at } = row
  const change = { revision, kind, key }
  if (kind === 'profile') return row.id === null ? change : { ...change, profile: toProfile(row) }
  return name === null
    ? change
    : { ...change, pool: toPool({ id: key, name, description, runners, runtimes, created_at }) }
}

/** Nobody waits for these reads, and a tenant whose requests have all of its connections should not miss its own changes. */
export function createChangeLog(database: Database): ChangeLog {
  const reads = database.as('reads')
  return {
    async page(tenantId, after) {
      const values = [tenantId, after ?? null, pageChanges, pageBytes]
      const [rows] = await reads.batch<[Row[]]>(tenantId, [{ ...readPage, values }])
      const [first] = rows
      const last = rows.at(-1)
      if (!first || !last) return undefined
      const page = { after: first.after, revision: last.revision, changes: rows.map(toChange) }
      return { page, more: last.more }
    },
    async *revisions() {
      for (let last = ''; ;) {
        const [rows] = await reads.systemBatch<[{ id: string; broadcast_revision: number }[]]>([
          { ...readRevisions, values: [last, pageTenants] },
        ])
        const revisions: BroadcastRevisions = Object.fromEntries(rows.map((row) => [row.id, row.broadcast_revision]))
        if (rows.length > 0) yield revisions
        if (rows.length < pageTenants) return
        last = rows.at(-1)!.id
      }
    },
  }
}
