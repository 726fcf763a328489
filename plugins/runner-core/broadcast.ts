import type { BroadcastPage, BroadcastRevisions } from '#contracts/broadcast'
import type { Profile } from '#contracts/profiles'
import type { BroadcastPool } from '#contracts/runner'

/** The profiles and pools that conductors broadcast to this runner, per tenant. They live in memory only: a conductor sends them again. */
export interface BroadcastBook {
  /** Resolves to how far this runner has followed the tenant then. */
  take(tenantId: string, page: BroadcastPage): number
  /** Those of the tenants that it is behind with. */
  behind(revisions: BroadcastRevisions): string[]
  /** An older version than the one that is here changes nothing. */
  putProfile(tenantId: string, profile: Profile): void
  deleteProfile(tenantId: string, name: string): void
  profile(tenantId: string, name: string): Profile | undefined
  profiles(tenantId: string): Profile[]
  putPool(tenantId: string, pool: BroadcastPool): void
  deletePool(tenantId: string, id: string): void
  pools(tenantId: string): BroadcastPool[]
}

/** `onProfile` is told of what is here now; undefined: it was deleted. */
export function createBroadcastBook(
  onProfile: (tenantId: string, name: string, profile: Profile | undefined) => void = () => {},
): BroadcastBook {
  const revisions = new Map<string, number>()
  const profiles = createShelf<Profile>()
  const pools = createShelf<BroadcastPool>()
  const book: BroadcastBook = {
    /**
     * Any number of conductors send pages, late, twice and in any order. One that does not continue what is here, or ends before
     * it, changes nothing. One that begins before it and ends behind it was read when all of it was newer than what is here. So
     * nothing older ever replaces what is newer, and a profile that was deleted stays so without being remembered.
     */
    take(tenantId, { after, revision, changes }) {
      const at = revisions.get(tenantId) ?? 0
      if (at < after || revision <= at) return at
      for (const { kind, key, profile, pool } of changes) {
        if (kind === 'pool') {
          if (pool) book.putPool(tenantId, pool)
          else book.deletePool(tenantId, key)
        } else if (profile) book.putProfile(tenantId, profile)
        else book.deleteProfile(tenantId, key)
      }
      revisions.set(tenantId, revision)
      return revision
    },
    behind: (newest) => Object.keys(newest).filter((tenantId) => (revisions.get(tenantId) ?? 0) < newest[tenantId]!),
    putProfile(tenantId, profile) {
      const held = profiles.get(tenantId, profile.name)
      if (held && isOlder(profile, held)) return
      profiles.put(tenantId, profile.name, profile)
      onProfile(tenantId, profile.name, profile)
    },
    deleteProfile(tenantId, name) {
      if (profiles.delete(tenantId, name)) onProfile(tenantId, name, undefined)
    },
    profile: profiles.get,
    profiles: (tenantId) => profiles.list(tenantId).sort((a, b) => (a.name < b.name ? -1 : 1)),
    putPool: (tenantId, pool) => pools.put(tenantId, pool.id, pool),
    deletePool: (tenantId, id) => void pools.delete(tenantId, id),
    pools: pools.list,
  }
  return book
}

interface Shelf<T> {
  get(tenantId: string, key: string): T | undefined
  put(tenantId: string, key: string, value: T): void
  delete(tenantId: string, key: string): boolean
  list(tenantId: string): T[]
}

function createShelf<T>(): Shelf<T> {
  const tenants = new Map<string, Map<string, T>>()
  return {
    get: (tenantId, key) => tenants.get(tenantId)?.get(key),
    put(tenantId, key, value) {
      tenants.set(tenantId, (tenants.get(tenantId) ?? new Map<string, T>()).set(key, value))
    },
    delete(tenantId, key) {
      const found = tenants.get(tenantId)
      const deleted = found?.delete(key) === true
      if (found?.size === 0) tenants.delete(tenantId)
      return deleted
    },
    list: (tenantId) => [...(tenants.get(tenantId)?.values() ?? [])],
  }
}

/** By version; by time when one of the two comes from a release without versions. */
const isOlder = (one: Profile, other: Profile): boolean =>
  one.version !== undefined && other.version !== undefined
    ? one.version < other.version
    : Date.parse(one.updatedAt) < Date.parse(other.updatedAt)
