import { isAppError } from '#kernel'
import type { Database, TenantTx } from '#contracts/database'
import { secretErrors } from '#contracts/secrets'
import { countByMasterKey, tenantsOf } from './census.ts'
import { type Keyring, resealed, type Wrapped } from './envelope.ts'
import { replaceSealed, type SealedColumn, sealedColumns, takeSealed } from './sealed.ts'

/** How the values of the installation hang on master keys. */
export interface KeyCount {
  readonly masterKey: string
  /** `unknown`: a key that this process does not have. */
  readonly state: 'current' | 'previous' | 'unknown'
  readonly values: number
}

export async function countKeys(database: Database, keyring: Keyring): Promise<readonly KeyCount[]> {
  const counts = new Map<string, number>([[keyring.current, 0]])
  if (keyring.previous !== undefined) counts.set(keyring.previous, 0)
  const columns = await sealedColumns(database)
  for (const tenantId of await tenantsOf(database)) {
    for (const [id, count] of await countByMasterKey(database, tenantId, columns))
      counts.set(id, (counts.get(id) ?? 0) + count)
  }
  return [...counts].map(([masterKey, values]) => ({
    masterKey,
    state: masterKey === keyring.current ? 'current' : masterKey === keyring.previous ? 'previous' : 'unknown',
    values,
  }))
}

interface Row {
  name: string
  version: number
  wrapped_key: Buffer
}
type Place = Pick<Row, 'name' | 'version'>

/** Values of one transaction: what is locked is locked for milliseconds, and a process that dies loses no more. */
const atOnce = 20

// A value that is deleted, or wrapped anew by another process, meanwhile is passed over.
const oldOnes = (tenantId: string, previous: string, behind: Place) => ({
  name: 'secrets_rewrap_take',
  text: `SELECT name, version, wrapped_key FROM secret_versions
         WHERE tenant_id = $1 AND master_key = $2 AND (name, version) > ($3, $4)
         ORDER BY name, version LIMIT ${atOnce} FOR UPDATE SKIP LOCKED`,
  values: [tenantId, previous, behind.name, behind.version],
})
const store = (tenantId: string, { name, version }: Place, { masterKey, wrappedKey }: Wrapped) => ({
  name: 'secrets_rewrap_store',
  text: `UPDATE secret_versions SET master_key = $4, wrapped_key = $5
         WHERE tenant_id = $1 AND name = $2 AND version = $3`,
  values: [tenantId, name, version, masterKey, wrappedKey],
})

export interface Rewrapped {
  readonly done: number
  /** Values that could not be read, and stay as they are. */
  readonly failed: number
}

/** One transaction of a kind of values: those behind `last`. */
type Batch<T> = Rewrapped & { readonly last: T | undefined }

/**
 * Wraps every data key that hangs on the previous master key under the current one, tenant by tenant, while everything runs: those
 * of secrets, and of what other plugins have sealed. Each value can be read with one of the two keys at any moment, and what was
 * done is not done again.
 */
export async function rewrap(
  database: Database,
  keyring: Keyring,
  onProgress: (so: Rewrapped) => Promise<void> | void,
): Promise<Rewrapped> {
  const { previous } = keyring
  let so: Rewrapped = { done: 0, failed: 0 }
  if (previous === undefined) return so
  const all = async <T>(tenantId: string, first: T, some: (tx: TenantTx, behind: T) => Promise<Batch<T>>) => {
    let behind: T | undefined = first
    while (behind !== undefined) {
      const from: T = behind
      const batch: Batch<T> = await database.tenant(tenantId, (tx) => some(tx, from))
      behind = batch.last
      if (behind === undefined) break
      so = { done: so.done + batch.done, failed: so.failed + batch.failed }
      await onProgress(so)
    }
  }
  const columns = await sealedColumns(database)
  for (const tenantId of await tenantsOf(database)) {
    const first: Place = { name: '', version: 0 }
    await all(tenantId, first, (tx, behind) => rewrapSome(tx, keyring, previous, behind))
    for (const column of columns) {
      await all(tenantId, '', (tx, behind) => resealSome(tx, keyring, previous, { column, behind }))
    }
  }
  return so
}

async function rewrapSome(tx: TenantTx, keyring: Keyring, previous: string, behind: Place): Promise<Batch<Place>> {
  const { tenantId } = tx
  const rows = await tx.query<Row>(oldOnes(tenantId, previous, behind))
  const failed = await moved(rows, async (row) => {
    const wrapped = { masterKey: previous, wrappedKey: row.wrapped_key }
    await tx.query(store(tenantId, row, keyring.rewrap({ tenantId, name: row.name, version: row.version }, wrapped)))
  })
  return { done: rows.length - failed, failed, last: rows.at(-1) }
}

async function resealSome(
  tx: TenantTx,
  keyring: Keyring,
  masterKey: string,
  { column, behind }: { readonly column: SealedColumn; readonly behind: string },
): Promise<Batch<string>> {
  const rows = await takeSealed(tx, column, { masterKey, behind, most: atOnce })
  const failed = await moved(rows, ({ name, sealed }) =>
    replaceSealed(tx, column, { sealed, by: resealed(keyring, tx.tenantId, name, sealed) }),
  )
  return { done: rows.length - failed, failed, last: rows.at(-1)?.sealed }
}

/** How many could not be read. */
async function moved<T>(rows: readonly T[], move: (row: T) => Promise<void>): Promise<number> {
  let failed = 0
  for (const row of rows) {
    try {
      await move(row)
    } catch (error) {
      if (!isAppError(error) || error.code !== secretErrors.secretUnreadable.row.code) throw error
      failed++
    }
  }
  return failed
}
