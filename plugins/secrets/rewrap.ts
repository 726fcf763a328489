import { isAppError } from '#kernel'
import type { Database, TenantTx } from '#contracts/database'
import { secretErrors } from '#contracts/secrets'
import { countByMasterKey, tenantsOf } from './census.ts'
import { type Keyring, resealed, type Wrapped } from './envelope.ts'
import { replaceSealed, type SealedColumn, sealedColumns, takeSealed } from './sealed.ts'

/** How many values one master key encrypts. */
export interface KeyCount {
  readonly masterKey: string
  /** `unknown`: this process does not have the key. */
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

/** The values of one transaction. Rows are locked for milliseconds only, and a process that dies loses little work. */
const atOnce = 20

// Values that are deleted, or that another process has locked for its own rewrap, are skipped.
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
  /** Values that could not be decrypted. They stay as they are. */
  readonly failed: number
}

/** The result of one transaction. `last` is the last value that it visited; undefined when no value was left. */
type Batch<T> = Rewrapped & { readonly last: T | undefined }

/**
 * Moves every data key from the previous master key to the current one, while the server runs: those of secrets and of values that other plugins have
 * sealed. At any moment each value can be read with one of the two keys. A repeated run skips values that are done.
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

/** Resolves to the number of values that could not be decrypted. */
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
