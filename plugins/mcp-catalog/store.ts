import { type Database, sqlState, type TenantTx } from '#contracts/database'
import { overLimit } from '#contracts/limits'
import type { Listing, Page } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import { type Entry, type EntryDocument, entryOf } from './entry.ts'
import { nameTaken, unknownEntry, unstorable } from './errors.ts'
import type { Failure, ServerInfo } from './schema.ts'

/** An entry with what is known of its server. */
export interface KnownEntry {
  readonly entry: Entry
  readonly createdAt: string | null
  readonly updatedAt: string | null
  readonly server: ServerInfo | null
  readonly toolCount: number | null
  readonly listedAt: string | null
  readonly latencyMs: number | null
  readonly succeededAt: string | null
  readonly failedAt: string | null
  readonly failure: Failure | null
}

interface Row extends Omit<KnownEntry, 'entry'> {
  name: string
  entry: EntryDocument
  active: boolean
  managedBy: Entry['managedBy']
}

const columns = `e.name, e.entry, e.active, e."managedBy", e."createdAt", e."updatedAt",
  d.server, d.tool_count AS "toolCount", d.listed_at AS "listedAt", d.latency_ms AS "latencyMs",
  d.succeeded_at AS "succeededAt", d.failed_at AS "failedAt", d.failure`

/** The tenant's entries and those of the role file; the role file wins when both have a name. $1 tenant, $2 names, $3 entries. */
const entries = `(
    SELECT name, entry, active, 'user' AS "managedBy", created_at AS "createdAt", updated_at AS "updatedAt"
    FROM mcp_entries WHERE tenant_id = $1 AND name <> ALL ($2::text[])
    UNION ALL
    SELECT c.name, c.entry, true, 'config', NULL, NULL FROM jsonb_to_recordset($3::jsonb) AS c(name text, entry jsonb)
  ) e`
const discoveries = `LEFT JOIN mcp_discoveries d ON d.tenant_id = $1 AND d.name = e.name
    AND d.address = coalesce(e.entry ->> 'transport', 'streamable-http') || ' ' || (e.entry ->> 'url')`

const toKnown =
  (config: readonly Entry[]) =>
  ({ name, entry, active, managedBy, ...known }: Row): KnownEntry => ({
    entry: config.find((one) => one.name === name) ?? entryOf(name, entry, active, managedBy),
    ...known,
  })

function documentOf(entry: Entry): Omit<Entry, 'name' | 'active' | 'managedBy'> {
  const { name: _, active: __, managedBy: ___, ...document } = entry
  return document
}
// Headers are left out, because the database does not need the operator's credentials.
const merged = (tenantId: string, config: readonly Entry[]): readonly unknown[] => [
  tenantId,
  config.map(({ name }) => name),
  JSON.stringify(config.map(({ name, url, transport }) => ({ name, entry: { url, transport } }))),
]

/** Sorted by name. `config` holds the entries of the role file that the tenant may use. */
export function listEntries(
  database: Database,
  tenantId: string,
  config: readonly Entry[],
  page: Page,
): Promise<Listing<KnownEntry>> {
  const list: ListSql = {
    columns: 'e.*',
    shown: columns,
    joined: discoveries,
    from: entries,
    named: 'e',
    // Most entries take some hundred bytes, the largest 32 KiB by default.
    bytes: `octet_length(e.entry::text) + coalesce(octet_length(d.server::text), 0) + coalesce(octet_length(d.failure::text), 0) + 300`,
    where: 'true',
    values: merged(tenantId, config),
    order: { 'e.name': 'text' },
    atOnce: 100,
  }
  return readList({ database, tenantId }, list, page, toKnown(config))
}

/** Rejects with 404 when there is no such entry. */
export async function findEntry(
  database: Database,
  tenantId: string,
  name: string,
  config: readonly Entry[],
): Promise<KnownEntry> {
  const find = {
    text: `SELECT ${columns} FROM ${entries} ${discoveries} WHERE e.name = $4`,
    values: [...merged(tenantId, config), name],
  }
  const [[row]] = await database.batch<[Row[]]>(tenantId, [find])
  if (!row) throw unknownEntry()
  return toKnown(config)(row)
}

/** Rejects with 409: `conflict` when the name is taken, `limit_exceeded` when the tenant has `most` entries already. */
export async function insertEntry(tx: TenantTx, entry: Entry, most: number): Promise<void> {
  // Each insert locks the tenant's row. So concurrent inserts are counted one after the other and cannot exceed the limit.
  await tx.query({ text: 'SELECT 1 FROM tenants WHERE id = $1 FOR NO KEY UPDATE', values: [tx.tenantId] })
  const insert = {
    text: `INSERT INTO mcp_entries (tenant_id, name, active, entry) SELECT $1, $2, $3, $4::jsonb
           WHERE (SELECT count(*) FROM mcp_entries WHERE tenant_id = $1) < $5
             OR EXISTS (SELECT FROM mcp_entries WHERE tenant_id = $1 AND name = $2)
           RETURNING 1`,
    values: [tx.tenantId, entry.name, entry.active, JSON.stringify(documentOf(entry)), most],
  }
  const inserted = await tx.query(insert).catch((error: unknown) => {
    throw sqlState(error) === '23505' ? nameTaken(entry.name) : refusal(error)
  })
  if (inserted.length === 0) throw overLimit('mcpEntries', most)
}

/** The stored entry, locked until the end of the transaction. 404 when there is none. */
export async function lockEntry(tx: TenantTx, name: string): Promise<Entry> {
  const [row] = await tx.query<{ entry: EntryDocument; active: boolean }>({
    text: 'SELECT entry, active FROM mcp_entries WHERE tenant_id = $1 AND name = $2 FOR UPDATE',
    values: [tx.tenantId, name],
  })
  if (!row) throw unknownEntry()
  return entryOf(name, row.entry, row.active, 'user')
}

export async function updateEntry(tx: TenantTx, entry: Entry): Promise<void> {
  const update = {
    text: 'UPDATE mcp_entries SET active = $3, entry = $4::jsonb, updated_at = now() WHERE tenant_id = $1 AND name = $2',
    values: [tx.tenantId, entry.name, entry.active, JSON.stringify(documentOf(entry))],
  }
  await tx.query(update).catch((error: unknown) => {
    throw refusal(error)
  })
}

const refusal = (error: unknown): unknown =>
  ['22P05', '22P02', '22021'].includes(sqlState(error) ?? '') ? unstorable(error) : error

/** Deletes the entry with its discovery and its access token. */
export async function deleteEntry(tx: TenantTx, name: string): Promise<void> {
  const values = [tx.tenantId, name]
  const deleted = await tx.query({
    text: 'DELETE FROM mcp_entries WHERE tenant_id = $1 AND name = $2 RETURNING 1',
    values,
  })
  if (deleted.length === 0) throw unknownEntry()
  await forgetServer(tx, name)
}

/** Deletes the discovery and the token of a former server of this name: they say nothing about the present one. */
export async function forgetServer(tx: TenantTx, name: string): Promise<void> {
  const values = [tx.tenantId, name]
  await tx.query({ text: 'DELETE FROM mcp_discoveries WHERE tenant_id = $1 AND name = $2', values })
  await tx.query({ text: 'DELETE FROM mcp_tokens WHERE tenant_id = $1 AND name = $2', values })
  await tx.query({ text: 'DELETE FROM mcp_oauth_clients WHERE tenant_id = $1 AND name = $2', values })
}

export async function countEntries(database: Database, tenantId: string): Promise<number> {
  const count = { text: 'SELECT count(*)::int AS count FROM mcp_entries WHERE tenant_id = $1', values: [tenantId] }
  const [[row]] = await database.batch<[{ count: number }[]]>(tenantId, [count])
  return row!.count
}
