import { type Database, sqlState, type TenantTx } from '#contracts/database'
import { overLimit } from '#contracts/limits'
import type { Listing, Page } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import { keyOf } from './resolver.ts'
import type { Sealed } from './envelope.ts'
import { nameTaken, unknownSecret } from './errors.ts'
import type { SecretMetadata, SecretRead, SecretVersion, Warning } from './schema.ts'

interface MetadataRow {
  name: string
  key: string | null
  version: number
  created_at: string
  updated_at: string
  expires_at: string | null
  warning: Warning | null
  last_read_at: string | null
}

/** How long before its expiry a secret is reported as `expires_soon`. */
export const warnedBefore = `interval '14 days'`
const columns = `s.name, s.key, s.version, s.created_at, s.updated_at, v.expires_at,
  CASE WHEN v.expires_at <= now() THEN 'expired' WHEN v.expires_at <= now() + ${warnedBefore} THEN 'expires_soon' END AS warning,
  (SELECT max(r.last_read_at) FROM secret_reads r WHERE r.tenant_id = s.tenant_id AND r.name = s.name) AS last_read_at`
/** Joins each secret with its current version. */
export const withCurrent =
  'secrets s JOIN secret_versions v ON v.tenant_id = s.tenant_id AND v.name = s.name AND v.version = s.version'

const toMetadata = (row: MetadataRow): SecretMetadata => ({
  name: row.name,
  ...(row.key === null ? {} : { key: row.key }),
  version: row.version,
  createdAt: row.created_at,
  updatedAt: row.updated_at,
  ...(row.expires_at === null ? {} : { expiresAt: row.expires_at }),
  ...(row.warning === null ? {} : { warning: row.warning }),
  ...(row.last_read_at === null ? {} : { lastReadAt: row.last_read_at }),
})

/** A value that is about to be stored. */
interface NewVersion {
  readonly sealed: Sealed
  readonly expiresAt: string | null
  readonly createdBy: string
  readonly restoredFrom?: number
}

/** Sorted by name. */
export function listSecrets(database: Database, tenantId: string, page: Page): Promise<Listing<SecretMetadata>> {
  const list: ListSql = {
    columns,
    from: withCurrent,
    counted: 'secrets s',
    where: 's.tenant_id = $1',
    values: [tenantId],
    order: { 's.name': 'text' },
    atOnce: 200,
  }
  return readList({ database, tenantId }, list, page, toMetadata)
}

/** Rejects with 404 when there is no such secret. */
export async function findMetadata(tx: TenantTx, name: string): Promise<SecretMetadata> {
  const [row] = await tx.query<MetadataRow>({
    text: `SELECT ${columns} FROM ${withCurrent} WHERE s.tenant_id = $1 AND s.name = $2`,
    values: [tx.tenantId, name],
  })
  if (!row) throw unknownSecret()
  return toMetadata(row)
}

/** Adds a secret without a value. Rejects with 409: `conflict` when the name is taken, `limit_exceeded` when the tenant has `most` secrets already. */
export async function insertSecret(tx: TenantTx, name: string, key: string | null, most: number): Promise<void> {
  // Each insert locks the tenant's row. So concurrent inserts are counted one after the other and cannot exceed the limit.
  await tx.query({ text: 'SELECT 1 FROM tenants WHERE id = $1 FOR NO KEY UPDATE', values: [tx.tenantId] })
  const insert = {
    text: `INSERT INTO secrets (tenant_id, name, key, version) SELECT $1, $2, $3, 1
           WHERE (SELECT count(*) FROM secrets WHERE tenant_id = $1) < $4
             OR EXISTS (SELECT FROM secrets WHERE tenant_id = $1 AND name = $2)
           RETURNING 1`,
    values: [tx.tenantId, name, key, most],
  }
  const inserted = await tx.query(insert).catch((error: unknown) => {
    throw sqlState(error) === '23505' ? nameTaken(name) : error
  })
  if (inserted.length === 0) throw overLimit('secrets', most)
}

/** Increments the version and resolves to it. An undefined `key` leaves the stored one. 404 when there is no such secret. */
export async function nextVersion(tx: TenantTx, name: string, key?: string | null): Promise<number> {
  const [row] = await tx.query<{ version: number }>({
    text: `UPDATE secrets SET version = version + 1, updated_at = now(), key = CASE WHEN $3 THEN $4 ELSE key END
           WHERE tenant_id = $1 AND name = $2 RETURNING version`,
    values: [tx.tenantId, name, key !== undefined, key ?? null],
  })
  if (!row) throw unknownSecret()
  return row.version
}

/** Stores the value of a version, deletes versions that are `keep` or more behind, and announces the change to other processes. */
export async function insertVersion(
  tx: TenantTx,
  name: string,
  version: number,
  { sealed, expiresAt, createdBy, restoredFrom }: NewVersion,
  keep: number,
): Promise<void> {
  const { masterKey, wrappedKey, ciphertext } = sealed
  await tx.query({
    text: `INSERT INTO secret_versions
             (tenant_id, name, version, master_key, wrapped_key, ciphertext, expires_at, restored_from, created_by)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
    values: [tx.tenantId, name, version, masterKey, wrappedKey, ciphertext, expiresAt, restoredFrom ?? null, createdBy],
  })
  await tx.query({
    text: 'DELETE FROM secret_versions WHERE tenant_id = $1 AND name = $2 AND version <= $3',
    values: [tx.tenantId, name, version - keep],
  })
  await announce(tx, name)
}

/** The channel on which conductors hear that a secret was changed or deleted. */
export const channel = 'secrets'
const announce = (tx: TenantTx, name: string): Promise<object[]> =>
  tx.query({ text: 'SELECT pg_notify($1, $2)', values: [channel, keyOf(tx.tenantId, name)] })

/** Deletes a secret with its values and its record of readers. */
export async function deleteSecret(tx: TenantTx, name: string): Promise<void> {
  const deleted = await tx.query({
    text: 'DELETE FROM secrets WHERE tenant_id = $1 AND name = $2 RETURNING 1',
    values: [tx.tenantId, name],
  })
  if (deleted.length === 0) throw unknownSecret()
  await announce(tx, name)
}

export async function countSecrets(database: Database, tenantId: string): Promise<number> {
  const count = { text: 'SELECT count(*)::int AS count FROM secrets WHERE tenant_id = $1', values: [tenantId] }
  const [[row]] = await database.batch<[{ count: number }[]]>(tenantId, [count])
  return row!.count
}

interface VersionRow {
  version: number
  created_at: string
  created_by: string
  expires_at: string | null
  restored_from: number | null
  master_key: string
}

/** Newest first. 404 when there is no such secret. */
export async function listVersions(
  database: Database,
  tenantId: string,
  name: string,
  page: Page,
): Promise<Listing<SecretVersion>> {
  const list: ListSql = {
    columns: 'version, created_at, created_by, expires_at, restored_from, master_key',
    from: 'secret_versions',
    where: 'tenant_id = $1 AND name = $2',
    values: [tenantId, name],
    order: { version: 'int' },
    newestFirst: true,
    atOnce: 200,
  }
  const found = await readList({ database, tenantId }, list, page, (row: VersionRow) => ({
    version: row.version,
    createdAt: row.created_at,
    createdBy: row.created_by,
    ...(row.expires_at === null ? {} : { expiresAt: row.expires_at }),
    ...(row.restored_from === null ? {} : { restoredFrom: row.restored_from }),
    masterKey: row.master_key,
  }))
  // Every secret has at least one version, so an empty list means that there is no such secret.
  if (found.total === 0) throw unknownSecret()
  return found
}

interface ReadRow {
  reader: string
  version: number
  reads: number
  first_read_at: string
  last_read_at: string
}

/** Sorted by reader. 404 when there is no such secret. */
export async function listReads(
  database: Database,
  tenantId: string,
  name: string,
  page: Page,
): Promise<Listing<SecretRead>> {
  const list: ListSql = {
    columns: 'reader, version, reads, first_read_at, last_read_at',
    from: 'secret_reads',
    where: 'tenant_id = $1 AND name = $2',
    values: [tenantId, name],
    order: { reader: 'text' },
    atOnce: 200,
  }
  const found = await readList({ database, tenantId }, list, page, (row: ReadRow) => ({
    reader: row.reader,
    version: row.version,
    reads: row.reads,
    firstReadAt: row.first_read_at,
    lastReadAt: row.last_read_at,
  }))
  if (found.total === 0) await database.tenant(tenantId, (tx) => findMetadata(tx, name))
  return found
}
