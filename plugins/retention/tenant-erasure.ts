import type { FastifyBaseLogger } from 'fastify'
import type { AuditTrail } from '#contracts/audit'
import type { Database, SystemTx, TenantTx } from '#contracts/database'
import type { Batch, Batches } from './batches.ts'
import { openAuditLog } from './kinds.ts'

interface Table {
  /** As SQL writes it, quoted where it has to be. */
  readonly name: string
  readonly partitioned: boolean
  /** Tables that its foreign keys refer to. */
  readonly refers: readonly string[]
}

/** Every table that says whose its rows are, those of plugins included: nothing has to be listed, and nothing can be forgotten. */
const tablesWithTenants = `
  SELECT c.oid::regclass::text AS name, c.relkind = 'p' AS partitioned, coalesce((
      SELECT array_agg(k.confrelid::regclass::text) FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'f'
    ), '{}') AS refers
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
    AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
    AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped)
  ORDER BY 1`

/** Those that refer come before those that are referred to. */
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

/** Deletes rows of one table, whatever its key is, and counts them in the tenant's row by the same transaction. */
const rowsOf =
  ({ name, partitioned }: Table): Batch =>
  async (tx, limit) => {
    await openAuditLog(tx)
    const [row, rows] = partitioned ? ['(tableoid, ctid) IN (', 'tableoid, ctid'] : ['ctid = ANY (ARRAY(', 'ctid']
    const close = partitioned ? ')' : '))'
    const gone = await tx.query({
      text: `DELETE FROM ${name} WHERE ${row}SELECT ${rows} FROM ${name} WHERE tenant_id = $1 LIMIT $2${close} RETURNING 1`,
      values: [tx.tenantId, limit],
    })
    if (gone.length > 0) await count(tx, name, gone.length)
    return { deleted: { [name]: gone.length }, next: gone.length < limit ? undefined : [] }
  }

const count = (tx: TenantTx, table: string, rows: number): Promise<object[]> =>
  tx.query({
    text: `UPDATE tenants SET erased_rows = coalesce(erased_rows, '{}')
             || jsonb_build_object($2::text, coalesce((erased_rows ->> $2)::bigint, 0) + $3::bigint) WHERE id = $1`,
    values: [tx.tenantId, table, rows],
  })

/** What is executed or waits is cancelled by the deletion of the tenant; until it has ended nothing is erased. */
const underWay = {
  text: `SELECT EXISTS (SELECT FROM runs WHERE tenant_id = $1 AND finished_at IS NULL) AS busy`,
}
/** Only the id stays, since ids are never given twice. */
const finish = {
  text: `UPDATE tenants SET name = id, limits = '{}', limits_at = clock_timestamp(), retention = NULL,
           erased_at = coalesce(erased_at, clock_timestamp()), erased_rows = coalesce(erased_rows, '{}')
         WHERE id = $1 AND NOT legal_hold RETURNING erased_rows`,
}

export interface TenantErasureParts {
  readonly database: Database
  readonly batches: Batches
  readonly trail: AuditTrail
  readonly log: Pick<FastifyBaseLogger, 'info'>
  /** The tenant in whose audit log it is put on record. */
  readonly operatorTenant: string
}

/**
 * Erases a deleted tenant: every row of every table that has its id. It may end anywhere and be done again. Resolves to the rows
 * by table, or undefined when something of it is still under way.
 */
export async function eraseTenant(
  { database, batches, trail, log, operatorTenant }: TenantErasureParts,
  tenantId: string,
  signal: AbortSignal,
): Promise<Readonly<Record<string, number>> | undefined> {
  const [[state]] = await database.batch<[{ busy: boolean }[]]>(tenantId, [{ ...underWay, values: [tenantId] }])
  if (state!.busy) return undefined
  const entry = await trail.begin({
    tenantId: operatorTenant,
    actor: { keyId: 'retention', role: 'operator' },
    action: 'tenants.erase',
    target: tenantId,
  })
  const tables = await database.system((tx) => tenantedTables(tx))
  const round = async (): Promise<number> => {
    let rows = 0
    for (const table of tables) {
      const deleted = await batches.all(tenantId, rowsOf(table), signal)
      rows += deleted[table.name] ?? 0
    }
    return rows
  }
  // A deleted row may leave another one: runners are told of profiles that are gone.
  while ((await round()) > 0) signal.throwIfAborted()
  const close = (): Promise<{ erased_rows: Record<string, number> }[]> =>
    batches.once(tenantId, (tx) => tx.query({ ...finish, values: [tenantId] }))
  await close()
  // From now on no sweep looks at the tenant; what one had just written goes as well.
  await round()
  const [{ erased_rows: rows } = { erased_rows: {} }] = await close()
  await trail.end(entry, { status: 200, detail: { rows } })
  log.info({ tenant: tenantId, rows }, 'a tenant was erased')
  return rows
}
