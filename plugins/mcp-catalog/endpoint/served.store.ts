import type { Database } from '#contracts/database'
import type { ConfigEntries } from '../config-entries.ts'
import type { FoundTool } from '../discoveries.store.ts'
import { addressOf, type Entry, type EntryDocument, entryOf } from '../entry.ts'

/** The name of an active entry, and the approximate size of its tool definitions in bytes. */
export interface ServedName {
  readonly name: string
  readonly bytes: number
}

/** An active entry with the tools that its server was found to have. */
export interface ServedEntry {
  readonly entry: Entry
  /** Undefined when the server has never been asked. */
  readonly tools: readonly FoundTool[] | undefined
  readonly accepted: Readonly<Record<string, string>>
  readonly old: boolean
}

interface Row {
  readonly name: string
  readonly entry: EntryDocument | null
  readonly active: boolean | null
  readonly address: string | null
  readonly tools: readonly FoundTool[] | null
  readonly accepted: Readonly<Record<string, string>> | null
  readonly old: boolean
}

const byName = (a: ServedName, b: ServedName): number => (a.name < b.name ? -1 : 1)

/** All active entries of a tenant in order of their names, including those of the role file. */
export async function servedNames(
  database: Database,
  config: ConfigEntries,
  tenantId: string,
): Promise<readonly ServedName[]> {
  const list = {
    name: 'mcp_served_names',
    // `pg_column_size` gives the size on disk without reading the value.
    text: `SELECT n.name, coalesce(pg_column_size(d.tools), 0) AS bytes
           FROM (SELECT name FROM mcp_entries WHERE tenant_id = $1 AND active AND name <> ALL ($2::text[])
                 UNION ALL SELECT unnest($2::text[])) n
             LEFT JOIN mcp_discoveries d ON d.tenant_id = $1 AND d.name = n.name`,
    values: [tenantId, config.of(tenantId).map(({ name }) => name)],
  }
  const [rows] = await database.batch<[ServedName[]]>(tenantId, [list])
  return rows.toSorted(byName)
}

/** Those of the named entries that are active, in the order of their names. */
export async function servedEntries(
  database: Database,
  config: ConfigEntries,
  tenantId: string,
  names: readonly string[],
  keepMs: number,
): Promise<readonly ServedEntry[]> {
  const find = {
    name: 'mcp_served_entries',
    text: `SELECT n.name, e.entry, e.active, d.address, d.tools, d.accepted,
             coalesce(greatest(d.listed_at, d.failed_at) < now() - make_interval(secs => $3 / 1000.0), true) AS old
           FROM unnest($2::text[]) AS n(name)
             LEFT JOIN mcp_entries e ON e.tenant_id = $1 AND e.name = n.name
             LEFT JOIN mcp_discoveries d ON d.tenant_id = $1 AND d.name = n.name`,
    values: [tenantId, names, keepMs],
  }
  const [rows] = await database.batch<[Row[]]>(tenantId, [find])
  return rows
    .toSorted((a, b) => (a.name < b.name ? -1 : 1))
    .flatMap((row) => {
      const own = row.entry ? entryOf(row.name, row.entry, row.active === true, 'user') : undefined
      const entry = config.find(tenantId, row.name) ?? own
      if (!entry?.active) return []
      // Tools that were found at a former address of the entry do not count.
      const known = row.address === addressOf(entry)
      const tools = (known && row.tools) || undefined
      return [{ entry, tools, accepted: (known && row.accepted) || {}, old: row.old || !known }]
    })
}
