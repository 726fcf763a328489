import type { Database, Statement, SystemTx } from '#contracts/database'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { TenantDataStore } from '#contracts/retention'
import { tenantIds } from '#kit'

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

/** Rows per statement: few at first, since most tables have few rows of most tenants, then as many as take about `targetMs`. */
const first = 200
const most = 50_000
const targetMs = 80
/** Bytes of a row besides its values of variable size: its header, numbers and times, and its index entries. */
const rowBytes = 128

interface RecountParts {
  readonly database: Database
  /** Data that plugins keep outside the database, and count themselves. */
  readonly data: ReadonlyMap<string, TenantDataStore>
  /** Pause between two statements. */
  readonly pauseMs: number
  readonly log: Pick<FastifyBaseLogger, 'info' | 'warn'>
}

interface Counted {
  readonly bytes: number
  readonly rows: number
  /** The key of the last row, as text. */
  readonly place: string[] | null
}

const read = { name: 'recount-read', text: 'SELECT bytes::float8 AS bytes FROM tenant_storage WHERE tenant_id = $1' }
// Bytes added during the count may or may not be included in it. They are added once more, because counting twice is better than not at all.
const write = {
  name: 'recount-write',
  text: `INSERT INTO tenant_storage AS s (tenant_id, bytes, counted_at)
         SELECT id, $2::bigint, now() FROM tenants WHERE id = $1 AND erased_at IS NULL
         ON CONFLICT (tenant_id) DO UPDATE SET bytes = $2::bigint + greatest(0, s.bytes - $3::bigint), counted_at = now()`,
}

/** Counts the stored bytes of each tenant anew, because the running sums are only approximate. If a tenant fails, its sum stays as it was. */
export async function recount({ database, data, pauseMs, log }: RecountParts, signal: AbortSignal): Promise<void> {
  const reads = database.as('reads')
  const tables = await database.system((tx) => tenantedTables(tx))
  const failures: unknown[] = []
  let counted = 0
  for await (const id of tenantIds(reads, 'stored')) {
    signal.throwIfAborted()
    try {
      await recountTenant(reads, id, tables, pauseMs, signal)
      for (const store of data.values()) await store.recount?.(id)
      counted++
    } catch (err) {
      if (signal.aborted) throw err
      log.warn({ err, tenant: id }, 'the stored bytes of a tenant could not be counted')
      failures.push(err)
    }
  }
  log.info({ tenants: counted }, 'the stored bytes of tenants were counted')
  if (failures.length > 0) throw new Error(`${failures.length} tenants failed`, { cause: failures[0] })
}

async function recountTenant(
  reads: Database,
  tenantId: string,
  tables: readonly Table[],
  pauseMs: number,
  signal: AbortSignal,
): Promise<void> {
  type Answer = [{ bytes: number }[], ...Counted[][]]
  const beginnings = tables.map((table) => sizes(tenantId, table, first))
  const [[before], ...pages] = await reads.batch<Answer>(tenantId, [{ ...read, values: [tenantId] }, ...beginnings])
  let bytes = 0
  for (const [i, [page]] of pages.entries()) {
    bytes += page!.bytes
    if (page!.rows < first || page!.place === null) continue
    for await (const more of rest(reads, tenantId, tables[i]!, page!.place, pauseMs, signal)) bytes += more
  }
  await reads.batch(tenantId, [{ ...write, values: [tenantId, Math.round(bytes), Math.round(before?.bytes ?? 0)] }])
}

/** The sizes of the rows after a given row, page by page. */
async function* rest(
  reads: Database,
  tenantId: string,
  table: Table,
  from: readonly string[],
  pauseMs: number,
  signal: AbortSignal,
): AsyncGenerator<number> {
  let limit = first
  for (let place: readonly string[] | null = from; place;) {
    await sleep(pauseMs, undefined, { signal })
    const began = performance.now()
    const [[page]]: [Counted[]] = await reads.batch<[Counted[]]>(tenantId, [sizes(tenantId, table, limit, place)])
    yield page!.bytes
    place = page!.rows < limit ? null : page!.place
    const tookMs = performance.now() - began
    if (tookMs > targetMs) limit = Math.max(first, Math.floor(limit / 2))
    else if (tookMs < targetMs / 3) limit = Math.min(most, limit * 2)
  }
}

/** Measures the next rows of a table, in the order of its key. The size of a large value is in its header, so no large value is read. */
function sizes(tenantId: string, { name, key, values }: Table, limit: number, place?: readonly string[]): Statement {
  const keys = key.map((column) => column.name)
  const columns = keys.map((column, i) => `${column} AS k${i}`)
  const after = place
    ? `AND (${keys.join(', ')}) > (${key.map(({ type }, i) => `$${i + 3}::text::${type}`).join(', ')})`
    : ''
  const order = (direction: string): string =>
    keys.length === 0 ? '' : `ORDER BY ${keys.map((_, i) => `k${i} ${direction}`).join(', ')}`
  const size = values.map(({ name: value, type }) =>
    type === 'text' || type === 'bytea'
      ? `coalesce(octet_length(${value}), 0)`
      : `coalesce(pg_column_size(${value}), 0)`,
  )
  return {
    text: `WITH page AS MATERIALIZED (
             SELECT ${[...columns, `${[rowBytes, ...size].join(' + ')} AS size`].join(', ')} FROM ${name}
             WHERE tenant_id = $1 ${after} ${order('ASC')} LIMIT $2)
           SELECT coalesce(sum(size), 0)::float8 AS bytes, count(*)::int AS rows,
             (SELECT ARRAY[${keys.map((_, i) => `k${i}::text`).join(', ')}]::text[] FROM page ${order('DESC')} LIMIT 1) AS place
           FROM page`,
    values: [tenantId, limit, ...(place ?? [])],
  }
}
