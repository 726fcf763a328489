import type { BroadcastChange, BroadcastRevisions } from '#contracts/broadcast'
import type { TenantTx } from '#contracts/database'
import type { Page } from '#contracts/paging'
import { overLimit } from '#contracts/limits'
import { listOf } from '#kit/lists'
import type { PlacedProfile, Profile, Profiles } from '#contracts/profiles'
import type { ChangeLog } from './broadcast.ts'
import type { ProfileDocument } from './document.ts'
import { idChanged, idTaken, nameTaken, preconditionFailed, tooManyProfiles, unknownProfile } from './errors.ts'
import type { Creator, Expected, ProfileStore } from './store.ts'

/** The most names per tenant, including those of deleted profiles. */
const mostNames = 10_000
/** Profiles per portion of a list. Each profile may be a megabyte. */
const listed = 8
/** Changes that a runner is sent at a time. */
const pageChanges = 200

/** The newest state of a name. */
interface Entry {
  readonly revision: number
  /** Continues to count when the name is used again. */
  readonly version: number
  /** Undefined: the profile was deleted. */
  readonly profile: Profile | undefined
}
interface OfTenant {
  revision: number
  /** In the order of their revisions. */
  readonly entries: Map<string, Entry>
}

/**
 * The profiles of a process without a database, and their changes for its runners. They are lost when the process ends, and older versions are not
 * kept.
 */
export class MemoryProfileStore implements ProfileStore, Profiles, ChangeLog {
  readonly #tenants = new Map<string, OfTenant>()

  async find(tenantId: string, name: string): Promise<Profile | undefined> {
    return this.#tenants.get(tenantId)?.entries.get(name)?.profile
  }
  findIn({ tenantId }: TenantTx, name: string): Promise<Profile | undefined> {
    return this.find(tenantId, name)
  }
  async findPlaced(tenantId: string, name: string): Promise<PlacedProfile | undefined> {
    const profile = await this.find(tenantId, name)
    return profile && { profile, revision: this.#tenants.get(tenantId)!.revision }
  }
  async list(tenantId: string, q: string | undefined, page: Page) {
    const wanted = q?.toLowerCase() ?? ''
    const profiles = this.#profiles(tenantId)
      .filter(({ name }) => name.toLowerCase().includes(wanted))
      .sort((a, b) => (a.name < b.name ? -1 : 1))
    return listOf(profiles, page, listed, (profile) => profile)
  }
  async count(tenantId: string): Promise<number> {
    return this.#profiles(tenantId).length
  }
  async insert(
    tenantId: string,
    name: string,
    id: string,
    document: ProfileDocument,
    { most }: Pick<Creator, 'most'>,
  ): Promise<Profile> {
    const others = this.#profiles(tenantId)
    if (others.some((other) => other.name === name)) throw nameTaken(name)
    if (others.some((other) => other.id === id)) throw idTaken(id)
    if (others.length >= most) throw overLimit('profiles', most)
    const createdAt = new Date().toISOString()
    return this.#write(tenantId, name, { name, id, ...document, createdAt, updatedAt: createdAt })!
  }
  async replace(tenantId: string, name: string, expected: Expected, document: ProfileDocument): Promise<Profile> {
    const { id, createdAt } = this.#expect(tenantId, name, expected)
    return this.#write(tenantId, name, { name, id, ...document, createdAt, updatedAt: new Date().toISOString() })!
  }
  async remove(tenantId: string, name: string, { versions }: Expected): Promise<void> {
    this.#expect(tenantId, name, { versions })
    this.#write(tenantId, name, undefined)
  }

  async page(tenantId: string, after: number | undefined): ReturnType<ChangeLog['page']> {
    const tenant = this.#tenants.get(tenantId)
    if (!tenant) return undefined
    const from = after ?? tenant.revision - 1
    const later = [...tenant.entries].filter(([, { revision }]) => revision > from)
    const changes = later.slice(0, pageChanges).map(([key, { revision, profile }]): BroadcastChange => ({
      revision,
      kind: 'profile',
      key,
      ...(profile ? { profile } : {}),
    }))
    const last = changes.at(-1)
    if (!last) return undefined
    return { page: { after: from, revision: last.revision, changes }, more: later.length > changes.length }
  }
  async *revisions(): AsyncGenerator<BroadcastRevisions> {
    yield Object.fromEntries([...this.#tenants].map(([tenantId, { revision }]) => [tenantId, revision]))
  }

  #profiles(tenantId: string): Profile[] {
    const entries = [...(this.#tenants.get(tenantId)?.entries.values() ?? [])]
    return entries.flatMap(({ profile }) => (profile ? [profile] : []))
  }
  /** The stored profile, if the write may replace it. Throws otherwise. */
  #expect(tenantId: string, name: string, { id, versions }: Expected): Profile {
    const { profile, version } = this.#tenants.get(tenantId)?.entries.get(name) ?? {}
    if (!profile) throw unknownProfile()
    if (id !== undefined && profile.id !== id) throw idChanged()
    if (versions && !versions.includes(version!)) throw preconditionFailed(version!)
    return profile
  }
  /** Stores a profile; undefined deletes it. */
  #write(tenantId: string, name: string, made: Profile | undefined): Profile | undefined {
    const tenant = this.#tenants.get(tenantId) ?? { revision: 0, entries: new Map<string, Entry>() }
    this.#tenants.set(tenantId, tenant)
    const { entries } = tenant
    const before = entries.get(name)
    if (!before && entries.size >= mostNames) forgetDeleted(entries)
    const version = (before?.version ?? 0) + (made ? 1 : 0)
    const profile = made && { ...made, version }
    entries.delete(name)
    entries.set(name, { revision: ++tenant.revision, version, profile })
    return profile
  }
}

function forgetDeleted(entries: Map<string, Entry>): void {
  for (const [name, { profile }] of entries) if (!profile) return void entries.delete(name)
  throw tooManyProfiles(mostNames)
}
