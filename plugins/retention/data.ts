import { type Database, databaseErrors, type TenantTx } from '#contracts/database'
import { type AskStore, type ErasedPart, retentionErrors, type TenantDataStore } from '#contracts/retention'
import { Shares } from '#kit/turns'
import type { Batches, OutsideBatch } from './batches.ts'
import { inSeconds, type Patience } from './outside.ts'

/** Wraps a plugin's deletion outside the database as a batch. Like for rows, nothing is deleted once the tenant is under a legal hold. */
export const partOf =
  (name: string, some: (tx: TenantTx, ask: AskStore) => Promise<ErasedPart>, count?: CountPart): OutsideBatch =>
  async (tx, _limit, _place, ask) => {
    const { deleted, more } = await some(tx, ask)
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
  for (const [name, store] of data) {
    if (!store.sweep) continue
    const sweep = partOf(name, (...some) => store.sweep!(...some))
    Object.assign(deleted, await batches.outside(tenantId, name, sweep, signal))
  }
  return deleted
}

interface HoldParts {
  readonly database: Database
  readonly data: ReadonlyMap<string, TenantDataStore>
  readonly patience?: Patience
}

/**
 * Makes the function that tells the stores whether a tenant is under a legal hold. The row of the tenant is locked meanwhile, so that the last state is
 * told last. It rejects with 503 `hold_not_told`. Of a process one connection waits for stores at a time, and that for a few seconds.
 */
export function holdTeller({ database, data, patience }: HoldParts): (tenantId: string) => Promise<void> {
  const turns = new Shares({ together: 1, each: 1, mostWaiting: 100, busy: databaseErrors.databaseBusy })
  const tell = (tenantId: string): Promise<void> =>
    database.as('reads').tenant(tenantId, async (tx) => {
      const [tenant] = await tx.query<{ held: boolean }>({
        text: 'SELECT legal_hold AS held FROM tenants WHERE id = $1 AND erased_at IS NULL FOR SHARE',
        values: [tenantId],
      })
      if (!tenant) return
      const all = async (signal: AbortSignal): Promise<void> => {
        for (const store of data.values()) await store.hold?.(tenantId, tenant.held, signal)
      }
      await inSeconds(all, patience).catch((cause: unknown) => {
        throw retentionErrors.holdNotTold({ cause })
      })
    })
  return (tenantId) => turns.take(tenantId, () => tell(tenantId))
}
