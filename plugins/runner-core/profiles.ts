import type { Profile } from '#contracts/profiles'

/** The profiles that conductors broadcast to this runner, per tenant. They live in memory only: a conductor sends them again. */
export interface ProfileBook {
  /** An older version than the one that is here changes nothing. */
  put(tenantId: string, profile: Profile): void
  delete(tenantId: string, name: string): void
  get(tenantId: string, name: string): Profile | undefined
  list(tenantId: string): Profile[]
}

/** `onChange` is told of what is here now; undefined: it was deleted. */
export function createProfileBook(
  onChange: (tenantId: string, name: string, profile: Profile | undefined) => void = () => {},
): ProfileBook {
  const tenants = new Map<string, Map<string, Profile>>()
  return {
    put(tenantId, profile) {
      const book = tenants.get(tenantId) ?? new Map<string, Profile>()
      const held = book.get(profile.name)
      if (held && isOlder(profile, held)) return
      tenants.set(tenantId, book.set(profile.name, profile))
      onChange(tenantId, profile.name, profile)
    },
    delete(tenantId, name) {
      const book = tenants.get(tenantId)
      if (!book?.delete(name)) return
      if (book.size === 0) tenants.delete(tenantId)
      onChange(tenantId, name, undefined)
    },
    get: (tenantId, name) => tenants.get(tenantId)?.get(name),
    list: (tenantId) => [...(tenants.get(tenantId)?.values() ?? [])].sort((a, b) => (a.name < b.name ? -1 : 1)),
  }
}

/** By version; by time when one of the two comes from a release without versions. */
const isOlder = (one: Profile, other: Profile): boolean =>
  one.version !== undefined && other.version !== undefined
    ? one.version < other.version
    : Date.parse(one.updatedAt) < Date.parse(other.updatedAt)
