import type { Database, Statement } from '#contracts/database'
import type { Listing, Page } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import type { ProfileDocument } from './document.ts'
import { unknownProfile, unknownVersion } from './errors.ts'
import type { ProfileVersion, VersionEntry } from './schema.ts'
import { toProfile } from './store.ts'

interface EntryRow {
  version: number
  created_at: string
  created_by: string | null
  restored_from: number | null
}
interface VersionRow extends EntryRow {
  profile_id: string
  document: ProfileDocument
  profile_created_at: string
}

const entryColumns = 'version, created_at, created_by, restored_from'

const toEntry = (row: EntryRow): VersionEntry => ({
  version: row.version,
  createdAt: row.created_at,
  ...(row.created_by === null ? {} : { createdBy: row.created_by }),
  ...(row.restored_from === null ? {} : { restoredFrom: row.restored_from }),
})

// The versions of a deleted profile are kept, but there is no profile to show them for.
const exists = (tenantId: string, name: string): Statement => ({
  text: 'SELECT FROM profiles WHERE tenant_id = $1 AND name = $2',
  values: [tenantId, name],
})

export async function listVersions(
  database: Database,
  tenantId: string,
  name: string,
  page: Page,
): Promise<Listing<VersionEntry>> {
  const list: ListSql = {
    columns: entryColumns,
    from: 'profile_versions',
    where: 'tenant_id = $1 AND profile = $2 AND EXISTS (SELECT FROM profiles WHERE tenant_id = $1 AND name = $2)',
    values: [tenantId, name],
    order: { version: 'int' },
    newestFirst: true,
    atOnce: 200,
  }
  const found = await readList({ database, tenantId }, list, page, toEntry)
  // Every existing profile has a version, so none means that there is no profile.
  if (found.total === 0) throw unknownProfile()
  return found
}

export async function findVersion(
  database: Database,
  tenantId: string,
  name: string,
  version: number,
): Promise<{ version: ProfileVersion; document: ProfileDocument }> {
  const [known, [row]] = await database.batch<[object[], VersionRow[]]>(tenantId, [
    exists(tenantId, name),
    {
      text: `SELECT ${entryColumns}, profile_id, document, profile_created_at FROM profile_versions
             WHERE tenant_id = $1 AND profile = $2 AND version = $3`,
      values: [tenantId, name, version],
    },
  ])
  if (known.length === 0) throw unknownProfile()
  if (!row) throw unknownVersion()
  const { profile_id: id, document, created_at: updated_at, profile_created_at: created_at } = row
  const profile = toProfile({ name, id, document, version, created_at, updated_at })
  return { version: { ...toEntry(row), profile }, document }
}
