import { isAppError } from '#kernel'
import type { Database, TenantTx } from '#contracts/database'
import { secretErrors } from '#contracts/secrets'
import { countByMasterKey, tenantsOf } from './census.ts'
import type { Keyring, Wrapped } from './envelope.ts'

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
  for (const tenantId of await tenantsOf(database)) {
    for (const [id, count] of await countByMasterKey(database, tenantId)) counts.set(id, (counts.get(id) ?? 0) + count)
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

/**
 * Wraps every data key that hangs on the previous master key under the current one, tenant by tenant, while everything runs: each
 * value can be read with one of the two keys at any moment, and what was done is not done again.
 */
export async function rewrap(
  database: Database,
  keyring: Keyring,
  onProgress: (so: Rewrapped) => Promise<void> | void,
): Promise<Rewrapped> {
  const { previous } = keyring
  let so: Rewrapped = { done: 0, failed: 0 }
  if (previous === undefined) return so
  for (const tenantId of await tenantsOf(database)) {
    let behind: Place | undefined = { name: '', version: 0 }
    while (behind) {
      const from: Place = behind
      const batch = await database.tenant(tenantId, (tx) => rewrapSome(tx, keyring, previous, from))
      behind = batch.last
      if (!behind) break
      so = { done: so.done + batch.done, failed: so.failed + batch.failed }
      await onProgress(so)
    }
  }
  return so
}

async function rewrapSome(
  tx: TenantTx,
  keyring: Keyring,
  previous: string,
  behind: Place,
): Promise<Rewrapped & { readonly last: Place | undefined }> {
  const { tenantId } = tx
  const rows = await tx.query<Row>(oldOnes(tenantId, previous, behind))
  let failed = 0
  for (const row of rows) {
    const wrapped = { masterKey: previous, wrappedKey: row.wrapped_key }
    try {
      await tx.query(store(tenantId, row, keyring.rewrap({ tenantId, name: row.name, version: row.version }, wrapped)))
    } catch (error) {
      if (!isAppError(error) || error.code !== secretErrors.secretUnreadable.row.code) throw error
      failed++
    }
  }
  return { done: rows.length - failed, failed, last: rows.at(-1) }
}
