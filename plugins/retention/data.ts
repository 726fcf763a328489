import type { Database, TenantTx } from '#contracts/database'
import { type ErasedPart, retentionErrors, type TenantDataStore } from '#contracts/retention'
import type { Batch, Batches } from './batches.ts'

/** Wraps a plugin's deletion outside the database as a batch. Like for rows, nothing is deleted once the tenant is under a legal hold. */
export const partOf =
  (name: string, some: (tx: TenantTx) => Promise<ErasedPart>, count?: CountPart): Batch =>
  async (tx) => {
    const { deleted, more } = await some(tx)
    if (deleted > 0) await count?.(tx, name, deleted)
    return { deleted: { [name]: deleted }, next: more ? [] : undefined }
  }
type CountPart = (tx: TenantTx, name: string, rows: number) => Promise<unknown>

/** Deletes data that plugins keep outside the database for runs that no longer exist. Resolves to the deleted amounts, by the names that users know. */
export async function sweepData(
  batches: Batches,
  data: ReadonlyMap<string, TenantDataStore>,
  tenantId: string,
  signal: AbortSignal,
): Promise<Record<string, number>> {
  const deleted: Record<string, number> = {}
  for (const [name, { sweep }] of data) {
    if (sweep) Object.assign(deleted, await batches.outside(tenantId, partOf(name, sweep), signal))
  }
  return deleted
}

/** Tells the stores whether the tenant is under a legal hold. Its row is locked meanwhile, so that the last state is told last. */
export async function tellHold(
  database: Database,
  data: ReadonlyMap<string, TenantDataStore>,
  tenantId: string,
): Promise<void> {
  await database.as('reads').tenant(tenantId, async (tx) => {
    const [tenant] = await tx.query<{ held: boolean }>({
      text: 'SELECT legal_hold AS held FROM tenants WHERE id = $1 AND erased_at IS NULL FOR SHARE',
      values: [tenantId],
    })
    if (!tenant) return
    for (const store of data.values())
      await store.hold?.(tenantId, tenant.held).catch((cause: unknown) => {
        throw retentionErrors.holdNotTold({ cause })
      })
  })
}
