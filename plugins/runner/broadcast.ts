import type { BroadcastPage, BroadcastRevisions } from '#contracts/broadcast'
import type { Profile } from '#contracts/profiles'
import type { BroadcastPool } from '#contracts/runner'
import { TenantCache } from '#kit'

type OnProfile = (tenantId: string, name: string, profile: Profile | undefined) => void

/** Bytes of memory for the profiles, and for the pools, of all tenants together. */
const mostProfileBytes = 128 * 1024 * 1024
const mostPoolBytes = 16 * 1024 * 1024

/**
 * The profiles and pools that conductors broadcast to this runner, per tenant. They live only in memory, because a conductor sends them again after
 * a restart. Those that have no room are forgotten until they change: runs bring the profile of their session, so only whoever creates a session at
 * this runner by the name of its profile is told that there is none.
 */
export class BroadcastReceiver {
  readonly #revisions = new Map<string, number>()
  readonly #profiles = new TenantCache<Profile>(mostProfileBytes)
  readonly #pools = new TenantCache<BroadcastPool>(mostPoolBytes)
  readonly #onProfile: OnProfile

  /** `onProfile` receives the profile that is now here. Undefined: the profile was deleted, or there is none. */
  constructor(onProfile: OnProfile = () => {}) {
    this.#onProfile = onProfile
  }

  /**
   * Applies a page and returns up to which revision this runner has followed the tenant. Any number of conductors send pages, late, repeatedly and
   * in any order, so a page that does not continue the current state, or ends before it, changes nothing. A page that begins before the current
   * state and ends after it was read when all its contents were newer. So old data never replaces newer data, and a deleted profile stays deleted
   * without being remembered.
   */
  take(tenantId: string, { after, revision, changes }: BroadcastPage): number {
    const at = this.#revisions.get(tenantId) ?? 0
    if (at < after || revision <= at) return at
    for (const { kind, key, profile, pool } of changes) {
      if (kind === 'pool') {
        if (pool) this.putPool(tenantId, pool)
        else this.deletePool(tenantId, key)
      } else if (profile) this.putProfile(tenantId, profile)
      else this.deleteProfile(tenantId, key)
    }
    this.#revisions.set(tenantId, revision)
    return revision
  }
  /** The tenants whose newest changes this runner lacks. */
  behind(newest: BroadcastRevisions): string[] {
    return Object.keys(newest).filter((tenantId) => (this.#revisions.get(tenantId) ?? 0) < newest[tenantId]!)
  }
  /** A profile older than the current one changes nothing. */
  putProfile(tenantId: string, profile: Profile): void {
    const held = this.profile(tenantId, profile.name)
    if (held && isOlder(profile, held)) return
    this.#profiles.put(tenantId, profile.name, profile)
    this.#onProfile(tenantId, profile.name, profile)
  }
  deleteProfile(tenantId: string, name: string): void {
    this.#profiles.delete(tenantId, name)
    this.#onProfile(tenantId, name, undefined)
  }
  profile(tenantId: string, name: string): Profile | undefined {
    return this.#profiles.get(tenantId, name)
  }
  profiles(tenantId: string): Profile[] {
    return this.#profiles.valuesOf(tenantId).sort((a, b) => (a.name < b.name ? -1 : 1))
  }
  putPool(tenantId: string, pool: BroadcastPool): void {
    this.#pools.put(tenantId, pool.id, pool)
  }
  /** False: there was no such pool. */
  deletePool(tenantId: string, id: string): boolean {
    return this.#pools.delete(tenantId, id)
  }
  pools(tenantId: string): BroadcastPool[] {
    return this.#pools.valuesOf(tenantId)
  }
}

/** Compares versions, or times when one of the two profiles comes from a release without versions. */
const isOlder = (one: Profile, other: Profile): boolean =>
  one.version !== undefined && other.version !== undefined
    ? one.version < other.version
    : Date.parse(one.updatedAt) < Date.parse(other.updatedAt)
