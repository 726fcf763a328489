import type { Database, Statement, TenantTx } from '#contracts/database'

/**
 * A column in which a plugin stores sealed values. The column's comment in the database marks it, so this plugin need not know the tables of others.
 */
export interface SealedColumn {
  /** Quoted for SQL. */
  readonly table: string
  readonly column: string
  /** An SQL expression for the name under which a row's value was sealed. */
  readonly name: string
}

interface Row {
  readonly table: string
  readonly column: string
  readonly said: string
}

const form = /^sealed: ([a-z-]+\/)\{([a-z_]+)\}$/

/** All marked columns. Throws for a comment that starts with `sealed:` but does not say how the name is formed. */
export async function sealedColumns(database: Database): Promise<readonly SealedColumn[]> {
  const find = {
    name: 'secrets_sealed_columns',
    text: `SELECT quote_ident(c.relname) AS table, quote_ident(a.attname) AS column, d.description AS said
           FROM pg_description d JOIN pg_class c ON c.oid = d.objoid
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid
           WHERE d.classoid = 'pg_class'::regclass AND d.description LIKE 'sealed:%' AND pg_table_is_visible(c.oid)
           ORDER BY 1, 2`,
  }
  const [rows] = await database.systemBatch<[Row[]]>([find])
  return rows.map(({ table, column, said }) => {
    const [, prefix, of] = form.exec(said) ?? []
    if (of === undefined)
      throw new Error(`the comment of ${table}.${column} does not say what its name is made of: ${said}`)
    return { table, column, name: `'${prefix}' || "${of}"` }
  })
}

/** A query for the number of a tenant's sealed values by the id of their master key. */
export const sealedByMasterKey = (tenantId: string, { table, column }: SealedColumn): Statement => ({
  text: `SELECT split_part(${column}, '.', 1) AS master_key, count(*)::int AS count
         FROM ${table} WHERE tenant_id = $1 AND ${column} IS NOT NULL GROUP BY 1`,
  values: [tenantId],
})

export interface SealedValue {
  readonly name: string
  readonly sealed: string
}

/** Locks and returns the next values after `behind` that a master key encrypts. Values that another transaction has locked are skipped. */
export async function takeSealed(
  tx: TenantTx,
  { table, column, name }: SealedColumn,
  { masterKey, behind, most }: { readonly masterKey: string; readonly behind: string; readonly most: number },
): Promise<readonly SealedValue[]> {
  return tx.query<SealedValue>({
    text: `SELECT ${name} AS name, ${column} AS sealed FROM ${table}
           WHERE tenant_id = $1 AND starts_with(${column}, $2) AND ${column} COLLATE "C" > $3
           ORDER BY ${column} COLLATE "C" LIMIT $4 FOR UPDATE SKIP LOCKED`,
    values: [tx.tenantId, `${masterKey}.`, behind, most],
  })
}

/** Each value was sealed with its own random nonce, so the old value identifies its row. */
export async function replaceSealed(
  tx: TenantTx,
  { table, column }: SealedColumn,
  { sealed, by }: { readonly sealed: string; readonly by: string },
): Promise<void> {
  await tx.query({
    text: `UPDATE ${table} SET ${column} = $3 WHERE tenant_id = $1 AND ${column} = $2`,
    values: [tx.tenantId, sealed, by],
  })
}
