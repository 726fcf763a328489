import type { BroadcastPage, BroadcastRevisions } from '#contracts/broadcast'
import type { PoolBook } from './pools.ts'
import type { ProfileBook } from './profiles.ts'

/** How far this runner has followed each tenant's profiles and pools. */
export interface BroadcastBook {
  take(tenantId: string, page: BroadcastPage): number
  behind(revisions: BroadcastRevisions): string[]
}

/**
 * Any number of conductors send pages, late, twice and in any order. A page that does not continue what is here is refused
 * by the answer, and changes that were taken already are passed over, so that nothing older can ever replace what is newer:
 * a profile that was deleted stays so without being remembered.
 */
export function createBroadcastBook(profiles: ProfileBook, pools: PoolBook): BroadcastBook {
  const revisions = new Map<string, number>()
  return {
    take(tenantId, { after, revision, changes }) {
      const at = revisions.get(tenantId) ?? 0
      if (at < after || revision <= at) return at
      for (const change of changes) {
        if (change.revision <= at) continue
        const { kind, key, profile, pool } = change
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
