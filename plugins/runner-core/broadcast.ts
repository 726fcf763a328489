import type { BroadcastPage, BroadcastRevisions } from '#contracts/broadcast'
import type { PoolBook } from './pools.ts'
import type { ProfileBook } from './profiles.ts'

/** How far this runner has followed each tenant's profiles and pools. */
export interface BroadcastBook {
  take(tenantId: string, page: BroadcastPage): number
  behind(revisions: BroadcastRevisions): string[]
}

/**
 * Any number of conductors send pages, late, twice and in any order. One that does not continue what is here, or ends before
 * it, changes nothing. One that begins before it and ends behind it was read when all of it was newer than what is here. So
 * nothing older ever replaces what is newer, and a profile that was deleted stays so without being remembered.
 */
export function createBroadcastBook(profiles: ProfileBook, pools: PoolBook): BroadcastBook {
  const revisions = new Map<string, number>()
  return {
    take(tenantId, { after, revision, changes }) {
      const at = revisions.get(tenantId) ?? 0
      if (at < after || revision <= at) return at
      for (const { kind, key, profile, pool } of changes) {
        if (kind === 'pool') {
          if (pool) pools.put(tenantId, pool)
          else pools.delete(tenantId, key)
        } else if (profile) profiles.put(tenantId, profile)
        else profiles.delete(tenantId, key)
      }
      revisions.set(tenantId, revision)
      return revision
    },
    behind: (newest) => Object.keys(newest).filter((tenantId) => (revisions.get(tenantId) ?? 0) < newest[tenantId]!),
  }
}
