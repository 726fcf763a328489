import type { ErasedPart, TenantDataStore } from '#contracts/retention'
import type { Batch, Batches } from './batches.ts'

/** Some of what a plugin keeps elsewhere: nothing of it goes once the tenant is under a legal hold, as with rows. */
export const partOf =
  (name: string, some: (tenantId: string) => Promise<ErasedPart>, count?: CountPart): Batch =>
  async (tx) => {
    const { deleted, more } = await some(tx.tenantId)
    if (deleted > 0) await count?.(tx, name, deleted)
    return { deleted: { [name]: deleted }, next: more ? [] : undefined }
  }
type CountPart = (tx: Parameters<Batch>[0], name: string, rows: number) => Promise<unknown>

/** Deletes what plugins keep elsewhere for runs that are gone. Resolves to how much, by what users call it. */
export async function sweepData(
  batches: Batches,
  data: ReadonlyMap<string, TenantDataStore>,
  tenantId: string,
  signal: AbortSignal,
): Promise<Record<string, number>> {
  const deleted: Record<string, number> = {}
  for (const [name, { sweep }] of data) {
    if (sweep) Object.assign(deleted, await batches.all(tenantId, partOf(name, sweep), signal))
  }
  return deleted
}
