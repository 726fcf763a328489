import type { Profile } from '#contracts/profiles'

/** The profiles that conductors broadcast to this runner, per tenant. They live in memory only: a conductor sends them again. */
export interface ProfileBook {
  put(tenantId: string, profile: Profile): void
  delete(tenantId: string, name: string): void
  get(tenantId: string, name: string): Profile | undefined
  list(tenantId: string): Profile[]
}

export function createProfileBook(): ProfileBook {
  const tenants = new Map<string, Map<string, Profile>>()
  return {
    put(tenantId, profile) {
      const book = tenants.get(tenantId)
      if (book) book.set(profile.name, profile)
      else tenants.set(tenantId, new Map([[profile.name, profile]]))
    },
    delete(tenantId, name) {
      const book = tenants.get(tenantId)
      if (book?.delete(name) && book.size === 0) tenants.delete(tenantId)
    },
    get: (tenantId, name) => tenants.get(tenantId)?.get(name),
    list: (tenantId) => [...(tenants.get(tenantId)?.values() ?? [])].sort((a, b) => (a.name < b.name ? -1 : 1)),
  }
}
