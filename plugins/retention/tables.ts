import type { SystemTx } from '#contracts/database'

interface Column {
  /** The name as SQL writes it, quoted where necessary. */
  readonly name: string
  readonly type: string
}

export interface Table {
  /** The name as SQL writes it, quoted where necessary. */
  readonly name: string
  readonly partitioned: boolean
  /** Names of the tables that its foreign keys refer to. */
  readonly refers: readonly string[]
  /** The columns of the primary key, without the tenant. */
  readonly key: readonly Column[]
  /** Columns of variable size. */
  readonly values: readonly Column[]
}

/** Finds every table with a column `tenant_id`, including those of plugins. Nobody has to list the tables, so none can be forgotten. */
const tablesWithTenants = `
  SELECT c.oid::regclass::text AS name, c.relkind = 'p' AS partitioned, coalesce((
      SELECT array_agg(k.confrelid::regclass::text) FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'f'
    ), '{}') AS refers, coalesce((
      SELECT jsonb_agg(jsonb_build_object('name', quote_ident(a.attname), 'type', format_type(a.atttypid, NULL)) ORDER BY k.place)
      FROM pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
      WHERE i.indrelid = c.oid AND i.indisprimary AND a.attname <> 'tenant_id'
    ), '[]') AS key, coalesce((
      SELECT jsonb_agg(jsonb_build_object('name', quote_ident(a.attname), 'type', format_type(a.atttypid, NULL)) ORDER BY a.attnum)
      FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attlen = -1 AND NOT a.attisdropped
    ), '[]') AS values
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
    AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
    AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped)
  ORDER BY 1`

/** All tables with tenant data. A table comes before the tables that its foreign keys refer to. */
export async function tenantedTables(tx: Pick<SystemTx, 'query'>): Promise<Table[]> {
  const tables = await tx.query<Table>({ text: tablesWithTenants })
  const ordered = new Set<Table>()
  const visit = (table: Table, path: readonly Table[]): void => {
    if (ordered.has(table) || path.includes(table)) return
    for (const other of tables) if (other.refers.includes(table.name)) visit(other, [...path, table])
    ordered.add(table)
  }
  for (const table of tables) visit(table, [])
  return [...ordered]
}
