import type { Listing, Page } from '#contracts/paging'
import type { SkillContent, SkillNeeds } from '#contracts/skills'
import type { SkillHeader } from './format.ts'
import type { Resource, SkillPackage } from './package.ts'

export const sources = ['user', 'imported', 'platform'] as const
export type Source = (typeof sources)[number]

/** A skill of a tenant in a list. */
export interface Skill extends SkillHeader {
  readonly source: Source
  readonly version: number
  readonly digest: string
  readonly resources: Resource[]
  readonly requiresSandbox: boolean
  readonly totalBytes: number
  readonly createdAt: string
  readonly updatedAt: string
}
export type WholeSkill = Skill & { readonly body: string }

/** The options of a write. */
export interface Write {
  readonly source: Exclude<Source, 'platform'>
  /** False: a name that is taken is a conflict (409). */
  readonly replace: boolean
  /** How many skills of its own the tenant may have. */
  readonly most: number
}

/** The requirements of a skill. Its tools have the names that their author used. */
export type StoredNeeds = SkillNeeds

/** The skills of all tenants: in PostgreSQL or, without a database, in memory and on this machine. */
export interface SkillStore {
  /** Sorted by name. */
  list(tenantId: string, page: Page): Promise<Listing<Skill>>
  find(tenantId: string, name: string): Promise<WholeSkill | undefined>
  /** One file of the version that the name points to now. */
  file(tenantId: string, name: string, path: string): Promise<(Resource & { readonly data: Uint8Array }) | undefined>
  /** The requirements of those skills that exist. */
  needs(tenantId: string, names: readonly string[]): Promise<readonly StoredNeeds[]>
  content(tenantId: string, digest: string): Promise<SkillContent | undefined>
  /** The number of the tenant's own skills, which count for its limit. */
  count(tenantId: string): Promise<number>
  /** Rejects with 409: `conflict` when the name is taken, `limit_exceeded` when the tenant has `most` skills already. */
  put(tenantId: string, skill: SkillPackage, write: Write): Promise<WholeSkill>
  /** Removes a skill. A removed skill of the platform does not come back. False when there is no skill of this name. */
  remove(tenantId: string, name: string): Promise<boolean>
  /** Stores a skill until its commit, for `stagingMs` at most. Resolves to the id of the staging. */
  stage(tenantId: string, skill: SkillPackage): Promise<string>
  /**
   * Stores a staged skill under its name, once. Undefined when there is no such staging any more. After an error, which is one of `put`, the staging
   * stays.
   */
  commit(tenantId: string, stagingId: string, write: Omit<Write, 'replace' | 'source'>): Promise<WholeSkill | undefined>
  /** Gives the platform's skills to a tenant, except those whose name the tenant uses or whose skill it has deleted. */
  reconcile(tenantId: string, seeds: readonly SkillPackage[]): Promise<void>
}

/** How long a staged import waits for its commit. */
export const stagingMs = 15 * 60_000
/** The most waiting imports of one tenant. A further one replaces the oldest. */
export const mostStaged = 10
