import type { BroadcastPage, BroadcastRevisions } from '#contracts/broadcast'
import type { Profile } from '#contracts/profiles'
import type { BroadcastPool } from '#contracts/runner'

type OnProfile = (tenantId: string, name: string, profile: Profile | undefined) => void

/** The profiles and pools that conductors broadcast to this runner, per tenant. They live only in memory, because a conductor sends them again. */
export class BroadcastReceiver {
  readonly #revisions = new Map<string, number>()
  readonly #profiles = new Map<string, Map<string, Profile>>()
  readonly #pools = new Map<string, Map<string, BroadcastPool>>()
  readonly #onProfile: OnProfile

  /** `onProfile` receives the profile that is now here. Undefined: the profile was deleted. */
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
    put(this.#profiles, tenantId, profile.name, profile)
    this.#onProfile(tenantId, profile.name, profile)
  }
  deleteProfile(tenantId: string, name: string): void {
    if (remove(this.#profiles, tenantId, name)) this.#onProfile(tenantId, name, undefined)
  }
  profile(tenantId: string, name: string): Profile | undefined {
    return this.#profiles.get(tenantId)?.get(name)
  }
  profiles(tenantId: string): Profile[] {
    return [...(this.#profiles.get(tenantId)?.values() ?? [])].sort((a, b) => (a.name < b.name ? -1 : 1))
  }
  putPool(tenantId: string, pool: BroadcastPool): void {
    put(this.#pools, tenantId, pool.id, pool)
  }
  /** False: there was no such pool. */
  deletePool(tenantId: string, id: string): boolean {
    return remove(this.#pools, tenantId, id)
  }
  pools(tenantId: string): BroadcastPool[] {
    return [...(this.#pools.get(tenantId)?.values() ?? [])]
  }
}

type Shelves<T> = Map<string, Map<string, T>>
const put = <T>(shelves: Shelves<T>, tenantId: string, key: string, value: T): void =>
  void shelves.set(tenantId, (shelves.get(tenantId) ?? new Map<string, T>()).set(key, value))
const remove = <T>(shelves: Shelves<T>, tenantId: string, key: string): boolean => {
  const deleted = shelves.get(tenantId)?.delete(key) === true
  if (shelves.get(tenantId)?.size === 0) shelves.delete(tenantId)
  return deleted
}

/** Compares versions, or times when one of the two profiles comes from a release without versions. */
const isOlder = (one: Profile, other: Profile): boolean =>
  one.version !== undefined && other.version !== undefined
    ? one.version < other.version
    : Date.parse(one.updatedAt) < Date.parse(other.updatedAt)
