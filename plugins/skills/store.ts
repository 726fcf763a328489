import type { Listing, Page } from '#contracts/paging'
import type { SkillContent, SkillNeeds } from '#contracts/skills'
import type { SkillHeader } from './format.ts'
import type { Resource, SkillPackage } from './package.ts'

export const sources = ['user', 'imported', 'platform'] as const
export type Source = (typeof sources)[number]

/** A skill of a tenant, as it is listed. */
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

/** How a skill is written. */
export interface Write {
  readonly source: Exclude<Source, 'platform'>
  /** False: a name that is taken is a conflict. */
  readonly replace: boolean
  /** How many skills of its own the tenant may have. */
  readonly most: number
}

/** The needs of a skill, with its tools as their author called them. */
export type StoredNeeds = SkillNeeds

/** The skills of all tenants: in PostgreSQL, or in memory and on this machine where there is no database. */
export interface SkillStore {
  /** By name. */
  list(tenantId: string, page: Page): Promise<Listing<Skill>>
  find(tenantId: string, name: string): Promise<WholeSkill | undefined>
  /** One file of the version that the name has now. */
  file(tenantId: string, name: string, path: string): Promise<(Resource & { readonly data: Uint8Array }) | undefined>
  /** Those of the names that there are. */
  needs(tenantId: string, names: readonly string[]): Promise<readonly StoredNeeds[]>
  content(tenantId: string, digest: string): Promise<SkillContent | undefined>
  /** Skills of its own: those that count for its limit. */
  count(tenantId: string): Promise<number>
  /** `conflict` 409 when the name is taken, `limit_exceeded` 409 when there are as many as may be. */
  put(tenantId: string, skill: SkillPackage, write: Write): Promise<WholeSkill>
  /** Removes a skill; one of the platform stays away. False: there is none of this name. */
  remove(tenantId: string, name: string): Promise<boolean>
  /** Keeps a skill for a while until it is committed. Resolves to the id of the staging. */
  stage(tenantId: string, skill: SkillPackage): Promise<string>
  /** Puts a staged skill, once. Undefined: there is no such staging, or not any more. Errors as of `put`, and then it stays. */
  commit(tenantId: string, stagingId: string, write: Omit<Write, 'replace' | 'source'>): Promise<WholeSkill | undefined>
  /** Brings the platform's skills to a tenant, unless it has skills of their names or deleted them. */
  reconcile(tenantId: string, seeds: readonly SkillPackage[]): Promise<void>
}

/** How long a staged import waits for its commit. */
export const stagingMs = 15 * 60_000
/** Imports of one tenant that wait; the oldest one goes when another comes. */
export const mostStaged = 10
