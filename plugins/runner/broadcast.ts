import type { BroadcastPage, BroadcastRevisions } from '#contracts/broadcast'
import type { Profile } from '#contracts/profiles'
import type { BroadcastPool } from '#contracts/runner'

type OnProfile = (tenantId: string, name: string, profile: Profile | undefined) => void

/** The profiles and pools that conductors broadcast to this runner, per tenant. They live in memory only: a conductor sends them again. */
export class BroadcastReceiver {
  readonly #revisions = new Map<string, number>()
  readonly #profiles = new Map<string, Map<string, Profile>>()
  readonly #pools = new Map<string, Map<string, BroadcastPool>>()
  readonly #onProfile: OnProfile

  /** `onProfile` is told of what is here now; undefined: it was deleted. */
  constructor(onProfile: OnProfile = () => {}) {
    this.#onProfile = onProfile
  }

  /**
   * Any number of conductors send pages, late, twice and in any order. One that does not continue what is here, or ends before
   * it, changes nothing. One that begins before it and ends behind it was read when all of it was newer than what is here. So
   * nothing older ever replaces what is newer, and a profile that was deleted stays so without being remembered. Returns how
   * far this runner has followed the tenant then.
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
  /** An older version than the one that is here changes nothing. */
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
  /** False: it was not here. */
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

/** By version; by time when one of the two comes from a release without versions. */
const isOlder = (one: Profile, other: Profile): boolean =>
  one.version !== undefined && other.version !== undefined
    ? one.version < other.version
    : Date.parse(one.updatedAt) < Date.parse(other.updatedAt)
